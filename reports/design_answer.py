"""What a design for a device answers, in sentences: the decision, why, and the speeds."""

import math

from moeplan.quantity import format_bytes_up, format_params, format_rate
from reports import wording
from reports.design_wording import (
    holds,
    holds_safely,
    is_elsewhere,
    largest,
    on_device,
    ram_sentence,
    reading,
    running,
    shape,
)
from simulator.plan_result import Decision, Design, DesignResult
from simulator.result import Interval

ALIKE_FRAC = 0.05  # speeds that differ by less are called alike: predictions are off by about as much (README)
N_NAMED = 3  # designs that a sentence names
LOW_END = "at the low end of the 80 % interval"


def design_question(result: DesignResult) -> str:
    """The question as one sentence; a target comes first."""
    _, device = wording.scenario_names(result.small_print)
    models = f" with {result.fixed}" if result.fixed else ""
    if result.target_tokens_per_s is None:
        return f"How large may the experts of a model{models} be, so that {device} reads them while attention computes?"
    return (
        f"Which models{models} reach {wording.goal(result.target_tokens_per_s)} tokens/s on {device}, and how large "
        f"may experts be that it reads while attention computes?"
    )


def design_tone(result: DesignResult) -> Decision:
    """
    The look of the answer.

    With a target: yes where the low end of the interval reaches it for a design that reads nothing, whose speed hangs
    on no routing; likely where a design reaches it otherwise.  Without: yes where attention hides the reads of a
    design, or nothing need be read; likely where only some designs read nothing.  Cannot run
    where all that run take more RAM than the device leaves.
    """
    if not running(result):
        return "no"
    if is_elsewhere(result):
        return "cannot_run"
    result = on_device(result)
    if result.target_tokens_per_s is not None:
        if any(design.hidden_frac is None for design in _reaching_safely(result)):
            return "yes"
        return "likely" if _reaching(result) else "no"
    if _reads_nothing(result) or largest(result, holds) is not None:
        return "yes"
    return "likely" if _n_resident(result) else "no"


def design_headline(result: DesignResult) -> str:
    """The decision in a few words: about the target, where there is one."""
    word, told = _headline(on_device(result))
    word = wording.ELSEWHERE if is_elsewhere(result) else word
    return f"{word}: {told}" if word else told


def _headline(result: DesignResult) -> tuple[str, str]:
    """The word that answers, empty without a target; and what it is said of."""
    target, n, n_all = result.target_tokens_per_s, len(_reaching(result)), len(result.designs)
    if target is None or not running(result):
        return "", _finding(result)
    aim = f"{wording.goal(target)} tokens/s"
    if not n:
        return "No", f"none of {n_all} designs reaches {aim}" if n_all > 1 else f"the design does not reach {aim}"
    answer = "Yes" if design_tone(result) == "yes" else "Likely"
    return answer, f"{f'{n} of {n_all} designs reach' if n_all > 1 else 'the design reaches'} {aim}"


def design_reasons(result: DesignResult) -> tuple[str, ...]:
    """What must be said of the RAM cap; why, and the speeds: what the headline speaks of comes first."""
    ram, result = ram_sentence(result), on_device(result)
    why, speed = design_reason(result), design_speed(result)
    told = (why, speed) if result.target_tokens_per_s is None else (f"{_cautious(result)}{speed}", why)
    return tuple(text for text in (ram, *told) if text)


def _cautious(result: DesignResult) -> str:
    """Of the designs that reach the target those that do at the low end too; empty where none reaches it."""
    reaching, safe = _reaching(result), _reaching_safely(result)
    if not reaching:
        return ""
    who = "It does" if len(reaching) == 1 else f"All {len(reaching)} do"
    if not safe:
        return f"{'It does not' if len(reaching) == 1 else 'None does'} {LOW_END}. "
    if len(safe) < len(reaching):
        who = f"{len(safe)} of these {'do' if len(safe) > 1 else 'does'}"
    routing = "" if design_tone(result) == "yes" else ", with routing that is made up"
    return f"{who} {LOW_END} too{routing}. "


