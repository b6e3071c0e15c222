"""
What a validation answers: predicted beside measured for every cell, and the figures over all cells.

An error is predicted / measured - 1, so above zero the prediction is too fast.  Times are in seconds per decode token
unless a name says otherwise.  Reports read these and run nothing.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from simulator.result import Interval
from simulator.validation.cell_json import cell_json
from simulator.validation.cell_result import CellComparison, Hindsight, Verdicts

SCHEMA_VERSION = 2  # 1 had a second prediction beside each, at the state of the machine
FEWEST_FOR_A_PERCENTILE = 10  # errors: the 90th percentile of fewer is nearly the largest, which is then told
VERDICTS = ("verdicts", "alike_verdicts", "clear_verdicts")
SIGNIFICANT_DIGITS = 4  # of every float in the JSON; measurements repeat to three at best


@dataclass(frozen=True)
class GroupSummary:
    """
    The errors of a group of cells; quiet: only those whose own spread is below the bound.

    Fractions are of tokens/s; high_abs_error_frac: the 90th percentile, of fewer than 10 cells the largest;
    half_width_frac: median over cells of sqrt(high / low) - 1 of the 80 % interval; run_*: of the single runs, whose
    errors do not cancel; None where the group is empty.
    """

    group: str
    quiet: bool
    n_cells: int
    median_abs_error_frac: float | None = None
    p90_abs_error_frac: float | None = None
    high_abs_error_frac: float | None = None
    mean_error_frac: float | None = None
    interval_coverage_frac: float | None = None
    half_width_frac: float | None = None
    naive_median_abs_error_frac: float | None = None
    naive_p90_abs_error_frac: float | None = None
    median_noise_frac: float | None = None
    coverage_with_noise_frac: float | None = None
    median_run_noise_frac: float | None = None
    held_out_median_abs_error_frac: float | None = None
    run_median_abs_error_frac: float | None = None
    run_p90_abs_error_frac: float | None = None


@dataclass(frozen=True)
class LeftOut:
    """
    The cells that have one value of one condition: our errors, and those of laws fitted on all other cells.

    Median and 90th percentile of the absolute error, of fewer than 10 cells the largest; law_*: None where too few
    cells are left to fit.
    """

    condition: str
    value: str
    n_cells: int
    n_fitted: int
    ours: tuple[float, float]
    law_miss_rate: tuple[float, float] | None
    law_read_s: tuple[float, float] | None


@dataclass(frozen=True)
class BoundaryRow:
    """
    How hard the verdicts of a group of cells are: pairs with a miss in cells that read beside attention.

    noise_frac: median over the runs of the standard deviation of ln(t_prefetch / t_attention) among alike rows;
    distance_frac: median over the runs of their median |ln(t_prefetch / t_attention)|; verdicts: what the prediction
    says on all pairs; alike_verdicts, hindsight: prediction and rule on the pairs that have enough alike in their run;
    clear_verdicts, clear_hindsight: both on those of them that are clear, within_noise_frac: share that is not; see
    hindsight.py.  None without a pair.
    """

    group: str
    n_cells: int
    noise_frac: float | None
    distance_frac: float | None
    within_noise_frac: float | None
    hindsight: Hindsight
    clear_hindsight: Hindsight
    verdicts: Verdicts
    alike_verdicts: Verdicts
    clear_verdicts: Verdicts

    def as_json(self) -> dict[str, Any]:
        """Figures and shares."""
        return asdict(self) | {name: getattr(self, name).as_json() for name in VERDICTS}


@dataclass(frozen=True)
class HeldOutRow:
    """
    A model predicted without its own shape: the ops that kept rows of it, and the median absolute errors of its cells
    with and without; None where its products and experts cannot do without.
    """

    model: str
    n_cells: int
    kept: tuple[str, ...]
    median_abs_error_frac: float
    held_out_median_abs_error_frac: float | None


@dataclass(frozen=True)
class PrefillRow:
    """
    Prompt to first logits of a cell: median measured, predicted with its interval, in seconds; error_frac: of the
    seconds, so above zero the prediction is too slow.
    """

    cell: str
    n_prompt: int
    predicted: Interval
    measured_s: float
    error_frac: float
    noise_frac: float | None
    in_interval: bool


@dataclass(frozen=True)
class DriftPoint:
    """A run by its place in time among all: its measured speed over its cell's median, and the prediction's error."""

    order: int
    cell: str
    repeat: int
    speed_ratio: float
    error_frac: float


@dataclass(frozen=True)
class Drift:
    """
    Whether the machine changed while the grid ran.

    slope_frac: change of speed from the first run to the last (0.05: 5 % faster at the end), by repeats of the same
    cell alone, with its standard error, None where too few repeats are left, see drift.py; reprobe: figures of the
    second profile over those of the first; spots: by spot check, how far the machine went from the probe, the standard
    deviation of the logarithm about zero.
    """

    points: tuple[DriftPoint, ...]
    slope_frac: float | None
    slope_error_frac: float | None
    reprobe: dict[str, float] = field(default_factory=dict)
    spots: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidationResult:
    """
    All cells and what they say together.

    groups: by class, trends: by threads and miss rate; boundary: of the cells that read beside attention, groups with a
    pair alone; rules: what each figure means; provenance: command line, machine, date and the like, name to text.
    """

    cells: tuple[CellComparison, ...]
    groups: tuple[GroupSummary, ...]
    trends: tuple[GroupSummary, ...]
    boundary: tuple[BoundaryRow, ...]
    held_out: tuple[HeldOutRow, ...]
    left_out: tuple[LeftOut, ...]
    prefill: tuple[PrefillRow, ...]
    n_boundary_cells: int
    drift: Drift
    rules: dict[str, str]
    provenance: dict[str, str]
    warnings: tuple[str, ...] = ()

    def group(self, name: str, *, quiet: bool = False) -> GroupSummary:
        """The summary of a group by its name."""
        return next(group for group in self.groups if (group.group, group.quiet) == (name, quiet))

    @property
    def verdicts(self) -> BoundaryRow | None:
        """The verdicts of all cells that read beside attention, None without a pair."""
        return next(iter(self.boundary), None)

    @property
    def counts_equal(self) -> bool:
        """Whether hits and misses are the same in every run of every cell."""
        return all(cell.counts_equal for cell in self.cells)

    @property
    def bytes_equal(self) -> bool:
        """Whether the bytes are the same in every run of every cell."""
        return all(cell.bytes_equal for cell in self.cells)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; clear_balanced_frac: the balanced accuracy on clear pairs."""
        every, verdicts = self.group("all"), self.verdicts
        document = {
            "schema_version": SCHEMA_VERSION,
            "n_cells": len(self.cells),
            "n_runs": sum(len(cell.runs) for cell in self.cells),
            "counts_equal": self.counts_equal,
            "bytes_equal": self.bytes_equal,
            "median_abs_error_frac": every.median_abs_error_frac,
            "p90_abs_error_frac": every.p90_abs_error_frac,
            "clear_balanced_frac": None if verdicts is None else verdicts.clear_verdicts.balanced_frac,
            "interval_coverage_frac": every.interval_coverage_frac,
            "n_boundary_cells": self.n_boundary_cells,
            "groups": [asdict(group) for group in self.groups],
            "trends": [asdict(group) for group in self.trends],
            "verdicts": [row.as_json() for row in self.boundary],
            "without_own_shape": [asdict(row) for row in self.held_out],
            "left_out": [asdict(row) for row in self.left_out],
            "prefill": [asdict(row) for row in self.prefill],
            "drift": {
                "slope_frac": self.drift.slope_frac,
                "slope_error_frac": self.drift.slope_error_frac,
                "reprobe": self.drift.reprobe,
                "spots": self.drift.spots,
            },
            "rules": self.rules,
            "provenance": self.provenance,
            "warnings": list(self.warnings),
            "cells": [cell_json(cell) for cell in self.cells],
        }
        return {key: _rounded(value) for key, value in document.items()}


def _rounded(value: Any) -> Any:
    """Floats to SIGNIFICANT_DIGITS, tuples as lists."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
