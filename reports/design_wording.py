"""What a design for a device says, in words: shared by the page and the terminal."""

from collections.abc import Callable

from moeplan.quantity import format_params, format_rate, format_seconds
from reports import wording
from simulator.plan_result import Design, DesignResult
from simulator.result import Interval

ALIKE_FRAC = 0.05  # speeds that differ by less are called alike: predictions are off by about as much (README)
N_NAMED = 3  # designs that a sentence names


def holds(design: Design, holds_frac: float) -> bool:
    """Whether t_attention >= t_prefetch holds for a design, where something is read at all."""
    return design.hidden_frac is not None and design.hidden_frac >= holds_frac


def holds_safely(design: Design, holds_frac: float) -> bool:
    """Whether it holds at the low end of the 80 % interval too."""
    return design.hidden_low_frac is not None and design.hidden_low_frac >= holds_frac


def shape(design: Design) -> str:
    """'32 x 768, top-4'."""
    return f"{design.n_experts} x {design.ffn_size}, top-{design.top_k}"


def holds_word(design: Design, holds_frac: float) -> str:
    """Whether it holds: yes (at the low end of the interval too), likely (as predicted) or no; or why that is moot."""
    if design.verdict == "cannot_run":
        return "cannot run"
    if design.verdict == "failed":
        return "not tried"
    if design.hidden_frac is None:
        return "no reads"
    if not holds(design, holds_frac):
        return "no"
    return "yes" if holds_safely(design, holds_frac) else "likely"


def design_tone(result: DesignResult) -> str:
    """The look of the answer: yes where it holds for a design, or where no design that runs reads anything."""
    if largest(result, holds) is not None or _reads_nothing(result):
        return "yes"
    return "no"


def design_headline(result: DesignResult) -> str:
    """The decision in a few words."""
    found = largest(result, holds)
    if found is not None:
        return f"{_attention(result)} the reads of experts of up to {wording.size(found.expert_bytes)}"
    if _reading(result):
        return f"{_attention(result)} the reads of none of these designs"
    if _reads_nothing(result):
        n_others = len(result.designs) - len(_running(result))
        return "Nothing need be read: every design" + (" that runs" if n_others else "") + " fits into RAM"
    is_stuck = all(design.verdict == "cannot_run" for design in result.designs)
    return "Nothing here can run" if is_stuck else "Nothing here can run and be simulated"


def design_reason(result: DesignResult) -> str:
    """Why: the design at the edge, or the one that needs the slowest storage for it."""
    if not _reading(result):
        return _why_no_reads(result)
    found = largest(result, holds)
    why = _what_is_missing(result) if found is None else _edge(result, found)
    n_resident = len(_running(result)) - len(_reading(result))
    if not n_resident:
        return why
    return f"{why} {n_resident} of the {len(result.designs)} designs fit into RAM and read nothing."


def _edge(result: DesignResult, found: Design) -> str:
    """The design with the largest experts for which it holds, and what of that is safe."""
    smaller = [design for design in _reading(result) if design.expert_bytes < found.expert_bytes]
    failing = sum(not holds(design, result.holds_frac) for design in smaller)
    tail = f" {failing} of the {len(smaller)} designs with smaller ones miss it all the same." if failing else ""
    share, most = wording.percent(found.hidden_frac or 0), wording.percent(result.holds_frac)
    safe, safely = largest(result, holds_safely), "it holds for none"
    if safe is not None:
        safely = "it holds as well" if safe == found else f"it holds up to {wording.size(safe.expert_bytes)}"
    return (
        f"{shape(found)} is the design with the largest experts for which attention takes as long as the reads in at "
        f"least {most} of the cases with a miss ({share}); at the low end of the 80 % interval {safely}.{tail}"
    )


