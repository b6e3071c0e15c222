"""What the parts of a design for a device are called and say: shared by the answer, the page and the terminal."""

from collections.abc import Callable
from dataclasses import replace

from moeplan.quantity import format_params, format_rate, format_seconds
from reports import wording
from simulator.plan_result import Design, DesignResult

DOUBTED = "†"  # beside a storage speed that nobody can have for the device


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


def is_simulated(design: Design) -> bool:
    """Whether the design can run and was simulated."""
    return design.verdict in ("resident", "streams")


def running(result: DesignResult) -> list[Design]:
    """The designs that can run and were simulated."""
    return [design for design in result.designs if is_simulated(design)]


def reading(result: DesignResult) -> list[Design]:
    """The designs that miss an expert and so read."""
    return [design for design in result.designs if design.hidden_frac is not None]


def on_device(result: DesignResult) -> DesignResult:
    """The designs that the device as bought has the RAM for, those that cannot run too; all where none of them runs."""
    there = tuple(design for design in result.designs if not design.is_beyond_device)
    return replace(result, designs=there) if any(map(is_simulated, there)) else result


def is_elsewhere(result: DesignResult) -> bool:
    """Whether designs run, and all of these only on a device with more RAM."""
    return bool(running(result)) and all(design.is_beyond_device for design in running(result))


def ram_sentence(result: DesignResult) -> str:
    """That the RAM cap is more than the device leaves, and what follows; empty for a cap within that."""
    n, n_all = sum(design.is_beyond_device for design in result.designs), len(result.designs)
    if not result.larger_cap or not running(result):
        return result.larger_cap and f"{result.larger_cap}."
    if is_elsewhere(result):
        return f"{result.larger_cap}. Every figure here is for a device that has the RAM."
    if not n:
        return f"{result.larger_cap}; every design that runs takes less of it and fits."
    rest = "takes more: a what-if, with ? at its speed" if n == 1 else "take more: what-ifs, with ? at their speeds"
    return f"{result.larger_cap}; {n} of the {n_all} designs {rest}. Only the others count below."


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
    if not reading(result):
        return shapes + "t_attention: mean over tokens and layers"
    share = wording.percent(result.holds_frac)
    return (
        f"{shapes}t_attention, t_prefetch: means of the cases (a token in a layer) with a miss; hidden: share of these "
        f"in which attention takes at least as long; it holds from {share} on, likely where only the predicted value "
        f"does and not the low end of its 80 % interval; from: the sequential read of the storage from which it holds, "
        f"none where no rate that the RAM sustains will do; in brackets: at the low end"
    )


DESIGN_CAPTION = (
    "t_attention: a layer's attention, from the known top-k to where the expert FFN could start; t_prefetch: from the "
    "same moment to the arrival of the last missing expert; both are means over the tokens and layers that miss an "
    "expert, at the predicted speeds. It holds where attention takes at least as long in enough of those cases, likely "
    "where the low end of the 80 % interval falls short of that; the second share and storage speed are those of the "
    "low end. None: no rate that the RAM sustains will do."
)


def design_caption(result: DesignResult) -> str:
    """What the columns of the page's table are."""
    doubts = storage_doubts(result)
    return f"{DESIGN_CAPTION} {doubts}." if doubts else DESIGN_CAPTION


def storage_doubts(result: DesignResult) -> str:
    """What the mark at a storage speed means, empty where none has it."""
    told = [doubt for design in result.designs for doubt in (design.holds_from_doubt, design.holds_safely_from_doubt)]
    doubts = "; ".join(dict.fromkeys(doubt for doubt in told if doubt))
    return f"{DOUBTED}: this device cannot have that storage, {doubts}" if doubts else ""


def picture_title(result: DesignResult) -> str:
    """The finding over the figure."""
    reads = reading(result)
    if not reads:
        return "No design has to read an expert while it decodes"
    n = sum(holds(design, result.holds_frac) for design in reads)
    return f"Attention outlasts the reads in {n or 'none'} of the {len(reads)} designs that read experts"


def picture_caption(result: DesignResult) -> str:
    """What the marks mean."""
    if not reading(result):
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
        "holds_from": _rate(design.holds_from_bytes_per_s, design.holds_from_doubt) if reads else "",
        "holds_safely_from": _rate(design.holds_safely_from_bytes_per_s, design.holds_safely_from_doubt)
        if reads
        else "",
        "speed": "" if speed is None else f"{wording.number(speed.value)}{'?' if design.is_beyond_device else ''}",
        "span": "" if speed is None else wording.span(speed),
        "no_locality": "" if no_locality is None else wording.number(no_locality),
    }


def _rate(bytes_per_s: float | None, doubt: str) -> str:
    if bytes_per_s is None:
        return "none"
    return f"{format_rate(bytes_per_s)} {DOUBTED}" if doubt else format_rate(bytes_per_s)
