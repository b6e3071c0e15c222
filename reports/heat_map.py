"""The heat map: tokens/s over two inputs, RAM cap and storage speed where they vary."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reports.figure_style import GREY, INK, LIGHT_GREY, VERMILION, as_svg, figure_style, new_axes
from reports.grid import Grid
from reports.sweep_findings import is_beyond
from reports.sweep_inputs import STORAGE_READ
from reports.wording import number

Cell = tuple[int, int]
MAX_CELLS = 24  # side by side that hold a readable number
LARGE_HEIGHT_IN = 5.0  # of a map without numbers
TURNED_FROM = 8  # with more columns the labels are turned, and the intervals would not be readable


def has_intervals(grid: Grid) -> bool:
    """Whether the map of this grid is wide enough for an interval in each cell."""
    return len(grid.column_values) <= TURNED_FROM and not is_large(grid)


def is_large(grid: Grid) -> bool:
    """Whether the map has too many cells for numbers in them."""
    return max(len(grid.row_values), len(grid.column_values)) > MAX_CELLS


def heat_map(grid: Grid, target_tokens_per_s: float | None, now: Cell | None, top_tokens_per_s: float) -> str:
    """
    SVG of one grid: the number and its 80 % interval in each cell, hatched where it cannot run, a question mark where
    the device as bought has too little RAM for it.  A large grid is colours beside a scale, grey where it cannot run.

    With a target, cells whose value reaches it are bold inside a thick contour; now: the cell that gets a frame;
    top_tokens_per_s: the darkest colour, so that several maps share one scale.
    """
    n_rows, n_columns = len(grid.row_values), len(grid.column_values)
    with figure_style():
        norm = PowerNorm(0.6, 0, max(top_tokens_per_s, 1e-9))
        if is_large(grid):
            return as_svg(_large(grid, norm, target_tokens_per_s, now))
        figure, axes = new_axes(0.75 + 0.52 * n_rows + (0.4 if n_columns > TURNED_FROM else 0))
        good = grid.reaching(target_tokens_per_s) if target_tokens_per_s is not None else frozenset()
        font = min(10.5, 3 + 62 / n_columns)  # so that "12.3 to 45.6" fits into a cell
        for cell, row in sorted(grid.cells.items()):
            if row.verdict == "cannot_run":
                _blocked(axes, cell, font)
                continue
            interval = (row.tokens_per_s_low, row.tokens_per_s_high)
            colour = _colours()(norm(row.tokens_per_s))[:3]
            text = f"{number(row.tokens_per_s)}{' ?' if is_beyond(row) else ''}"
            _filled(axes, cell, colour, text, interval if has_intervals(grid) else None, cell in good, font)
        _contour(axes, good)
        _mark(axes, now)
        _finish(axes, grid)
        return as_svg(figure)


def _large(grid: Grid, norm: PowerNorm, target_tokens_per_s: float | None, now: Cell | None) -> Figure:
    """One picture of all cells, and the scale of its colours; a line where the target begins to be met."""
    figure, axes = new_axes(LARGE_HEIGHT_IN)
    speeds = np.full((len(grid.row_values), len(grid.column_values)), np.nan)
    for cell, row in grid.cells.items():
        speeds[cell] = np.nan if row.verdict == "cannot_run" else row.tokens_per_s
    colours = _colours().with_extremes(bad=GREY)
    image = axes.imshow(speeds, cmap=colours, norm=norm, aspect="auto", origin="lower", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="tokens/s")
    if target_tokens_per_s is not None:
        _contour(axes, grid.reaching(target_tokens_per_s))
    _finish(axes, grid)
    if now is not None:
        axes.plot(now[1], now[0], marker="o", markersize=9, color=VERMILION, markeredgecolor="white", zorder=5)
    return figure


def _colours() -> Colormap:
    """
    Light to dark in one hue: lightness alone carries the value, in print and for any colour vision.

    The darkest still leaves dark text a contrast of 5 to 1 and the contour visible.
    """
    return LinearSegmentedColormap.from_list("speed", ["#F7FAFC", "#D6E7F3", "#A3CBE5", "#5BA3D0"])


def _filled(
    axes: Axes,
    cell: Cell,
    colour: tuple[float, ...],
    speed: str,
    interval: tuple[float, float] | None,
    is_good: bool,
    font: float,
) -> None:
    y, x = cell
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
    weight = "bold" if is_good else "normal"
    _text(axes, x, y, 0.55 * font if interval else 0, speed, weight=weight, fontsize=font)
    if interval:
        text = f"{number(interval[0])} to {number(interval[1])}"
        _text(axes, x, y, -0.75 * font, text, fontsize=0.66 * font)


def _text(axes: Axes, x: float, y: float, up_points: float, text: str, **look: Any) -> None:
    """Centred text, moved up by points and not by a share of the cell, so that it looks alike in all grids."""
    axes.annotate(
        text, (x, y), xytext=(0, up_points), textcoords="offset points", ha="center", va="center", color=INK, **look
    )


def _blocked(axes: Axes, cell: Cell, font: float) -> None:
    y, x = cell
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=LIGHT_GREY, edgecolor=GREY, linewidth=0, hatch="////"))
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.5))
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
    axes.text(x, y, "cannot\nrun", ha="center", va="center", color=INK, fontsize=0.66 * font, bbox=box, linespacing=1.0)


def _contour(axes: Axes, good: frozenset[Cell]) -> None:
    """A thick line between the cells that reach the target and all others; none along the outer edge's inside."""
    for y, x in sorted(good):
        for neighbour, xs, ys in (
            ((y - 1, x), (x - 0.5, x + 0.5), (y - 0.5, y - 0.5)),
            ((y + 1, x), (x - 0.5, x + 0.5), (y + 0.5, y + 0.5)),
            ((y, x - 1), (x - 0.5, x - 0.5), (y - 0.5, y + 0.5)),
            ((y, x + 1), (x + 0.5, x + 0.5), (y - 0.5, y + 0.5)),
        ):
            if neighbour not in good:
                axes.plot(xs, ys, color=INK, linewidth=2.6, solid_capstyle="projecting", clip_on=False, zorder=3)


def _mark(axes: Axes, now: Cell | None) -> None:
    if now is None:
        return
    y, x = now
    axes.add_patch(Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, fill=False, edgecolor="white", linewidth=4, zorder=4))
    axes.add_patch(
        Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, fill=False, edgecolor=VERMILION, linewidth=2.2, zorder=5)
    )


def _finish(axes: Axes, grid: Grid) -> None:
    n_rows, n_columns = len(grid.row_values), len(grid.column_values)
    axes.set_xlim(-0.5, n_columns - 0.5)
    axes.set_ylim(-0.5, n_rows - 0.5)
    turn: dict[str, Any] = {"rotation": 45, "ha": "right"} if n_columns > TURNED_FROM else {}
    across, up = (range(0, n, -(-n // MAX_CELLS) if is_large(grid) else 1) for n in (n_columns, n_rows))
    axes.set_xticks(across, [grid.across.text(grid.column_values[x]) for x in across], **turn)
    axes.set_yticks(up, [grid.up.text(grid.row_values[y]) for y in up])
    axes.set_xlabel(f"{grid.across.name}, sequential" if grid.across is STORAGE_READ else grid.across.name)
    axes.set_ylabel(grid.up.name)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_facecolor("white")