def design_reason(result: DesignResult) -> str:
    """Why: the design at the edge, or the one that needs the slowest storage for it; with a target the finding too."""
    if not running(result):
        nearest = min(result.designs, key=lambda design: design.top_k * design.expert_bytes, default=None)
        return "" if nearest is None else f"{shape(nearest)}: {nearest.reason}"
    told = [] if result.target_tokens_per_s is None else [f"{_finding(result)}."]
    found = largest(result, holds)
    if _reads_nothing(result):
        told.append(_why_no_reads(result))
    elif found is None:
        told.append(_what_is_missing(result))
    else:
        told.append(_edge(result, found))
        if _n_resident(result):
            told.append(f"{_n_resident(result)} of the {len(result.designs)} designs fit into RAM and read nothing.")
    return " ".join(told)


def _finding(result: DesignResult) -> str:
    """What attention hides, in a few words."""
    found, n_resident = largest(result, holds), _n_resident(result)
    if found is not None:
        return f"{_attention(result)} the reads of experts of up to {wording.size(found.expert_bytes)}"
    if reading(result) and n_resident:
        reads = f"the {len(reading(result))} designs that read; the other {n_resident} fit into RAM and read nothing"
        return f"{_attention(result)} the reads of none of {reads}"
    if reading(result):
        return f"{_attention(result)} the reads of none of these designs"
    if running(result):
        return f"Nothing need be read: {_every_design(result)} fits into RAM"
    is_stuck = all(design.verdict == "cannot_run" for design in result.designs)
    return "Nothing here can run" if is_stuck else "Nothing here can run and be simulated"


def _edge(result: DesignResult, found: Design) -> str:
    """The design with the largest experts for which it holds, and what of that is safe."""
    smaller = [design for design in reading(result) if design.expert_bytes < found.expert_bytes]
    failing = sum(not holds(design, result.holds_frac) for design in smaller)
    tail = f" {failing} of the {len(smaller)} designs with smaller ones miss it all the same." if failing else ""
    share, most = wording.percent(found.hidden_frac or 0), wording.percent(result.holds_frac)
    safe, safely = largest(result, holds_safely), "it holds for none"
    if safe is not None:
        safely = "it holds as well" if safe == found else f"it holds up to {wording.size(safe.expert_bytes)}"
    return (
        f"{shape(found)} is the design with the largest experts for which attention takes as long as the reads in at "
        f"least {most} of the cases with a miss ({share}); {LOW_END} {safely}.{tail}"
    )


def _what_is_missing(result: DesignResult) -> str:
    """Where it holds for none: the storage that would do, and whether anybody can have it."""
    reads = reading(result)
    best = max(reads, key=lambda design: design.hidden_frac or 0)
    verb = "" if result.is_prefetched else "would be "
    most = f"No read {verb or 'is '}hidden"
    if best.hidden_frac:
        most = f"At most {wording.percent(best.hidden_frac)} of the cases with a miss {verb or 'are '}hidden"
    wish = wording.percent(result.holds_frac)
    wanted = [design for design in reads if design.holds_from_bytes_per_s is not None]
    if not wanted:
        named = f" ({shape(best)})" if best.hidden_frac else ""
        return f"{most}{named}; it holds from {wish} on, and no storage up to what the RAM sustains would do."
    least = min(wanted, key=lambda design: design.holds_from_bytes_per_s or 0)
    return (
        f"{most}, and it holds from {wish} on. The slowest storage that would do, for {shape(least)}, {_storage(least)}"
    )


def _storage(design: Design) -> str:
    """'reads 1.24 GB/s in sequence (1.52 GB/s to be safe): more than this device's PCIe 3 x1 carries (985 MB/s).'"""
    safely, doubt = design.holds_safely_from_bytes_per_s, design.holds_from_doubt
    told = f"reads {format_rate(design.holds_from_bytes_per_s or 0)} in sequence"
    told += f" ({format_rate(safely)} to be safe)" if safely is not None else ""
    if doubt:
        return f"{told}: {doubt}."
    safe_doubt = design.holds_safely_from_doubt
    return f"{told}; the safe one is {safe_doubt}." if safe_doubt else f"{told}."


