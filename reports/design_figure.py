"""The figure of a design for a device: times and speeds over the bytes of one expert."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.design_wording import holds
from reports.figure_style import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, WIDTH_IN, as_svg, figure_style
from reports.wording import goal, round_bytes
from simulator.plan_result import Design, DesignResult

SERIES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (VERMILION, "v"), (SKY, "P"))


def design_figure(result: DesignResult) -> str:
    """
    SVG over the bytes of an expert: above, mean t_attention and t_prefetch of the cases with a miss; below, tokens/s
    with intervals.  A filled mark: t_attention >= t_prefetch holds.
    """
    with figure_style():
        figure = Figure(figsize=(WIDTH_IN, 5.6), layout="constrained")
        times, speeds = figure.subplots(2, 1, sharex=True, height_ratios=[1.15, 1])
        groups = _groups(result)
        for (name, designs), (colour, mark) in zip(groups.items(), _looks(len(groups)), strict=True):
            _design_times(times, designs, result.holds_frac, colour, mark, name)
            _design_speeds(speeds, designs, result.holds_frac, colour, mark)
        if result.target_tokens_per_s is not None:
            speeds.axhline(result.target_tokens_per_s, color=INK, linewidth=1, linestyle=":")
            at = (0.005, result.target_tokens_per_s)
            text = f"target {goal(result.target_tokens_per_s)}"
            speeds.annotate(text, at, xycoords=("axes fraction", "data"), ha="left", va="bottom", fontsize=8.5)
        times.set_yscale("log")
        times.set_ylabel("mean of cases with a miss, ms")
        times.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        times.yaxis.set_minor_formatter(NullFormatter())
        times.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 5, 7), numticks=16))
        speeds.set_ylabel("tokens/s")
        speeds.set_ylim(bottom=0)
        _size_axis(speeds, result)
        _design_legend(figure, times, list(groups))
        return as_svg(figure)


def _looks(n: int) -> list[tuple[str, str]]:
    """Colour and mark of each series; they repeat where there are more than there are colours."""
    return [SERIES[index % len(SERIES)] for index in range(n)]


def _groups(result: DesignResult) -> dict[str, list[Design]]:
    """Designs that run, one series where sizes are all that varies, else one a top-k or a number of experts."""
    runs = sorted((d for d in result.designs if d.tokens_per_s is not None), key=lambda d: d.expert_bytes)
    sizes = [design.expert_bytes for design in runs]
    if len(set(sizes)) == len(sizes):
        return {"": runs}
    found: dict[str, list[Design]] = {}
    by_top_k = len({design.top_k for design in runs}) <= len({design.n_experts for design in runs})
    for design in sorted(runs, key=lambda d: d.top_k if by_top_k else d.n_experts):
        name = f"top-{design.top_k}" if by_top_k else f"{design.n_experts} experts"
        found.setdefault(name, []).append(design)
    return {name: sorted(designs, key=lambda d: d.expert_bytes) for name, designs in found.items()}


def _design_times(axes: Axes, designs: list[Design], holds_frac: float, colour: str, mark: str, name: str) -> None:
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


def _design_legend(figure: Figure, axes: Axes, names: list[str]) -> None:
    def handle(**look: Any) -> Any:
        return axes.plot([], [], **look)[0]

    handles = [
        handle(color=INK, linestyle="--", label="t_attention"),
        handle(color=INK, linestyle="-", label="t_prefetch"),
        handle(color=INK, marker="o", linestyle="none", label="holds (or nothing is read)"),
        handle(color=INK, marker="o", markerfacecolor="white", linestyle="none", label="does not hold"),
    ]
    for name, (colour, mark) in zip(names, _looks(len(names)), strict=True):
        if name:
            handles.append(handle(color=colour, marker=mark, linestyle="none", label=name))
    figure.legend(handles=handles, loc="outside upper left", ncols=4)
