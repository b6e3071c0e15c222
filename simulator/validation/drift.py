"""Did the machine change while the grid ran? Repeats of one cell in time order, and the profile measured again."""

from collections.abc import Mapping, Sequence

import numpy as np

from hardware_profiles.schema import HardwareProfile, figures
from simulator.validation.cell_result import CellComparison
from simulator.validation.result import Drift, DriftPoint

FEWEST_POINTS = 3  # a line through two points has no error


def drift(
    cells: Sequence[CellComparison],
    before: HardwareProfile | None = None,
    after: HardwareProfile | None = None,
    spots: Mapping[str, float] | None = None,
) -> Drift:
    """
    Every run of a cell with repeats against its cell's median, in time order, and a line through them.

    The conditions cancel out of the ratio, so what is left is the machine's state and noise.  spots: see grid_drift.
    """
    points = sorted(
        (
            DriftPoint(
                run.order, cell.cell, run.repeat, run.measured_tokens_per_s / cell.measured_tokens_per_s, run.error_frac
            )
            for cell in cells
            for run in cell.runs
            if len(cell.runs) > 1
        ),
        key=lambda point: (point.order, point.cell, point.repeat),
    )
    slope, error = _line(points)
    return Drift(tuple(points), slope, error, reprobe(before, after), dict(spots or {}))


def reprobe(before: HardwareProfile | None, after: HardwareProfile | None) -> dict[str, float]:
    """Each measured figure that both profiles have: after / before."""
    if before is None or after is None:
        return {}
    first = {key: figure.value for key, figure in figures(before) if figure.kind == "measured"}
    second = {key: figure.value for key, figure in figures(after) if figure.kind == "measured"}
    return {key: second[key] / value for key, value in first.items() if key in second and value}


def _line(points: Sequence[DriftPoint]) -> tuple[float | None, float | None]:
    """Least-squares change of speed_ratio from the first to the last point's order, and its standard error."""
    if len(points) < FEWEST_POINTS:
        return None, None
    x = np.array([point.order for point in points], dtype=float)
    y = np.array([point.speed_ratio for point in points])
    centred, span = x - x.mean(), float(x.max() - x.min())
    weight = float((centred**2).sum())
    if weight == 0:
        return None, None
    slope = float((centred * (y - y.mean())).sum()) / weight
    residual = y - y.mean() - slope * centred
    error = float(np.sqrt((residual**2).sum() / (len(points) - 2) / weight))
    return slope * span, error * span
