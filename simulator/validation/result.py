"""
What a validation answers: predicted beside measured for every cell, and the figures over all cells.

An error is predicted / measured - 1, so above zero the prediction is too fast.  Times are in seconds per decode token
unless a name says otherwise.  Reports read these and run nothing.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from simulator.result import Interval
from simulator.validation.cell_json import cell_json, short_json
from simulator.validation.cell_result import Ceiling, CellComparison, Verdicts

SCHEMA_VERSION = 1
SIGNIFICANT_DIGITS = 4  # of every float in the JSON; measurements repeat to three at best


@dataclass(frozen=True)
class GroupSummary:
    """
    The errors of a group of cells; quiet: only those whose own spread is below the bound.

    Fractions are of tokens/s; run_*: of the single runs, whose errors do not cancel; None where the group is empty.
    """

    group: str
    quiet: bool
    n_cells: int
    median_abs_error_frac: float | None
    p90_abs_error_frac: float | None
    mean_error_frac: float | None
    interval_coverage_frac: float | None
    naive_median_abs_error_frac: float | None
    naive_p90_abs_error_frac: float | None
    median_noise_frac: float | None
    coverage_with_noise_frac: float | None
    median_run_noise_frac: float | None
    held_out_median_abs_error_frac: float | None
    run_median_abs_error_frac: float | None
    run_p90_abs_error_frac: float | None


@dataclass(frozen=True)
class LeftOut:
    """
    The cells that have one value of one condition: our errors, and those of laws fitted on all other cells.

    ours_at_state: our errors at the machine's state, None without spot checks.  law_*: median and 90th percentile of
    the absolute error, None where too few cells are left to fit.
    """

    condition: str
    value: str
    n_cells: int
    n_fitted: int
    ours: tuple[float, float]
    law_miss_rate: tuple[float, float] | None
    law_bytes: tuple[float, float] | None
    law_read_s: tuple[float, float] | None
    ours_at_state: tuple[float, float] | None = None


@dataclass(frozen=True)
class BoundaryRow:
    """
    How hard the verdicts of a group of cells are: pairs with a miss in cells that read beside attention.

    noise_frac: median over the runs of the standard deviation of ln(t_prefetch / t_attention) among alike rows;
    distance_frac: median over the runs of their median |ln(t_prefetch / t_attention)|; within_noise_frac: share of the
    pairs that are not clear; ceiling, clear_ceiling: the best that could be told; verdicts, clear_verdicts: what the
    prediction says.  None without a pair.
    """

    group: str
    n_cells: int
    noise_frac: float | None
    distance_frac: float | None
    within_noise_frac: float | None
    ceiling: Ceiling
    clear_ceiling: Ceiling
    verdicts: Verdicts
    clear_verdicts: Verdicts

    def as_json(self) -> dict[str, Any]:
        """Figures and shares."""
        return asdict(self) | {name: getattr(self, name).as_json() for name in ("verdicts", "clear_verdicts")}


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
    """Prompt to first logits of a cell: median measured, predicted with its interval, in seconds."""

    cell: str
    n_prompt: int
    predicted: Interval
    measured_s: float
    error_frac: float
    noise_frac: float | None
    in_interval: bool


@dataclass(frozen=True)
class DriftPoint:
    """A run in time order: its measured speed over its cell's median, and the prediction's error."""

    order: int
    cell: str
    repeat: int
    speed_ratio: float
    error_frac: float


@dataclass(frozen=True)
class Drift:
    """
    Whether the machine changed while the grid ran.

    slope_frac: change of speed from the first run to the last, by a line through speed_ratio (0.05: 5 % faster at the
    end), with its standard error, None below three repeated runs; reprobe: figures of the profile measured after the
    last cell over those before the first; spots: by spot check, how far the machine went from the probe, the standard
    deviation of the logarithm about zero.
    """

    points: tuple[DriftPoint, ...]
    slope_frac: float | None
    slope_error_frac: float | None
    reprobe: dict[str, float] = field(default_factory=dict)
    spots: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """All cells under one of the two predictions, and what they say together."""

    cells: tuple[CellComparison, ...]
    groups: tuple[GroupSummary, ...]
    prefill: tuple[PrefillRow, ...]
    verdicts: Verdicts
    clear_verdicts: Verdicts
    boundary_verdicts: Verdicts
    boundary: tuple[BoundaryRow, ...] = ()
    held_out: tuple[HeldOutRow, ...] = ()

    def group(self, name: str, *, quiet: bool) -> GroupSummary:
        """The summary of a group by its name."""
        return next(group for group in self.groups if (group.group, group.quiet) == (name, quiet))

    def summary_json(self) -> dict[str, Any]:
        """The figures of the contract, and what stands behind them."""
        every = self.group("all", quiet=False)
        return {
            "median_abs_error_frac": every.median_abs_error_frac,
            "p90_abs_error_frac": every.p90_abs_error_frac,
            "verdict_agreement_frac": self.clear_verdicts.balanced_frac,
            "interval_coverage_frac": every.interval_coverage_frac,
            "verdicts": {
                "all": self.verdicts.as_json(),
                "clear": self.clear_verdicts.as_json(),
                "boundary_cells": self.boundary_verdicts.as_json(),
            },
            "groups": [asdict(group) for group in self.groups],
            "boundary": [row.as_json() for row in self.boundary],
            "without_own_shape": [asdict(row) for row in self.held_out],
            "prefill": [asdict(row) for row in self.prefill],
        }


@dataclass(frozen=True)
class ValidationResult:
    """
    All cells and what they say together.

    forecast: predicted from the profile alone; at_state: the same cells predicted at the machine's state around each
    run, None where no spot checks were taken.  provenance: command line, machine, date and the like, name to text.
    """

    forecast: View
    at_state: View | None
    left_out: tuple[LeftOut, ...]
    n_boundary_cells: int
    drift: Drift
    rules: dict[str, str]
    provenance: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[CellComparison, ...]:
        """The cells of the forecast, which are all."""
        return self.forecast.cells

    @property
    def views(self) -> dict[str, View]:
        """The predictions that were made, by name."""
        return {"forecast": self.forecast} | ({} if self.at_state is None else {"at state": self.at_state})

    @property
    def sharpest(self) -> View:
        """The prediction that tells most of the model and least of the machine's drift."""
        return self.forecast if self.at_state is None else self.at_state

    def cell_at_state(self, name: str) -> CellComparison | None:
        """A cell under the prediction at the machine's state."""
        cells = () if self.at_state is None else self.at_state.cells
        return next((cell for cell in cells if cell.cell == name), None)

    @property
    def counts_equal(self) -> bool:
        """Whether hits and misses are the same in every run of every cell."""
        return all(cell.counts_equal for cell in self.cells)

    @property
    def bytes_equal(self) -> bool:
        """Whether the bytes are the same in every run of every cell."""
        return all(cell.bytes_equal for cell in self.cells)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; the headline errors are the forecast's over all cells, `at_state` has the others."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "n_cells": len(self.cells),
            "n_runs": sum(len(cell.runs) for cell in self.cells),
            "counts_equal": self.counts_equal,
            "bytes_equal": self.bytes_equal,
            **self.forecast.summary_json(),
            "at_state": None if self.at_state is None else self.at_state.summary_json(),
            "n_boundary_cells": self.n_boundary_cells,
            "left_out": [asdict(row) for row in self.left_out],
            "drift": {
                "slope_frac": self.drift.slope_frac,
                "slope_error_frac": self.drift.slope_error_frac,
                "reprobe": self.drift.reprobe,
                "spots": self.drift.spots,
            },
            "rules": self.rules,
            "provenance": self.provenance,
            "warnings": list(self.warnings),
            "cells": [self._cell_json(cell) for cell in self.cells],
        }
        return {key: _rounded(value) for key, value in document.items()}

    def _cell_json(self, cell: CellComparison) -> dict[str, Any]:
        at_state = self.cell_at_state(cell.cell)
        return {**cell_json(cell), "at_state": None if at_state is None else short_json(at_state)}


def _rounded(value: Any) -> Any:
    """Floats to SIGNIFICANT_DIGITS, tuples as lists."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