def _what_is_missing(result: DesignResult) -> str:
    """Where it holds for none: the storage that would do."""
    reads = _reading(result)
    best = max(reads, key=lambda design: design.hidden_frac or 0)
    most = _hides(result, best.hidden_frac or 0)
    wanted = [design for design in reads if design.holds_from_bytes_per_s is not None]
    if not wanted:
        named = f" ({shape(best)})" if best.hidden_frac else ""
        return f"{most}{named}, and no storage up to the RAM's own bandwidth would do."
    least = min(wanted, key=lambda design: design.holds_from_bytes_per_s or 0)
    safely = least.holds_safely_from_bytes_per_s
    return (
        f"{most}. The design that asks least of the storage for it is {shape(least)}: there it begins with a "
        f"sequential read of {format_rate(least.holds_from_bytes_per_s or 0)}"
        + (f" (safely {format_rate(safely)})." if safely is not None else ".")
    )


def is_simulated(design: Design) -> bool:
    """Whether the design can run and was simulated."""
    return design.verdict in ("resident", "streams")


def _running(result: DesignResult) -> list[Design]:
    return [design for design in result.designs if is_simulated(design)]


def _reading(result: DesignResult) -> list[Design]:
    """The designs that miss an expert and so read."""
    return [design for design in result.designs if design.hidden_frac is not None]


def _reads_nothing(result: DesignResult) -> bool:
    """Whether designs run and none of them reads."""
    return bool(_running(result)) and not _reading(result)


def _attention(result: DesignResult) -> str:
    """Without prefetch nothing is hidden; what is told is what a prefetch would do."""
    return "Attention hides" if result.is_prefetched else "With a prefetch before it attention would hide"


def _hides(result: DesignResult, most_frac: float) -> str:
    if not most_frac:
        return f"{_attention(result)} none of the reads"
    return f"{_attention(result)} at most {wording.percent(most_frac)} of the cases with a miss"


def _why_no_reads(result: DesignResult) -> str:
    runs = _running(result)
    if runs:
        cap = result.small_print.get("ram_cap", "").partition(" (")[0]
        largest_bytes = max(design.storage_bytes for design in runs)
        return (
            f"All experts lie in RAM{f', of which the model may take {cap}' if cap else ''}, so a token waits for no "
            f"storage. To see from where attention has to hide reads, give a smaller cap: with --ram-cap below "
            f"{wording.size(largest_bytes)}, the largest file here, designs begin to read."
        )
    nearest = min(result.designs, key=lambda design: design.top_k * design.expert_bytes, default=None)
    return "" if nearest is None else f"{shape(nearest)}: {nearest.reason}"


def not_simulated(result: DesignResult) -> list[str]:
    """The designs that were not simulated, with the reason: a line for each reason."""
    found: dict[str, list[str]] = {}
    for design in result.designs:
        if design.verdict == "failed":
            found.setdefault(design.reason, []).append(shape(design))
    return [f"Not simulated: {'; '.join(names)} ({reason})" for reason, names in found.items()]


def design_target(result: DesignResult) -> str:
    """How many designs reach the target, and the fastest or those that are alike; empty where none runs."""
    speeds = [(design, design.tokens_per_s) for design in result.designs if design.tokens_per_s is not None]
    if not speeds:
        return ""
    told = _fastest(result, speeds)
    if result.target_tokens_per_s is None:
        return told
    target = result.target_tokens_per_s
    n = sum(interval.value >= target for _, interval in speeds)
    n_safe = sum(interval.low >= target for _, interval in speeds)
    return (
        f"{n} of {len(result.designs)} designs reach {wording.goal(target)} tokens/s, {n_safe} of them safely. {told}"
    )


def _fastest(result: DesignResult, speeds: list[tuple[Design, Interval]]) -> str:
    """The fastest; where nothing is read only the range, for it is A that decides then, and not the size of experts."""
    best, speed = max(speeds, key=lambda pair: pair[1].value)
    alike = [design for design, other in speeds if other.value >= (1 - ALIKE_FRAC) * speed.value]
    about = f"{wording.number(speed.value)} tokens/s ({wording.span(speed)})"
    if len(speeds) > 1 and len(alike) == len(speeds):
        return f"All run alike, at {about} and little less."
    least = min(interval.value for _, interval in speeds)
    if _reads_nothing(result) and not result.active_fixed:
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


