"""The figures of a validation: predicted against measured, and the runs in time order, as PNG."""

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from PIL import Image

from reports.figure_style import (
    BLUE,
    GREY,
    INK,
    LIGHT_GREY,
    MUTED,
    ORANGE,
    VERMILION,
    WIDTH_IN,
    figure_style,
    new_axes,
)
from simulator.validation.cell_result import CellComparison
from simulator.validation.result import Drift, ValidationResult

CLASS_COLOUR = {"compute-bound": BLUE, "balanced": ORANGE, "storage-bound": VERMILION}
MARKERS = ("o", "s", "^", "D", "v", "P")  # one a model class
BAND_FRAC = 0.10  # the shaded band around predicted = measured
N_COLOURS = 128  # the palette and its edges against white; with fewer a rare colour becomes its neighbour
DPI = 110  # 770 pixels wide: a README shows no more


def scatter_png(result: ValidationResult) -> bytes:
    """
    Predicted against measured tokens/s on logarithmic axes, a mark a cell.

    With the 80 % interval and the spread of the cell's runs; crosses: the naive formula, where it lies on the scale.
    """
    with figure_style():
        figure, axes = new_axes(5.2)
        ends = _ends(result)
        axes.fill_between(
            ends,
            [end * (1 - BAND_FRAC) for end in ends],
            [end * (1 + BAND_FRAC) for end in ends],
            color=LIGHT_GREY,
            linewidth=0,
            label=f"within {100 * BAND_FRAC:.0f} %",
        )
        axes.plot(ends, ends, color=MUTED, linewidth=0.8)
        naive = [cell.naive_tokens_per_s for cell in result.cells]
        measured = [cell.measured_tokens_per_s for cell in result.cells]
        axes.plot(measured, naive, linestyle="none", marker="x", markersize=4, color=GREY, label="naive formula")
        models = sorted({cell.conditions.model_class for cell in result.cells})
        for index, model in enumerate(models):
            for name, colour in CLASS_COLOUR.items():
                chosen = [c for c in result.cells if (c.conditions.model_class, c.cell_class) == (model, name)]
                marker = MARKERS[index % len(MARKERS)]
                label = f"{name}, {model}" if len(models) > 1 else name
                _cells(axes, chosen, colour, marker, label)
        for set_scale, set_limits, axis in (
            (axes.set_xscale, axes.set_xlim, axes.xaxis),
            (axes.set_yscale, axes.set_ylim, axes.yaxis),
        ):
            set_scale("log")
            set_limits(ends)
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("measured decode tokens/s")
        axes.set_ylabel("predicted decode tokens/s, 80 % interval")
        axes.legend(loc="upper left")
        return _as_png(figure)


def _cells(axes: Axes, cells: list[CellComparison], colour: str, marker: str, label: str) -> None:
    if not cells:
        return
    x, y = [c.measured_tokens_per_s for c in cells], [c.predicted.value for c in cells]
    low, high = [c.predicted.low for c in cells], [c.predicted.high for c in cells]
    speeds = [[run.measured_tokens_per_s for run in c.runs] for c in cells]
    bars: dict[str, Any] = {"fmt": marker, "color": colour, "markersize": 5, "elinewidth": 0.9, "label": label}
    axes.errorbar(
        x,
        y,
        xerr=[
            [a - min(s) for a, s in zip(x, speeds, strict=True)],
            [max(s) - a for a, s in zip(x, speeds, strict=True)],
        ],
        yerr=[[v - e for v, e in zip(y, low, strict=True)], [e - v for v, e in zip(y, high, strict=True)]],
        **bars,
    )


def _ends(result: ValidationResult) -> tuple[float, float]:
    values = [
        value
        for cell in result.cells
        for value in (cell.measured_tokens_per_s, cell.predicted.low, cell.predicted.high)
    ]
    return min(values) / 1.15, max(values) * 1.15


def drift_png(drift: Drift) -> bytes:
    """
    The runs in time order.

    Above: a run's measured speed over the median of its cell's runs, with the line through them: what the machine did.
    Below: the error of its prediction, in which the conditions stay.
    """
    with figure_style():
        figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        orders = [point.order for point in drift.points]
        marks: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4}
        above.plot(orders, [point.speed_ratio - 1 for point in drift.points], color=BLUE, **marks)
        if drift.slope_frac is not None and orders:
            middle = sum(orders) / len(orders)
            mean = sum(point.speed_ratio - 1 for point in drift.points) / len(drift.points)
            ends = (min(orders), max(orders))
            slope = drift.slope_frac / max(1, ends[1] - ends[0])
            above.plot(ends, [mean + slope * (end - middle) for end in ends], color=INK, linewidth=1)
        below.plot(orders, [point.error_frac for point in drift.points], color=VERMILION, **marks)
        for axes, label in ((above, "measured speed over\nthe cell's median"), (below, "predicted / measured - 1")):
            axes.axhline(0, color=MUTED, linewidth=0.8)
            axes.set_ylabel(label)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        below.set_xlabel("run, in time order")
        return _as_png(figure)


def _as_png(figure: Figure) -> bytes:
    """Without version and date, so the same figure gives the same bytes; few colours, so that it can be kept in git."""
    drawn, kept = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(N_COLOURS).save(kept, format="png", optimize=True)
    return kept.getvalue()
