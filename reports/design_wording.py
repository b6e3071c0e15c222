"""What a design for a device says, in words: shared by the page and the terminal."""

from moeplan.quantity import format_params, format_rate, format_seconds
from reports import wording
from simulator.plan_result import Design, DesignResult


def holds(design: Design, holds_frac: float) -> bool:
    """Whether t_attention >= t_prefetch holds for a design, where something is read at all."""
    return design.hidden_frac is not None and design.hidden_frac >= holds_frac


def shape(design: Design) -> str:
    """'32 x 768, top-4'."""
    return f"{design.n_experts} x {design.ffn_size}, top-{design.top_k}"


def holds_text(design: Design, holds_frac: float) -> str:
    """Whether it holds, in a word or two."""
    if design.verdict == "cannot_run":
        return "cannot run"
    if design.verdict == "failed":
        return "not tried"
    if design.hidden_frac is None:
        return "no reads"
    return f"{'yes' if holds(design, holds_frac) else 'no'}, {wording.percent(design.hidden_frac)}"


def design_headline(result: DesignResult) -> str:
    """The decision in a few words."""
    largest = largest_that_holds(result)
    if largest is not None:
        return f"{_attention(result)} the reads of experts of up to {wording.size(largest.expert_bytes)}"
    reads = [design for design in result.designs if design.hidden_frac is not None]
    if reads:
        return f"{_attention(result)} the reads of none of these designs"
    if any(is_simulated(design) for design in result.designs):
        return "Nothing is read"
    is_stuck = all(design.verdict == "cannot_run" for design in result.designs)
    return "Nothing here can run" if is_stuck else "Nothing here can run and be simulated"


def design_reason(result: DesignResult) -> str:
    """Why, in one sentence: the design at the edge, or the one that needs the slowest storage for it."""
    share = wording.percent(result.holds_frac)
    largest = largest_that_holds(result)
    if largest is not None:
        smaller = [d for d in result.designs if d.expert_bytes < largest.expert_bytes and d.hidden_frac is not None]
        failing = sum(not holds(design, result.holds_frac) for design in smaller)
        tail = f" {failing} of the {len(smaller)} designs with smaller ones miss it all the same." if failing else ""
        return (
            f"{shape(largest)} is the design with the largest experts for which attention takes as long as the reads "
            f"in at least {share} of the cases with a miss ({wording.percent(largest.hidden_frac or 0)}).{tail}"
        )
    reads = [design for design in result.designs if design.hidden_frac is not None]
    if not reads:
        return _why_no_reads(result)
    wanted = [design for design in reads if design.holds_from_bytes_per_s is not None]
    if not wanted:
        best = max(reads, key=lambda design: design.hidden_frac or 0)
        most = _hides(result, best.hidden_frac or 0)
        return f"{most} ({shape(best)}), and no storage up to the RAM's own bandwidth would do."
    best = min(wanted, key=lambda design: design.holds_from_bytes_per_s or 0)
    most = _hides(result, max(design.hidden_frac or 0 for design in reads))
    rate = format_rate(best.holds_from_bytes_per_s or 0)
    return (
        f"{most}. The design that asks least of the storage for it is "
        f"{shape(best)}: there it begins with a sequential read of {rate}."
    )


def is_simulated(design: Design) -> bool:
    """Whether the design can run and was simulated."""
    return design.verdict in ("resident", "streams")


def _attention(result: DesignResult) -> str:
    """Without prefetch nothing is hidden; what is told is what a prefetch would do."""
    return "Attention hides" if result.is_prefetched else "With a prefetch before it attention would hide"


def _hides(result: DesignResult, most_frac: float) -> str:
    if not most_frac:
        return f"{_attention(result)} none of the reads"
    return f"{_attention(result)} at most {wording.percent(most_frac)} of the cases with a miss"