def design_question(result: DesignResult) -> str:
    """The question as one sentence."""
    _, device = wording.scenario_names(result.small_print)
    size = f" with {result.fixed}" if result.fixed else ""
    return f"How large may the experts of a model{size} be, so that {device} reads them while attention computes?"


def largest(result: DesignResult, meets: Callable[[Design, float], bool]) -> Design | None:
    """The design with the largest experts that meets (holds or holds_safely), None where none does."""
    meeting = [design for design in result.designs if meets(design, result.holds_frac)]
    return max(meeting, key=lambda design: (design.expert_bytes, design.hidden_frac or 0), default=None)


def time(design: Design, seconds: float) -> str:
    """A time of a design that runs."""
    return format_seconds(seconds) if is_simulated(design) else ""


def terminal_caption(result: DesignResult) -> str:
    """What the columns of the terminal's table are."""
    shapes = "shape: experts a layer x their width, experts a token; "
    if not _reading(result):
        return shapes + "t_attention: mean over tokens and layers"
    share = wording.percent(result.holds_frac)
    return (
        f"{shapes}t_attention, t_prefetch: means of the cases (a token in a layer) with a miss; hidden: share of these "
        f"in which attention takes at least as long; it holds from {share} on, likely where only the predicted value "
        f"does and not the low end of its 80 % interval; from: the sequential read of the storage from which it holds; "
        f"in brackets: at the low end"
    )


DESIGN_CAPTION = (
    "t_attention: a layer's attention, from the known top-k to where the expert FFN could start; t_prefetch: from the "
    "same moment to the arrival of the last missing expert; both are means over the tokens and layers that miss an "
    "expert, at the predicted speeds. It holds where attention takes at least as long in enough of those cases, likely "
    "where the low end of the 80 % interval falls short of that; the second share and storage speed are those of the "
    "low end."
)


def picture_title(result: DesignResult) -> str:
    """The finding over the figure."""
    reads = _reading(result)
    if not reads:
        return "No design has to read an expert while it decodes"
    n = sum(holds(design, result.holds_frac) for design in reads)
    return f"Attention outlasts the reads in {n} of the {len(reads)} designs that read experts"


def picture_caption(result: DesignResult) -> str:
    """What the marks mean."""
    if not _reading(result):
        return "Tokens/s with the 80 % interval over the size of an expert; all experts lie in RAM."
    return (
        "Above: t_attention dashed, t_prefetch in full, means over the cases with a miss. Below: tokens/s with the "
        "80 % interval. A filled mark: it holds there as predicted, or nothing has to be read."
    )


def design_row(design: Design, holds_frac: float) -> dict[str, str]:
    """One line of a table, as the page has it; the terminal's own cells are in design_terminal.py."""
    reads, speed, no_locality = design.hidden_frac is not None, design.tokens_per_s, design.no_locality_tokens_per_s
    return {
        "look": "" if is_simulated(design) else "short",
        "experts": f"{design.n_experts} x {design.ffn_size}",
        "top_k": f"top-{design.top_k}{', recorded' if design.is_recorded else ''}",
        "holds": holds_word(design, holds_frac),
        "hidden": "" if design.hidden_frac is None else wording.percent(design.hidden_frac),
        "hidden_low": "" if design.hidden_low_frac is None else wording.percent(design.hidden_low_frac),
        "expert": wording.size(design.expert_bytes),
        "n_params": format_params(design.n_params),
        "n_active": format_params(design.n_active_params),
        "hit_rate": wording.percent(design.hit_rate) if is_simulated(design) else "",
        "attention": time(design, design.t_attention_s),
        "prefetch": time(design, design.t_prefetch_s) if reads else "",
        "row_prefetch": time(design, design.row_prefetch_s),
        "holds_from": _rate(design.holds_from_bytes_per_s) if reads else "",
        "holds_safely_from": _rate(design.holds_safely_from_bytes_per_s) if reads else "",
        "speed": "" if speed is None else wording.number(speed.value),
        "span": "" if speed is None else wording.span(speed),
        "no_locality": "" if no_locality is None else wording.number(no_locality),
    }


def _rate(bytes_per_s: float | None) -> str:
    return "none" if bytes_per_s is None else format_rate(bytes_per_s)
