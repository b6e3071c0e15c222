"""
How well could any prediction tell t_attention >= t_prefetch row by row?  From the measured rows of a run alone.

A prediction knows what a row is: its layer and how many experts it misses.  It does not know the luck of the row: a
late reader, an interrupt.  With d = ln(t_prefetch / t_attention), what rows of that kind took in this very run is

    typical d = median of d over the rows with as many misses + median over the layer's rows of what is then left

A prediction that knew this with hindsight, and the noise about it, would say "hidden" where typical d / noise lies
below some threshold.  The ceiling is the best agreement and the best balanced accuracy that any threshold reaches, each
with its own: at 0 most rows are told right, and who leans to the rarer verdict gains balanced accuracy.  What does not
know a row's own luck is not likely to pass it.  Rows with fewer than FEWEST_ALIKE of their layer or of their number of
misses are left out: a median of few rows knows each of them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from simulator.validation.cell_result import N_BINS, Boundary, Ceiling
from simulator.validation.run_noise import CLEAR_Z, boundary_noise, timed_rows

if TYPE_CHECKING:
    import pandas as pd

FEWEST_ALIKE = 8  # rows: with fewer, the median's own error is above 0.45 of the rows' noise
BIN = 0.1  # of typical d / noise; N_BINS / 2 on each side of 0, the outer two hold all beyond


def boundary_of(rows: "pd.DataFrame") -> Boundary:
    """Distance, noise and told pairs of measured rows with attention, read and n_misses, by token and layer."""
    timed = timed_rows(rows)
    if timed.empty:
        return Boundary()
    noise, distance = boundary_noise(rows), np.log(timed["read"] / timed["attention"])
    typical = _typical(distance, timed["n_misses"].to_numpy())
    known = typical.notna().to_numpy()
    hidden, clear = (distance <= 0).to_numpy()[known], (distance.abs() >= CLEAR_Z * noise).to_numpy()[known]
    bins = _bins(typical.to_numpy()[known], noise)
    pairs = np.zeros((2, 2, N_BINS), dtype=np.int64)
    np.add.at(pairs, (clear.astype(int), hidden.astype(int), bins), 1)
    return Boundary(float(distance.abs().median()), noise, pairs)


def ceiling_of(boundaries: Iterable[Boundary], *, clear_only: bool) -> Ceiling:
    """The ceiling of the pairs of some runs together, or of their clear pairs."""
    pairs = sum((b.pairs[1] if clear_only else b.pairs.sum(axis=0) for b in boundaries), np.zeros((2, N_BINS), int))
    waits, hidden = pairs
    n_waits, n_hidden = int(waits.sum()), int(hidden.sum())
    if not n_waits + n_hidden:
        return Ceiling(0, None, None)
    # "hidden" below each threshold: from none of the bins to all
    right_hidden = np.concatenate([[0], np.cumsum(hidden)])
    right_waits = n_waits - np.concatenate([[0], np.cumsum(waits)])
    agreement = float((right_hidden + right_waits).max()) / (n_hidden + n_waits)
    if not n_waits or not n_hidden:
        return Ceiling(n_waits + n_hidden, None, agreement)
    balanced = (right_hidden / n_hidden + right_waits / n_waits) / 2
    return Ceiling(n_waits + n_hidden, float(balanced.max()), agreement)


def _typical(distance: "pd.Series", misses: np.ndarray) -> "pd.Series":
    """typical d of each row; NaN for rows that have too few alike."""
    layers = distance.index.get_level_values("layer").to_numpy()
    by_misses = distance.groupby(misses).transform("median")
    typical = by_misses + (distance - by_misses).groupby(layers).transform("median")
    sizes = (distance.groupby(kinds).transform("size").to_numpy() for kinds in (layers, misses))
    return typical.where(np.minimum(*sizes) >= FEWEST_ALIKE)


def _bins(typical: np.ndarray, noise: float) -> np.ndarray:
    """0 to N_BINS - 1, rising with typical d; 0 is an edge, and what is exactly there counts as hidden."""
    scaled = typical / noise if noise > 0 else np.sign(typical) * N_BINS
    return np.clip(np.ceil(scaled / BIN).astype(int) - 1 + N_BINS // 2, 0, N_BINS - 1)
