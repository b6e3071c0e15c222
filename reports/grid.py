"""The rows of a sweep as matrices, RAM cap by storage speed, one per pair of policies; and a plan's place in it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.plan_result import PlanResult
from simulator.result import SweepRow


@dataclass(frozen=True)
class Grid:
    """
    One matrix of a sweep; a cell that was not run is absent from cells.

    caps_bytes, speeds_bytes_per_s: ascending; cells: (index of the cap, index of the speed) to row; others: the inputs
    beside these four that differ from matrix to matrix, in words.
    """

    cache_policy: str
    prefetch_policy: str
    caps_bytes: tuple[int, ...]
    speeds_bytes_per_s: tuple[float, ...]
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

    def reaching(self, target_tokens_per_s: float) -> frozenset[tuple[int, int]]:
        """The cells whose predicted value (not its low end) reaches the target."""
        return frozenset(key for key, row in self.cells.items() if reaches(row, target_tokens_per_s))


def reaches(row: SweepRow, target_tokens_per_s: float) -> bool:
    """Whether the predicted value of a row that can run is at least the target."""
    return row.verdict != "cannot_run" and row.tokens_per_s >= target_tokens_per_s


def as_grids(rows: Sequence[SweepRow]) -> tuple[Grid, ...]:
    """The matrices of a sweep in the order in which their inputs first appear; all have the same axes."""
    caps = tuple(sorted({row.ram_cap_bytes for row in rows}))
    speeds = tuple(sorted({row.storage_read_bytes_per_s for row in rows}))
    cap_index = {cap: index for index, cap in enumerate(caps)}
    speed_index = {speed: index for index, speed in enumerate(speeds)}
    names = _telling(rows)
    cells: dict[tuple[str, str, str], dict[tuple[int, int], SweepRow]] = {}
    for row in rows:
        key = cap_index[row.ram_cap_bytes], speed_index[row.storage_read_bytes_per_s]
        others = ", ".join(f"{name.replace('_', ' ')} {_word(getattr(row, name))}" for name in names)
        cells.setdefault((row.cache_policy, row.prefetch_policy, others), {})[key] = row
    return tuple(
        Grid(cache, prefetch, caps, speeds, matrix, others) for (cache, prefetch, others), matrix in cells.items()
    )


OTHER_INPUTS = (
    "model", "device", "trace", "quantisation", "top_k", "layout", "context", "n_threads", "storage_latency_s",
    "ram_bytes_per_s", "gemv_flop_per_s",
)  # fmt: skip


def _telling(rows: Sequence[SweepRow]) -> list[str]:
    """The other inputs that vary; one that follows from those before it tells nothing."""
    names: list[str] = []
    n_told = 1
    for name in OTHER_INPUTS:
        n_values = len({tuple(getattr(row, told) for told in (*names, name)) for row in rows})
        if n_values > n_told:
            names, n_told = [*names, name], n_values
    return names


def _word(value: object) -> str:
    return "own" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


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
