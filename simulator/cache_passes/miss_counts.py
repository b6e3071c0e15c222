"""Misses of every row for a cache policy and a list of capacities: the front door of the cache passes."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from moeplan.errors import InputError, nearest
from simulator.cache_passes.lru_one import lru_misses
from simulator.cache_passes.queue_policies import CODES, MAX_CAPACITIES, queue_miss_counts
from simulator.cache_passes.rows import Rows
from simulator.cache_passes.stack_distances import count_type, lru_miss_counts
from simulator.cache_passes.stack_policies import stack_miss_counts

STACK_PASSES = ("belady", "lfu", "lfu-decay")
PASSES = ("lru", "lru-per-layer", *STACK_PASSES, *CODES)
MOST_AT_ONCE = {**dict.fromkeys(PASSES, 250), **dict.fromkeys(CODES, MAX_CAPACITIES)}  # levels and buckets are uint8


def miss_counts(rows: Rows, policy: str, capacities: Sequence[int], *, n_threads: int = 1) -> np.ndarray:
    """
    Misses of every row: uint8 (n_rows, n_capacities), uint16 where a row has more than 255 experts.

    capacities: slots, 0 and more, in any order.  n_threads share those of FIFO, CLOCK, SIEVE and S3-FIFO; the others
    need one pass for all, which halving the list would not shorten.  It holds no lock: policies may run side by side.
    Equal to counting CachePolicy.access_row's misses at each capacity.  Raises InputError for a policy without a pass.
    """
    if policy not in PASSES:
        raise InputError("cache pass", "must be of a known cache policy", repr(policy), nearest(policy, PASSES))
    wanted = np.asarray(capacities, np.int64)
    if not len(wanted):
        return np.empty((rows.n_rows, 0), count_type(rows))
    if (wanted < 0).any():
        raise InputError("cache pass", "capacities must be 0 or more", int(wanted.min()))
    slots, place = np.unique(np.minimum(wanted, rows.n_keys), return_inverse=True)  # more than all is all
    columns = _columns(rows, policy, slots, n_threads)
    return columns if np.array_equal(place, np.arange(len(slots))) else columns[:, place]


def _columns(rows: Rows, policy: str, slots: np.ndarray, n_threads: int) -> np.ndarray:
    """Misses for different capacities in ascending order."""
    one = partial(_lru if policy.startswith("lru") else _in_numbers, rows, policy)
    n_groups = -(-len(slots) // MOST_AT_ONCE[policy])
    if policy in CODES:
        n_groups = max(n_groups, min(n_threads, len(slots)))
    if n_groups <= 1:
        return one(slots)
    out = np.empty((rows.n_rows, len(slots)), count_type(rows))
    groups = [slice(first, None, n_groups) for first in range(n_groups)]  # small and large capacities in each
    with ThreadPoolExecutor(max(1, n_threads)) as pool:
        for group, counts in zip(groups, pool.map(lambda group: one(slots[group]), groups), strict=True):
            out[:, group] = counts
    return out


def _lru(rows: Rows, policy: str, slots: np.ndarray) -> np.ndarray:
    if policy == "lru" and len(slots) == 1:
        return lru_misses(rows, int(slots[0]))[:, None]
    return lru_miss_counts(rows, slots.tolist(), per_layer=policy == "lru-per-layer")


def _in_numbers(rows: Rows, policy: str, slots: np.ndarray) -> np.ndarray:
    """The passes that want at least one slot; without any every access misses."""
    one = stack_miss_counts if policy in STACK_PASSES else queue_miss_counts
    if slots[0] > 0:
        return one(rows, policy, slots)
    out = np.empty((rows.n_rows, len(slots)), count_type(rows))
    out[:, 0] = rows.n_used
    if len(slots) > 1:
        out[:, 1:] = one(rows, policy, slots[1:])
    return out
