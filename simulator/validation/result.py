"""
What a validation answers: predicted beside measured for every cell, and the figures over all cells.

An error is predicted / measured - 1, so above zero the prediction is too fast.  Times are in seconds per decode token
unless a name says otherwise.  Reports read these and run nothing.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from simulator.result import Interval
from simulator.validation.cell_result import CellComparison, Verdicts

SCHEMA_VERSION = 1
SIGNIFICANT_DIGITS = 4  # of every float in the JSON; measurements repeat to three at best


@dataclass(frozen=True)
class GroupSummary:
    """
    The errors of a group of cells; quiet: only those whose own spread is below the bound.

    Fractions are of tokens/s; None where the group is empty.
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


@dataclass(frozen=True)
class LeftOut:
    """
    The cells that have one value of one condition: our errors, and those of laws fitted on all other cells.

    law_*: median and 90th percentile of the absolute error, None where too few cells are left to fit.
    """

    condition: str
    value: str
    n_cells: int
    n_fitted: int
    ours: tuple[float, float]
    law_miss_rate: tuple[float, float] | None
    law_bytes: tuple[float, float] | None
    law_read_s: tuple[float, float] | None


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
    last cell over those before the first.
    """

    points: tuple[DriftPoint, ...]
    slope_frac: float | None
    slope_error_frac: float | None
    reprobe: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidationResult:
    """All cells and what they say together. provenance: command line, machine, date and the like, name to text."""

    cells: tuple[CellComparison, ...]
    groups: tuple[GroupSummary, ...]
    left_out: tuple[LeftOut, ...]
    prefill: tuple[PrefillRow, ...]
    verdicts: Verdicts
    clear_verdicts: Verdicts
    boundary_verdicts: Verdicts
    n_boundary_cells: int
    drift: Drift
    rules: dict[str, str]
    provenance: dict[str, str]
    warnings: tuple[str, ...] = ()

    def group(self, name: str, *, quiet: bool) -> GroupSummary:
        """The summary of a group by its name."""
        return next(group for group in self.groups if (group.group, group.quiet) == (name, quiet))

    @property
    def counts_equal(self) -> bool:
        """Whether hits and misses are the same in every run of every cell."""
        return all(cell.counts_equal for cell in self.cells)

    @property
    def bytes_equal(self) -> bool:
        """Whether the bytes are the same in every run of every cell."""
        return all(cell.bytes_equal for cell in self.cells)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; the headline errors are those over all cells, `groups` has the quiet ones beside."""
        every = self.group("all", quiet=False)
        document = {
            "schema_version": SCHEMA_VERSION,
            "n_cells": len(self.cells),
            "n_runs": sum(len(cell.runs) for cell in self.cells),
            "counts_equal": self.counts_equal,
            "bytes_equal": self.bytes_equal,
            "median_abs_error_frac": every.median_abs_error_frac,
            "p90_abs_error_frac": every.p90_abs_error_frac,
            "verdict_agreement_frac": self.clear_verdicts.balanced_frac,
            "interval_coverage_frac": every.interval_coverage_frac,
            "verdicts": {
                "all": self.verdicts.as_json(),
                "clear": self.clear_verdicts.as_json(),
                "boundary_cells": self.boundary_verdicts.as_json(),
            },
            "n_boundary_cells": self.n_boundary_cells,
            "groups": [asdict(group) for group in self.groups],
            "left_out": [asdict(row) for row in self.left_out],
            "prefill": [asdict(row) for row in self.prefill],
            "drift": {
                "slope_frac": self.drift.slope_frac,
                "slope_error_frac": self.drift.slope_error_frac,
                "reprobe": self.drift.reprobe,
            },
            "rules": self.rules,
            "provenance": self.provenance,
            "warnings": list(self.warnings),
            "cells": [cell.as_json() for cell in self.cells],
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
