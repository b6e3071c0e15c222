"""The speeds of a sweep as bars with their intervals, or as lines over one input; bounds are dashed or hatched."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.figure_style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LIGHT_GREY,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WIDTH_IN,
    YELLOW,
    as_svg,
    figure_style,
    in_sight,
)
from reports.sweep_charts import Chart, Series
from reports.wording import goal, number

LOOKS = (
    (BLUE, "o"),
    (ORANGE, "s"),
    (GREEN, "^"),
    (VERMILION, "D"),
    (PURPLE, "v"),
    (SKY, "P"),
    (INK, "X"),
    (YELLOW, "*"),
)
MAX_TICKS = 9
LEGEND_WIDTH = 90  # characters beside each other
PAPER: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1}
LABEL_WIDTH = 52  # characters of a bar's name


def chart_figure(chart: Chart, target_tokens_per_s: float | None = None) -> str:
    """SVG of a chart; a target is a thin line across it."""
    with figure_style():
        figure = _bar_figure(chart, target_tokens_per_s) if chart.across is None else _line_figure(chart)
        if chart.across is not None and target_tokens_per_s is not None:
            _target(figure.axes[0], target_tokens_per_s, is_bars=False)
        return as_svg(figure)


def _line_figure(chart: Chart) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for place, series in enumerate(chart.series):
        _line(axes, chart.places, series, *LOOKS[place % len(LOOKS)], has_interval=len(chart.series) == 1)
    ticks = _ticks(chart.places)
    axes.set_xticks([chart.places[tick] for tick in ticks], [chart.labels[tick] for tick in ticks])
    axes.margins(x=0.04)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.across.name if chart.across else "")
    axes.set_ylabel("tokens/s")
    axes.grid(axis="y", color=LIGHT_GREY)
    if len(chart.series) > 1:
        longest = max(len(_name(series.name)) for series in chart.series)
        figure.legend(loc="outside upper left", ncols=max(1, min(4, LEGEND_WIDTH // (longest + 6))))
    return figure


def _ticks(places: tuple[float, ...]) -> list[int]:
    """The places whose labels have room, from the first on."""
    found, room = [0], (places[-1] - places[0]) / MAX_TICKS
    for index, place in enumerate(places):
        if place - places[found[-1]] > room * (1 - 1e-9):
            found.append(index)
    return found


def _line(
    axes: Axes, places: tuple[float, ...], series: Series, colour: str, marker: str, *, has_interval: bool
) -> None:
    pairs = zip(places, series.rows, strict=True)
    known = [(x, row) for x, row in pairs if row is not None and row.verdict != "cannot_run"]
    x, speeds = [place for place, _ in known], [row.tokens_per_s for _, row in known]
    if has_interval:
        low, high = [row.tokens_per_s_low for _, row in known], [row.tokens_per_s_high for _, row in known]
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, label="80 % interval")
    look: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"} if series.is_bound else {"linestyle": "-"}
    axes.plot(x, speeds, color=colour, marker=marker, markersize=5, linewidth=1.8, label=_name(series.name), **look)


def _bar_figure(chart: Chart, target_tokens_per_s: float | None) -> Figure:
    rows = chart.series[0].rows
    figure = Figure(figsize=(WIDTH_IN, 0.8 + 0.34 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for y, row in enumerate(rows):
        if row is None or row.verdict == "cannot_run":
            axes.annotate("cannot run", (0, y), xytext=(4, 0), textcoords="offset points", va="center", color=MUTED)
            continue
        look: dict[str, Any] = (
            {"facecolor": "white", "edgecolor": GREY, "hatch": "////"} if row.is_upper_bound else {"color": SKY}
        )
        axes.barh(y, row.tokens_per_s, height=0.62, **look)
        low, high = row.tokens_per_s_low, row.tokens_per_s_high
        axes.plot([low, high], [y, y], color=INK, linewidth=1.2, solid_capstyle="butt")
        text = number(row.tokens_per_s)
        where: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "zorder": 5}
        axes.annotate(text, (high, y), fontsize=9, bbox=PAPER, **where)  # the target's line passes behind it
    axes.set_yticks(range(len(rows)), [_name(label) for label in chart.labels])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("tokens/s; thin line: 80 % interval")
    if target_tokens_per_s is not None:
        _target(axes, target_tokens_per_s, is_bars=True)
    return figure


def _target(axes: Axes, target_tokens_per_s: float, *, is_bars: bool) -> None:
    top = (axes.get_xlim() if is_bars else axes.get_ylim())[1]
    if not in_sight(target_tokens_per_s, top):
        return
    if target_tokens_per_s > top:
        stretch = axes.set_xlim if is_bars else axes.set_ylim
        stretch(0, 1.05 * target_tokens_per_s)
    draw = axes.axvline if is_bars else axes.axhline
    draw(target_tokens_per_s, color=VERMILION, linewidth=1.2, linestyle=":")
    at = (target_tokens_per_s, 1.0) if is_bars else (1.0, target_tokens_per_s)
    frame = axes.get_xaxis_transform() if is_bars else axes.get_yaxis_transform()
    place: dict[str, Any] = {"ha": "center", "va": "bottom"} if is_bars else {"ha": "right", "va": "bottom"}
    axes.text(*at, f"target {goal(target_tokens_per_s)}", transform=frame, color=VERMILION, fontsize=9, **place)


def _name(text: str) -> str:
    """A name as the figures' font can draw it: what a person typed may hold anything."""
    drawn = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return drawn if len(drawn) <= LABEL_WIDTH else f"...{drawn[3 - LABEL_WIDTH :]}"