def _attention(result: DesignResult) -> str:
    """Without prefetch nothing is hidden; what is told is what a prefetch would do."""
    return "Attention hides" if result.is_prefetched else "With a prefetch before it attention would hide"


def _why_no_reads(result: DesignResult) -> str:
    """Why a token waits for no storage; what makes it faster, or the cap below which designs begin to read."""
    if result.target_tokens_per_s is not None and not _reaching(result):
        return "So no storage makes them faster: fewer parameters a token (--active) would, or a faster device."
    cap = result.small_print.get("ram_cap", "").partition(" (")[0]
    fits = format_bytes_up(max(design.all_in_ram_bytes for design in running(result))).replace(" ", "")
    return (
        f"All experts lie in RAM{f', of which the model may take {cap}' if cap else ''}, so a token waits for no "
        f"storage. To see from where attention has to hide reads, give a smaller cap: {_every_design(result)} fits "
        f"from --ram-cap {fits} on, and with less designs begin to read."
    )


def _every_design(result: DesignResult) -> str:
    return "every design" if len(running(result)) == len(result.designs) else "every design that runs"


def _reads_nothing(result: DesignResult) -> bool:
    """Whether designs run and none of them reads."""
    return bool(running(result)) and not reading(result)


def _n_resident(result: DesignResult) -> int:
    """Designs that run and read nothing."""
    return len(running(result)) - len(reading(result))


def _speeds(result: DesignResult) -> list[tuple[Design, Interval]]:
    return [(design, design.tokens_per_s) for design in result.designs if design.tokens_per_s is not None]


def _reaching(result: DesignResult) -> list[Design]:
    """The designs whose predicted speed reaches the target."""
    target = math.inf if result.target_tokens_per_s is None else result.target_tokens_per_s
    return [design for design, speed in _speeds(result) if speed.value >= target]


def _reaching_safely(result: DesignResult) -> list[Design]:
    """Those that reach it at the low end of the interval."""
    target = math.inf if result.target_tokens_per_s is None else result.target_tokens_per_s
    return [design for design, speed in _speeds(result) if speed.low >= target]


def design_speed(result: DesignResult) -> str:
    """The fastest or those that are alike; only the range where nothing is read, for A decides then; empty for none."""
    speeds = _speeds(result)
    if not speeds:
        return ""
    best, speed = max(speeds, key=lambda pair: pair[1].value)
    alike = [design for design, other in speeds if other.value >= (1 - ALIKE_FRAC) * speed.value]
    about = f"{wording.number(speed.value)} tokens/s ({wording.span(speed)})"
    if len(speeds) > 1 and len(alike) == len(speeds):
        return f"All run alike, at {about} and little less."
    least = min(interval.value for _, interval in speeds)
    if _reads_nothing(result) and not result.active_fixed and len(speeds) > 1:
        return (
            f"They run at {wording.number(least)} to {wording.number(speed.value)} tokens/s: with nothing to read "
            "mostly the parameters of a token (A) decide, and what a model can do hangs on A too."
        )
    if len(alike) > 1:
        names = "; ".join(shape(design) for design in alike[:N_NAMED])
        more = f" and {len(alike) - N_NAMED} more" if len(alike) > N_NAMED else ""
        return f"The fastest are alike ({names}{more}): {about} and little less."
    active = {design.n_active_params for design, _ in speeds}
    lean = ""
    if not result.active_fixed and best.n_active_params == min(active) < max(active):
        lean = f"; it also computes least, {format_params(best.n_active_params)} parameters a token"
    return f"The fastest is {shape(best)}: {about}{lean}."


def not_simulated(result: DesignResult) -> list[str]:
    """The designs that were not simulated, with the reason: a line for each reason."""
    found: dict[str, list[str]] = {}
    for design in result.designs:
        if design.verdict == "failed":
            found.setdefault(design.reason, []).append(shape(design))
    return [f"Not simulated: {'; '.join(names)} ({reason})" for reason, names in found.items()]
