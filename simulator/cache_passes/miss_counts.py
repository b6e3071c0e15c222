"""Misses of every row for a cache policy and a list of capacities: the front door of the cache passes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np

from moeplan.errors import InputError, nearest
from simulator.cache_passes.lru_one import lru_misses
from simulator.cache_passes.queue_policies import CODES, MAX_CAPACITIES, queue_miss_blocks
from simulator.cache_passes.rows import Rows
from simulator.cache_passes.stack_distances import count_type, lru_miss_blocks
from simulator.cache_passes.stack_policies import stack_miss_blocks

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
    slots, place = _different(rows, policy, capacities)
    if not len(slots) or not rows.n_rows:
        return np.empty((rows.n_rows, len(place)), count_type(rows))
    columns = _columns(rows, policy, slots, n_threads)
    return columns if np.array_equal(place, np.arange(len(slots))) else columns[:, place]


def miss_count_blocks(
    rows: Rows, policy: str, capacities: Sequence[int], block_rows: int
) -> Iterator[tuple[int, np.ndarray]]:
    """
    The same, some rows at a time, so that memory does not grow with the trace: (first row, misses) for every block.

    A block holds until the next one is asked for.
    """
    slots, place = _different(rows, policy, capacities)
    if len(slots) > MOST_AT_ONCE[policy]:
        whole = _columns(rows, policy, slots, 1)
        blocks = _cut(whole, block_rows)
    else:
        blocks = _blocks(rows, policy, slots, block_rows)
    in_order = np.array_equal(place, np.arange(len(slots)))
    for number, counts in enumerate(blocks):
        yield number * block_rows, counts if in_order else counts[:, place]


def _different(rows: Rows, policy: str, capacities: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The different capacities in ascending order, and for each asked for its place among them."""
    if policy not in PASSES:
        raise InputError("cache pass", "must be of a known cache policy", repr(policy), nearest(policy, PASSES))
    wanted = np.asarray(capacities, np.int64)
    if (wanted < 0).any():
        raise InputError("cache pass", "capacities must be 0 or more", int(wanted.min()))
    slots, place = np.unique(np.minimum(wanted, rows.n_keys), return_inverse=True)  # more than all is all
    return slots, place


def _columns(rows: Rows, policy: str, slots: np.ndarray, n_threads: int) -> np.ndarray:
    """Misses for different capacities in ascending order."""

    def one(some: np.ndarray) -> np.ndarray:
        return next(_blocks(rows, policy, some, rows.n_rows))

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


def _blocks(rows: Rows, policy: str, slots: np.ndarray, block_rows: int) -> Iterator[np.ndarray]:
    """Misses for at least one and at most MOST_AT_ONCE different capacities in ascending order, block by block."""
    if policy == "lru" and len(slots) == 1:
        return _cut(lru_misses(rows, int(slots[0]))[:, None], block_rows)
    if policy.startswith("lru"):
        return lru_miss_blocks(rows, slots.tolist(), block_rows, per_layer=policy == "lru-per-layer")
    return _in_numbers(rows, policy, slots, block_rows)


def _cut(whole: np.ndarray, block_rows: int) -> Iterator[np.ndarray]:
    return (whole[first : first + block_rows] for first in range(0, len(whole), block_rows))


def _in_numbers(rows: Rows, policy: str, slots: np.ndarray, block_rows: int) -> Iterator[np.ndarray]:
    """The passes that want at least one slot; without any every access misses."""
    blocks = stack_miss_blocks if policy in STACK_PASSES else queue_miss_blocks
    if slots[0] > 0:
        yield from blocks(rows, policy, slots, block_rows)
        return
    others = blocks(rows, policy, slots[1:], block_rows) if len(slots) > 1 else repeat(None)
    for first, found in zip(range(0, rows.n_rows, block_rows), others, strict=False):
        used = rows.n_used[first : first + block_rows, None].astype(count_type(rows))
        yield used if found is None else np.hstack([used, found])
