"""The rows of a sweep as matrices over two inputs, one per combination of the others; and a plan's place in one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reports.sweep_inputs import RAM_CAP, STORAGE_READ, Input, key_of, said_all, values, varied
from simulator.plan_result import PlanResult
from simulator.result import SweepRow


@dataclass(frozen=True)
class Grid:
    """
    One matrix of a sweep; a cell that was not run is absent from cells.

    up, across: the inputs of the axes; row_values, column_values: theirs that these rows have, ascending; cells: (index
    of the row value, index of the column value) to row; others: the inputs that differ from matrix to matrix, in words.
    """

    up: Input
    across: Input
    row_values: tuple[Any, ...]
    column_values: tuple[Any, ...]
    cells: dict[tuple[int, int], SweepRow]
    others: str = ""

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """All rows by ascending cap and speed."""
        return tuple(self.cells[cell] for cell in sorted(self.cells))

    @property
    def runs(self) -> tuple[SweepRow, ...]:
        """The rows that can run, by ascending cap and speed."""
        return tuple(row for row in self.rows if row.verdict != "cannot_run")

    @property
    def speeds_bytes_per_s(self) -> tuple[float, ...]:
        """Its storage speeds, ascending."""
        return tuple(sorted({row.storage_read_bytes_per_s for row in self.rows}))

    @property
    def cache_policy(self) -> str:
        """Of its rows, which share it."""
        return self.rows[0].cache_policy

    @property
    def prefetch_policy(self) -> str:
        """Of its rows, which share it."""
        return self.rows[0].prefetch_policy

    def reaching(self, target_tokens_per_s: float) -> frozenset[tuple[int, int]]:
        """The cells whose predicted value (not its low end) reaches the target."""
        return frozenset(key for key, row in self.cells.items() if reaches(row, target_tokens_per_s))


def reaches(row: SweepRow, target_tokens_per_s: float) -> bool:
    """Whether the predicted value of a row that can run is at least the target."""
    return row.verdict != "cannot_run" and row.tokens_per_s >= target_tokens_per_s


def as_grids(rows: Sequence[SweepRow], up: Input = RAM_CAP, across: Input = STORAGE_READ) -> tuple[Grid, ...]:
    """The matrices of a sweep in the order in which their inputs first appear; each has the values of its own rows."""
    others = [each for each in varied(rows) if each not in (up, across)]
    groups: dict[tuple[Any, ...], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault(key_of(row, others), []).append(row)
    return tuple(_grid(group, up, across, said_all(group[0], others)) for group in groups.values())


def _grid(rows: Sequence[SweepRow], up: Input, across: Input, others: str) -> Grid:
    row_values, column_values = tuple(values(rows, up)), tuple(values(rows, across))
    row_places = {value: place for place, value in enumerate(row_values)}
    column_places = {value: place for place, value in enumerate(column_values)}
    cells = {(row_places[up.of(row)], column_places[across.of(row)]): row for row in rows}
    return Grid(up, across, row_values, column_values, cells, others)


def current_row(plan: PlanResult) -> SweepRow | None:
    """The row of the plan's grid that is the plan's own scenario, None where there is none."""
    result, cache = plan.result, plan.result.cache
    rows = [row for row in plan.grid if row.ram_cap_bytes == result.memory.ram_cap_bytes]
    if cache is not None and any(row.cache_policy == cache.policy for row in rows):
        rows = [row for row in rows if row.cache_policy == cache.policy]
    if result.storage_read_bytes_per_s is not None:
        rows = [row for row in rows if _near(row.storage_read_bytes_per_s, result.storage_read_bytes_per_s)]
    return rows[0] if len(rows) == 1 else None


def cell_of(grid: Grid, row: SweepRow | None) -> tuple[int, int] | None:
    """The cell of a row in a grid, None where it stands in another."""
    return next((key for key, value in grid.cells.items() if value == row), None)


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9)