def _why_no_reads(result: DesignResult) -> str:
    if any(is_simulated(design) for design in result.designs):
        return "All experts of each design that can run fit into the RAM cap."
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
    """How many designs reach the target, and the fastest; empty without one."""
    runs = [design for design in result.designs if design.tokens_per_s is not None]
    if not runs:
        return ""
    best = max(runs, key=lambda design: design.tokens_per_s.value if design.tokens_per_s else 0)
    assert best.tokens_per_s is not None
    fastest = f"The fastest is {shape(best)}: {wording.number(best.tokens_per_s.value)} tokens/s"
    fastest += f" ({wording.span(best.tokens_per_s)})"
    if result.target_tokens_per_s is None:
        return f"{fastest}."
    target = result.target_tokens_per_s
    n = sum(design.tokens_per_s is not None and design.tokens_per_s.value >= target for design in runs)
    return f"{n} of {len(result.designs)} designs reach {wording.goal(target)} tokens/s. {fastest}."


def design_question(result: DesignResult) -> str:
    """The question as one sentence."""
    _, device = wording.scenario_names(result.small_print)
    size = f" with {result.fixed}" if result.fixed else ""
    return f"How large may the experts of a model{size} be, so that {device} reads them while attention computes?"


def largest_that_holds(result: DesignResult) -> Design | None:
    """The design with the largest experts for which t_attention >= t_prefetch holds, None where it holds for none."""
    holding = [design for design in result.designs if holds(design, result.holds_frac)]
    return max(holding, key=lambda design: (design.expert_bytes, design.hidden_frac or 0), default=None)


def time(design: Design, seconds: float) -> str:
    """A time of a design that runs."""
    return format_seconds(seconds) if is_simulated(design) else ""


TERMINAL_CAPTION = (
    "attention, prefetch: mean t_attention and t_prefetch of the cases with a miss; holds: share of them in which "
    "attention takes at least as long; from: the storage from which it holds; all but tokens/s are predicted values "
    "without their interval, the page and --json have the cautious ones of holds and from"
)
DESIGN_CAPTION = (
    "t_attention: a layer's attention, from the known top-k to where the expert FFN could start; t_prefetch: from the "
    "same moment to the arrival of the last missing expert; both are means over the tokens and layers that miss an "
    "expert, at the predicted speeds. It holds where attention takes at least as long in enough of those cases; "
    "the second share and storage speed are those of the low end of the 80 % interval."
)


def picture_title(result: DesignResult) -> str:
    """The finding over the figure."""
    n = sum(holds(design, result.holds_frac) for design in result.designs)
    reads = sum(design.hidden_frac is not None for design in result.designs)
    if not reads:
        return "No design has to read an expert while it decodes"
    return f"Attention outlasts the reads in {n} of the {reads} designs that read experts"


def design_row(design: Design, holds_frac: float) -> dict[str, object]:
    """One line of the page's table."""
    reads, speed, no_locality = design.hidden_frac is not None, design.tokens_per_s, design.no_locality_tokens_per_s
    return {
        "runs": is_simulated(design),
        "recorded": design.is_recorded,
        "shape": shape(design),
        "n_experts": design.n_experts,
        "ffn_size": design.ffn_size,
        "top_k": design.top_k,
        "holds": holds_text(design, holds_frac).partition(",")[0],
        "hidden": "" if design.hidden_frac is None else wording.percent(design.hidden_frac),
        "hidden_low": "" if design.hidden_low_frac is None else wording.percent(design.hidden_low_frac),
        "expert": wording.size(design.expert_bytes),
        "n_params": format_params(design.n_params),
        "n_active": format_params(design.n_active_params),
        "hit_rate": wording.percent(design.hit_rate) if is_simulated(design) else "",
        "attention": time(design, design.t_attention_s),
        "prefetch": time(design, design.t_prefetch_s) if reads else "",
        "row_prefetch": time(design, design.row_prefetch_s),
        "verdict": holds_text(design, holds_frac),
        "holds_from": _rate(design.holds_from_bytes_per_s) if reads else "",
        "holds_safely_from": _rate(design.holds_safely_from_bytes_per_s) if reads else "",
        "speed": "" if speed is None else wording.number(speed.value),
        "span": "" if speed is None else wording.span(speed),
        "no_locality": "" if no_locality is None else wording.number(no_locality),
    }


def _rate(bytes_per_s: float | None) -> str:
    return "none" if bytes_per_s is None else format_rate(bytes_per_s)
