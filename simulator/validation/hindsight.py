"""
How well can t_attention >= t_prefetch be told row by row?  A rule with hindsight, from a run's measured rows alone.

The rule knows what a row is, its layer and how many experts it misses, and how long the other rows of that kind took in
this very run.  It does not know the luck of the row itself: a late reader, an interrupt.  With
d = ln(t_prefetch / t_attention), and medians over the other rows (of what is then left, the median of all):

    typical d = median of d over the rows with as many misses + median over the layer's rows of what is then left

It says "hidden" where typical d / noise lies below a threshold, the best one for the pairs at hand: one for the
agreement, another for the balanced accuracy.  It is a yardstick and no ceiling: a prediction that knows more of a row,
such as its context, may pass it.

A pair is clear where typical d is at least CLEAR_Z noises from 0, whatever the row itself took.  Rows with fewer than
FEWEST_ALIKE of their layer or of their number of misses, themselves included, are left out of both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.validation.cell_result import N_BINS, Boundary, Hindsight
from simulator.validation.run_noise import CLEAR_Z, boundary_noise, timed_rows

if TYPE_CHECKING:
    import pandas as pd

FEWEST_ALIKE = 8  # rows: with fewer, the median's own error is above 0.45 of the rows' noise
BIN = 0.1  # of typical d / noise; N_BINS / 2 on each side of 0, the outer two hold all beyond


@dataclass(frozen=True, eq=False)
class TypicalRows:
    """
    Measured rows with a miss that have enough alike, by token and layer.

    distance: their own d, typical: that of the others of their kind, both (n,); noise: standard deviation of d among
    alike rows; median_distance: median |d| over all rows with a miss, None without one.
    """

    distance: "pd.Series"
    typical: "pd.Series"
    noise: float
    median_distance: float | None

    @property
    def clear(self) -> "pd.Series":
        """Whether what is typical of the row lies beyond the noise (n,)."""
        return self.typical.abs() >= CLEAR_Z * self.noise


def typical_rows(rows: "pd.DataFrame") -> TypicalRows:
    """What is typical of measured rows with attention, read and n_misses, by token and layer."""
    timed = timed_rows(rows)
    distance = np.log(timed["read"] / timed["attention"])
    misses, layers = timed["n_misses"].to_numpy(), timed.index.get_level_values("layer").to_numpy()
    left = distance - distance.groupby(misses).transform("median")
    typical = _of_the_others(distance, misses) + _of_the_others(left, layers)
    known = typical.notna()
    noise = boundary_noise(rows) if len(timed) else 0.0
    return TypicalRows(distance[known], typical[known], noise, float(distance.abs().median()) if len(timed) else None)


def boundary_of(rows: TypicalRows) -> Boundary:
    """Distance, noise and told pairs."""
    pairs = np.zeros((2, 2, N_BINS), dtype=np.int64)
    bins = _bins(rows.typical.to_numpy(), rows.noise)
    np.add.at(pairs, (rows.clear.to_numpy().astype(int), (rows.distance <= 0).to_numpy().astype(int), bins), 1)
    return Boundary(rows.median_distance, rows.noise, pairs)


def hindsight_of(boundaries: Iterable[Boundary], *, clear_only: bool) -> Hindsight:
    """What the rule reaches on the pairs of some runs together, or on their clear pairs."""
    pairs = sum((b.pairs[1] if clear_only else b.pairs.sum(axis=0) for b in boundaries), np.zeros((2, N_BINS), int))
    waits, hidden = pairs
    n_waits, n_hidden = int(waits.sum()), int(hidden.sum())
    if not n_waits + n_hidden:
        return Hindsight(0, None, None)
    # "hidden" below each threshold: from none of the bins to all
    right_hidden = np.concatenate([[0], np.cumsum(hidden)])
    right_waits = n_waits - np.concatenate([[0], np.cumsum(waits)])
    agreement = float((right_hidden + right_waits).max()) / (n_hidden + n_waits)
    if not n_waits or not n_hidden:
        return Hindsight(n_waits + n_hidden, None, agreement)
    balanced = (right_hidden / n_hidden + right_waits / n_waits) / 2
    return Hindsight(n_waits + n_hidden, float(balanced.max()), agreement)


def _of_the_others(values: "pd.Series", kinds: np.ndarray) -> "pd.Series":
    """Median over the other rows of each row's kind; NaN where there are fewer than FEWEST_ALIKE with it."""
    others = np.full(len(values), np.nan)
    for kind in np.unique(kinds):
        at = np.flatnonzero(kinds == kind)
        if len(at) >= FEWEST_ALIKE:
            others[at] = _medians_without_each(values.to_numpy()[at])
    return values * 0 + others


def _medians_without_each(values: np.ndarray) -> np.ndarray:
    """For each of n >= 2 values the median of the n - 1 others."""
    order = np.argsort(values, kind="stable")
    ordered, n = values[order], len(values)
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    low, high = (n - 2) // 2, (n - 1) // 2  # middle two of the n - 1 others, the same one where n is even
    return (ordered[low + (low >= rank)] + ordered[high + (high >= rank)]) / 2


def _bins(typical: np.ndarray, noise: float) -> np.ndarray:
    """0 to N_BINS - 1, rising with typical d; 0 is an edge, and what is exactly there counts as hidden."""
    scaled = typical / noise if noise > 0 else np.sign(typical) * N_BINS
    return np.clip(np.ceil(scaled / BIN).astype(int) - 1 + N_BINS // 2, 0, N_BINS - 1)
