"""The figure of a design for a device: times and speeds over the bytes of one expert."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.design_wording import holds
from reports.figure_style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WIDTH_IN,
    as_svg,
    figure_style,
    in_sight,
)
from reports.wording import goal, round_bytes
from simulator.plan_result import Design, DesignResult

SERIES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (VERMILION, "v"), (SKY, "P"))
FEW_TIMES = 30  # between the least and the largest time: beyond it the numbers of the axis would run into each other


def design_figure(result: DesignResult) -> str:
    """
    SVG over the bytes of an expert: above, mean t_attention and t_prefetch of the cases with a miss, where there are
    any; below, tokens/s with intervals.  A filled mark: t_attention >= t_prefetch holds.
    """
    has_reads = any(design.hidden_frac is not None for design in result.designs)
    with figure_style():
        figure = Figure(figsize=(WIDTH_IN, 5.6 if has_reads else 3.0), layout="constrained")
        panels = figure.subplots(2 if has_reads else 1, 1, sharex=True, squeeze=False)[:, 0].tolist()
        groups = _groups(result)
        for designs, (colour, mark) in zip(groups.values(), _looks(len(groups)), strict=True):
            if has_reads:
                _design_times(panels[0], designs, result.holds_frac, colour, mark)
            _design_speeds(panels[-1], designs, result.holds_frac, colour, mark)
        if has_reads:
            _time_axis(panels[0])
        _speed_axis(panels[-1], result)
        _size_axis(panels[-1], result)
        _design_legend(figure, panels[0], list(groups), has_reads)
        return as_svg(figure)


def _time_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.set_ylabel("mean of cases with a miss, ms")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    ticks = (1, 1.5, 2, 3, 5, 7) if high < FEW_TIMES * low else (1, 3)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=ticks, numticks=16))


def _speed_axis(axes: Axes, result: DesignResult) -> None:
    target_tokens_per_s = result.target_tokens_per_s
    top = max(design.tokens_per_s.high for design in result.designs if design.tokens_per_s is not None)
    if target_tokens_per_s is not None and in_sight(target_tokens_per_s, top):
        axes.axhline(target_tokens_per_s, color=INK, linewidth=1, linestyle=":")
        at, text = (1.01, target_tokens_per_s), f"target\n{goal(target_tokens_per_s)}"
        axes.annotate(text, at, xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=8.5)
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)


def _looks(n: int) -> list[tuple[str, str]]:
    """Colour and mark of each series; they repeat where there are more than there are colours."""
    return [SERIES[index % len(SERIES)] for index in range(n)]


def _groups(result: DesignResult) -> dict[str, list[Design]]:
    """
    Designs that run as series in which every size of an expert stands once.

    One series where sizes are all that varies, else one a top-k or a number of experts, or one of each pair.
    """
    runs = sorted((d for d in result.designs if d.tokens_per_s is not None), key=lambda d: d.expert_bytes)
    if _has_each_size_once(runs):
        return {"": runs}
    tried = [_by_name(runs, *by) for by in ((True, False), (False, True), (True, True))]
    good = [series for series in tried if all(map(_has_each_size_once, series.values()))]
    return min(good, key=len)


def _has_each_size_once(designs: list[Design]) -> bool:
    return len({design.expert_bytes for design in designs}) == len(designs)


def _by_name(designs: list[Design], by_top_k: bool, by_n_experts: bool) -> dict[str, list[Design]]:
    """Series named by what they share, ascending; within each the designs stay in their order."""
    found: dict[str, list[Design]] = {}
    for design in sorted(designs, key=lambda d: (by_top_k and d.top_k, by_n_experts and d.n_experts, d.expert_bytes)):
        words = [f"top-{design.top_k}"] * by_top_k + [f"{design.n_experts} experts"] * by_n_experts
        found.setdefault(", ".join(words), []).append(design)
    return found


def _design_times(axes: Axes, designs: list[Design], holds_frac: float, colour: str, mark: str) -> None:
    reads = [design for design in designs if design.hidden_frac is not None]
    x = [design.expert_bytes for design in reads]
    axes.plot(x, [1e3 * design.t_attention_s for design in reads], "--_", color=colour, linewidth=1.4)
    axes.plot(x, [1e3 * design.t_prefetch_s for design in reads], "-", color=colour, linewidth=1.4)
    for design in reads:
        _mark(axes, design.expert_bytes, 1e3 * design.t_prefetch_s, holds(design, holds_frac), colour, mark)


def _design_speeds(axes: Axes, designs: list[Design], holds_frac: float, colour: str, mark: str) -> None:
    x = [design.expert_bytes for design in designs]
    speed = [design.tokens_per_s for design in designs]
    values = [interval.value for interval in speed if interval]
    lows = [interval.value - interval.low for interval in speed if interval]
    highs = [interval.high - interval.value for interval in speed if interval]
    axes.errorbar(x, values, yerr=(lows, highs), color=colour, linewidth=1.2, elinewidth=1, capsize=2.5)
    for design, value in zip(designs, values, strict=True):
        filled = design.hidden_frac is None or holds(design, holds_frac)
        _mark(axes, design.expert_bytes, value, filled, colour, mark)


def _mark(axes: Axes, x: float, y: float, filled: bool, colour: str, mark: str) -> None:
    axes.plot(
        x, y, mark, markersize=6.5, markeredgecolor=colour, markerfacecolor=colour if filled else "white", zorder=3
    )


def _size_axis(axes: Axes, result: DesignResult) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n_bytes, _: round_bytes(n_bytes)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    sizes = [design.expert_bytes for design in result.designs if design.tokens_per_s is not None]
    axes.set_xlim(min(sizes) / 1.25, max(sizes) * 1.25)
    axes.set_xlabel("bytes of one expert")


def _design_legend(figure: Figure, axes: Axes, names: list[str], has_reads: bool) -> None:
    def handle(**look: Any) -> Any:
        return axes.plot([], [], **look)[0]

    handles = []
    if has_reads:
        handles = [
            handle(color=INK, linestyle="--", label="t_attention"),
            handle(color=INK, linestyle="-", label="t_prefetch"),
            handle(color=INK, marker="o", linestyle="none", label="holds (or nothing is read)"),
            handle(color=INK, marker="o", markerfacecolor="white", linestyle="none", label="does not hold"),
        ]
    for name, (colour, mark) in zip(names, _looks(len(names)), strict=True):
        if name:
            handles.append(handle(color=colour, marker=mark, linestyle="none", label=name))
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=4)
