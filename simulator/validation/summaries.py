"""The errors of groups of cells: all and by class, and by what a trend would show in: threads and miss rate."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from simulator.validation.cell_result import CellComparison
from simulator.validation.error_sizes import typical_and_high
from simulator.validation.result import GroupSummary
from simulator.validation.tables import by_class

QUIET_NOISE_FRAC = 0.05  # a cell is quiet where its own runs spread by less than this
MISS_RATES = (0.0, 0.05, 0.15, 0.30, 0.60, 1.0)  # ends of the ranges of the trend


def summaries(cells: Sequence[CellComparison]) -> tuple[GroupSummary, ...]:
    """All cells and each class of them, each once as they are and once the quiet ones alone."""
    return tuple(
        _summary(name, quiet, [c for c in group if not quiet or is_quiet(c)])
        for name, group in by_class(cells).items()
        for quiet in (False, True)
    )


def trends(cells: Sequence[CellComparison]) -> tuple[GroupSummary, ...]:
    """The cells of each model class by threads and by measured miss rate; a pooled median may hide what these show."""
    groups: dict[str, list[CellComparison]] = {}
    for model in sorted({cell.conditions.model_class for cell in cells}):
        own = [cell for cell in cells if cell.conditions.model_class == model]
        for threads in sorted({cell.conditions.threads for cell in own}):
            name = f"{model}, {threads} thread{'s' if threads > 1 else ''}"
            groups[name] = [cell for cell in own if cell.conditions.threads == threads]
        for at, name in enumerate(_range_names()):
            groups[f"{model}, {name}"] = [cell for cell in own if _range_of(cell.miss_rate) == at]
    return tuple(_summary(name, False, group) for name, group in groups.items() if group)


def _range_names() -> list[str]:
    named = [f"{100 * low:.0f} to {100 * high:.0f} % miss" for low, high in pairwise(MISS_RATES)]
    return ["no miss", *named]


def _range_of(miss_rate: float) -> int:
    """0 without a miss, else 1 and up."""
    return int(np.searchsorted(MISS_RATES, miss_rate))


def is_quiet(cell: CellComparison) -> bool:
    """Whether a cell repeats well enough for its error to mean something."""
    return cell.noise_frac is not None and cell.noise_frac < QUIET_NOISE_FRAC


def _summary(name: str, quiet: bool, cells: list[CellComparison]) -> GroupSummary:
    if not cells:
        return GroupSummary(name, quiet, 0)
    errors = np.array([cell.error_frac for cell in cells])
    typical, high = typical_and_high(errors)
    naive = np.array([cell.naive_error_frac for cell in cells])
    single = np.abs([error for cell in cells for error in cell.run_errors])
    held_out = [abs(cell.held_out_error_frac) for cell in cells if cell.held_out_error_frac is not None]
    noises = [cell.noise_frac for cell in cells if cell.noise_frac is not None]
    return GroupSummary(
        group=name,
        quiet=quiet,
        n_cells=len(cells),
        median_abs_error_frac=typical,
        p90_abs_error_frac=float(np.quantile(np.abs(errors), 0.9)),
        high_abs_error_frac=high,
        mean_error_frac=float(errors.mean()),
        interval_coverage_frac=fmean(cell.in_interval for cell in cells),
        half_width_frac=median(math.sqrt(c.predicted.high / c.predicted.low) - 1 for c in cells),
        naive_median_abs_error_frac=float(np.median(np.abs(naive))),
        naive_p90_abs_error_frac=float(np.quantile(np.abs(naive), 0.9)),
        median_noise_frac=median(noises) if noises else None,
        coverage_with_noise_frac=fmean(cell.in_interval_with_noise for cell in cells),
        median_run_noise_frac=median(cell.run_noise_frac for cell in cells),
        held_out_median_abs_error_frac=median(held_out) if held_out else None,
        run_median_abs_error_frac=float(np.median(single)),
        run_p90_abs_error_frac=float(np.quantile(single, 0.9)),
    )
