"""
Did the machine change while the grid ran?  Repeats of one cell in time order, and the profile measured again.

The line through the runs has a height of its own for each cell (fixed effects), so that only repeats of one and the
same cell are compared: with y = ln(measured speed) and x = place in time, both less their means over the cell's runs,

    slope = sum(x y) / sum(x^2)     variance = sum(residual^2) / (runs - cells - 1) / sum(x^2)
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hardware_profiles.schema import HardwareProfile, figures
from simulator.validation.cell_result import CellComparison
from simulator.validation.result import Drift, DriftPoint


def drift(
    cells: Sequence[CellComparison],
    before: HardwareProfile | None = None,
    after: HardwareProfile | None = None,
    spots: Mapping[str, float] | None = None,
) -> Drift:
    """
    Every run of a cell with repeats against its cell's median, in time order, and a line through them.

    The conditions cancel, so what is left is the machine's state and noise.  spots: see grid_drift.
    """
    times = sorted((run.started_at, run.order) for cell in cells for run in cell.runs)
    points = []
    for cell in cells:
        for run in cell.runs if len(cell.runs) > 1 else ():
            at, ratio = times.index((run.started_at, run.order)), run.measured_tokens_per_s / cell.measured_tokens_per_s
            points.append(DriftPoint(at, cell.cell, run.repeat, ratio, run.error_frac))
    points.sort(key=lambda point: (point.order, point.cell, point.repeat))
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
    """Change of speed from the first to the last point's order, and its standard error; see the top of this file."""
    cells = {name: [point for point in points if point.cell == name] for name in dict.fromkeys(p.cell for p in points)}
    x = np.concatenate([_centred([point.order for point in same]) for same in cells.values()] or [np.empty(0)])
    y = np.concatenate([_centred(np.log([p.speed_ratio for p in same])) for same in cells.values()] or [np.empty(0)])
    weight, n_free = float((x**2).sum()), len(points) - len(cells) - 1
    if n_free < 1 or weight == 0:
        return None, None
    slope = float((x * y).sum()) / weight
    error = float(np.sqrt(((y - slope * x) ** 2).sum() / n_free / weight))
    span = max(point.order for point in points) - min(point.order for point in points)
    return float(np.expm1(slope * span)), error * span


def _centred(values: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    return array - array.mean()
