"""
In which order the cells run: round after round, each round all cells once, shuffled anew.  A cell with fewer repeats
leaves its place in the later rounds empty.

A machine that drifts over an hour then touches all cells alike, and the two runs of a cell stand apart, so that what
they differ by is the machine's noise and not that of one minute.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from moeplan.errors import InputError
from reference_runtime.validation_grid.grid import Cell, Grid

MIN_APART = 8  # runs between two of the same cell, in a grid of at least four times as many cells


@dataclass(frozen=True)
class PlannedRun:
    """One run of a cell; repeat counts from 0, order is its place among all runs of the whole grid."""

    cell: Cell
    repeat: int
    order: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.cell.name}-r{self.repeat}"


def planned_runs(grid: Grid, repeats: int | None = None, pattern: str = "*") -> tuple[PlannedRun, ...]:
    """
    The runs in their order; repeats: None takes each cell's own; pattern: a shell pattern of cell names.

    Fewer cells or more repeats change neither the place nor the order of the others, so a grid can be run in parts.
    Raises InputError where no cell is meant.
    """
    wanted = [repeats or cell.repeats or grid.repeats for cell in grid.cells]
    rounds = _rounds(len(grid.cells), max(wanted), grid.seed)
    runs = (
        PlannedRun(grid.cells[index], repeat, repeat * len(grid.cells) + place)
        for repeat, order in enumerate(rounds)
        for place, index in enumerate(order)
        if repeat < wanted[index]
    )
    chosen = tuple(run for run in runs if fnmatchcase(run.cell.name, pattern))
    if not chosen:
        example = grid.cells[0].name
        raise InputError("--cells", "must be a pattern that meets a cell", repr(pattern), f"a cell is {example}")
    return chosen


def _rounds(n_cells: int, repeats: int, seed: int) -> list[Sequence[int]]:
    """Permutations of the cells, one after the other; a cell's runs are at least MIN_APART or a quarter apart."""
    rng = np.random.default_rng(seed)
    rounds: list[Sequence[int]] = []
    before: np.ndarray | None = None  # place of each cell in the round before
    while len(rounds) < repeats:
        order = rng.permutation(n_cells)
        place = np.argsort(order)
        if before is None or (n_cells - before + place).min() >= min(MIN_APART, max(1, n_cells // 4)):
            rounds.append(order.tolist())
            before = place
    return rounds
