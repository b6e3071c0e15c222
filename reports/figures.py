"""The figures of one result: the overlap per layer, where a token's time goes, and what lies where in memory."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from moeplan.quantity import format_seconds
from reports.figure_style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WIDTH_IN,
    YELLOW,
    as_svg,
    figure_style,
    new_axes,
)
from reports.memory_wording import memory_rows
from reports.wording import OP, percent, round_bytes, token_s
from simulator.result import LayerResult, MemoryResult, Result

OP_COLOUR = {
    "attention": BLUE,
    "expert_ffn": GREEN,
    "dense_ffn": YELLOW,
    "lm_head": SKY,
    "router": PURPLE,
    "embedding": GREY,
}
PART_COLOUR = {
    "dense part": BLUE,
    "experts": GREEN,
    "mapped file": GREEN,
    "KV": SKY,
    "read buffers": ORANGE,
    "activations": PURPLE,
}
WAIT_LOOK: dict[str, Any] = {
    "facecolor": "#F9DCC9",
    "edgecolor": VERMILION,
    "hatch": "////",
    "linewidth": 0.6,
}  # waiting, everywhere


def layer_figure(layers: tuple[LayerResult, ...], *, on_demand: bool = False) -> str:
    """
    SVG per MoE layer: above, t_attention with the bubble on top and t_prefetch as a mark; below, how tokens fared.

    The bubble is the mean of max(0, t_prefetch - t_attention), so its top is where the expert FFN starts on average
    and may lie above the mean t_prefetch.  on_demand: no prefetch runs, so no miss is hidden.
    """
    with figure_style():
        if not any(layer.no_miss_frac < 1 for layer in layers):
            figure, times = new_axes(2.7)
            _layer_times(times, layers)
            _layer_axis(times, layers)
        else:
            figure = Figure(figsize=(WIDTH_IN, 4.7), layout="constrained")
            times, shares = figure.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
            _layer_times(times, layers)
            _layer_shares(shares, layers, on_demand)
            _layer_axis(shares, layers)
        return as_svg(figure)


def _layer_times(axes: Axes, layers: tuple[LayerResult, ...]) -> None:
    x = [layer.layer for layer in layers]
    unit_s, unit = _time_unit(max(max(layer.t_attention_s + layer.bubble_s, layer.t_prefetch_s) for layer in layers))
    attention = [layer.t_attention_s / unit_s for layer in layers]
    axes.bar(x, attention, width=0.8, color=BLUE, label="t_attention")
    if any(layer.bubble_s for layer in layers):
        bubble = [layer.bubble_s / unit_s for layer in layers]
        axes.bar(x, bubble, width=0.8, bottom=attention, label="bubble (waits)", **WAIT_LOOK)
    if any(layer.t_prefetch_s for layer in layers):
        prefetch = [layer.t_prefetch_s / unit_s for layer in layers]
        size = min(11.0, 260 / (max(x) - min(x) + 1))
        marks: dict[str, Any] = {"marker": "_", "markersize": size, "markeredgewidth": 2, "color": INK}
        axes.plot(x, prefetch, linestyle="none", label="t_prefetch", **marks)
    axes.set_ylabel(f"mean per token, {unit}")
    axes.set_ylim(bottom=0)
    _legend_above(axes)


def _layer_shares(axes: Axes, layers: tuple[LayerResult, ...], on_demand: bool) -> None:
    x = [layer.layer for layer in layers]
    bottom = [0.0] * len(layers)
    looks = ({"color": "#CBD3D9"}, {"color": SKY}, WAIT_LOOK)
    names = ("no miss", "miss, hidden by attention", "miss, waits")
    shares = zip(*[_shares(layer, on_demand) for layer in layers], strict=True)
    for name, look, heights in zip(names, looks, shares, strict=True):
        axes.bar(x, heights, width=0.8, bottom=bottom, label=name, **look)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_ylabel("decode tokens")
    _legend_above(axes)


def _shares(layer: LayerResult, on_demand: bool) -> tuple[float, float, float]:
    """Shares of the decode tokens: without a miss, with a hidden one, with one that waits (on demand all wait)."""
    missed = 1 - layer.no_miss_frac if layer.hidden_frac is not None else 0.0
    hidden_frac = 0.0 if on_demand else layer.hidden_frac or 0.0
    return layer.no_miss_frac, missed * hidden_frac, missed * (1 - hidden_frac)


def _layer_axis(axes: Axes, layers: tuple[LayerResult, ...]) -> None:
    axes.set_xlabel("MoE layer")
    axes.set_xlim(layers[0].layer - 0.7, layers[-1].layer + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))


def time_figure(result: Result) -> str:
    """SVG: one stacked bar of the mean seconds of a decode token, op by op; waiting is hatched."""
    with figure_style():
        figure, axes = new_axes(1.75)
        total_s = token_s(result)
        unit_s, unit = _time_unit(total_s)
        left = 0.0
        for op in _ops(result):
            seconds = result.seconds_per_token[op]
            name = "wait for pages" if op == "wait" and result.page_cache is not None else OP.get(op, op)
            label = f"{name} {format_seconds(seconds)} ({percent(seconds / total_s)})"
            look = WAIT_LOOK if op == "wait" else {"facecolor": OP_COLOUR.get(op, GREY)}
            _segment(axes, 0, left, seconds / unit_s, look, label)
            left += seconds / unit_s
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, left)
        axes.set_xlabel(f"mean time of a decode token, {unit}")
        _legend_on_top(figure, 3)
        return as_svg(figure)


def _ops(result: Result) -> list[str]:
    """The ops that take time, in the order of a token; ops that this file does not know come last."""
    known = [op for op in OP if result.seconds_per_token.get(op, 0.0) > 0]
    return known + sorted(op for op, s in result.seconds_per_token.items() if op not in OP and s > 0)


def memory_figure(memory: MemoryResult) -> str:
    """SVG: two stacked bars on one scale, the file on storage and the resident bytes against the RAM cap."""
    with figure_style():
        figure, axes = new_axes(2.15)
        unit_bytes, unit = _byte_unit(max(memory.storage_bytes, memory.resident_bytes, memory.ram_cap_bytes))
        left = [0.0, 0.0]  # storage, resident
        for row in memory_rows(memory):
            if not row.resident_bytes and not row.storage_bytes:
                continue
            look = {"facecolor": PART_COLOUR[row.name]}
            for y, n_bytes in ((1, row.resident_bytes), (0, row.storage_bytes or 0)):
                _segment(axes, y, left[y], n_bytes / unit_bytes, look, row.name if y else None)
                left[y] += n_bytes / unit_bytes
        _cap_line(axes, memory.ram_cap_bytes / unit_bytes, round_bytes(memory.ram_cap_bytes))
        _bar_end(axes, 0, left[0], f"{memory.storage_bytes / unit_bytes:.2f} {unit}")
        _bar_end(axes, 1, left[1], f"{memory.resident_bytes / unit_bytes:.2f} {unit}")
        axes.set_yticks([0, 1], ["on storage", "resident"])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, max(*left, memory.ram_cap_bytes / unit_bytes) * 1.14)
        axes.set_ylim(-0.5, 1.75)
        axes.set_xlabel(unit)
        _legend_on_top(figure, 5)
        return as_svg(figure)


def _segment(axes: Axes, y: int, left: float, width: float, look: dict[str, Any], label: str | None) -> None:
    axes.barh(y, width, left=left, height=0.62, label=label, **look)


def _cap_line(axes: Axes, x: float, text: str) -> None:
    axes.plot([x, x], [0.58, 1.45], color=INK, linewidth=2, solid_capstyle="butt")
    axes.text(x, 1.5, f"RAM cap {text}", ha="center", va="bottom", fontsize=9, weight="bold")


def _bar_end(axes: Axes, y: int, x: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9)


def _legend_above(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)


def _legend_on_top(figure: Figure, n_columns: int) -> None:
    """For legends wider than their axes, which would otherwise be squeezed."""
    figure.legend(loc="outside upper left", ncols=n_columns)


def _time_unit(most_s: float) -> tuple[float, str]:
    return (1.0, "s") if most_s >= 2 else (1e-3, "ms") if most_s >= 2e-3 else (1e-6, "us")


def _byte_unit(most_bytes: float) -> tuple[float, str]:
    return (2.0**30, "GiB") if most_bytes >= 2**30 else (2.0**20, "MiB") if most_bytes >= 2**20 else (2.0**10, "KiB")
