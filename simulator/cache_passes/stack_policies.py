"""
Belady, LFU and LFU with decay for many capacities in one pass.

All rank the experts by a priority that does not depend on the capacity, and keep the best: a larger cache holds all
that a smaller one holds (Mattson et al. 1970), the row's own experts being the best of all while it is used.  So the
capacities cut one stack into buckets: bucket j is what the j-th smallest cache holds and the one before it does not.
A row goes on top; what then is too much in a bucket, its worst, sinks into the next.

A priority is a uint64, the smallest sinks first, its lowest 16 bits are the key:
    Belady   never and far ahead before soon: 2^32 - 1 - next row (uint32)
    LFU      count (24 bits), lap of the last use (24 bits)
"""

from collections.abc import Iterator

import numpy as np

from moeplan.errors import InputError
from simulator.cache_passes.compiled import compiled, inlined, lean
from simulator.cache_passes.rows import Rows
from simulator.cache_passes.stack_distances import count_type
from simulator.policies.lfu_decay import HALVING_LAPS, USE

LAP_BITS, COUNT_BITS = 24, 24
KEY_MASK, ALL = np.uint64(2**16 - 1), np.uint64(2**64 - 1)
ZERO, ONE, KEY_SHIFT, COUNT_SHIFT = np.uint64(0), np.uint64(1), np.uint64(16), np.uint64(40)
NO_ROW = np.uint32(2**32 - 1)
NOWHERE = 255  # the bucket of a key that no cache holds
UNKNOWN = np.uint64(0)  # the lowest value of a bucket that has to be looked for


@compiled
def next_uses(keys, offsets, n_keys, out):  # type: ignore[no-untyped-def]
    """For every access the next row that uses its key, NO_ROW where none does; uint32 (n_accesses,)."""
    coming = np.full(n_keys, NO_ROW, np.uint32)
    for row in range(len(offsets) - 2, -1, -1):
        for i in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            out[i] = coming[keys[i]]
            coming[keys[i]] = row


@inlined
def _put(values, bases, sizes, lowest, place, bucket_of, bucket, value):  # type: ignore[no-untyped-def]
    """Add a value to a bucket."""
    at = bases[bucket] + sizes[bucket]
    values[at], place[value & KEY_MASK], bucket_of[value & KEY_MASK] = value, at, bucket
    sizes[bucket] += ONE
    if value < lowest[bucket]:
        lowest[bucket] = value


@inlined
def _take(values, bases, sizes, lowest, place, bucket_of, key):  # type: ignore[no-untyped-def]
    """Take a key out of its bucket; the bucket's last value fills its place."""
    bucket, at = bucket_of[key], place[key]
    sizes[bucket] -= ONE
    if lowest[bucket] == values[at]:
        lowest[bucket] = UNKNOWN
    moved = values[bases[bucket] + sizes[bucket]]
    values[at], place[moved & KEY_MASK] = moved, at
    bucket_of[key] = NOWHERE


@inlined
def _lowest(values, bases, sizes, lowest, bucket):  # type: ignore[no-untyped-def]
    """The lowest value of a bucket, ALL of an empty one; looked for only where it is not known."""
    if lowest[bucket] == UNKNOWN:
        least, first = ALL, bases[bucket]
        for at in range(first, first + sizes[bucket]):
            value = values[at]
            least = value if value < least else least
        lowest[bucket] = least
    return lowest[bucket]


@inlined
def _sink(values, bases, sizes, lowest, place, bucket_of, bucket, carried, n_carried, n_over):  # type: ignore[no-untyped-def]
    """
    Carried values come into a bucket and its n_over worst leave it, into carried; returns how many did.

    Those that there is room for come first, then each other one changes places with a worse one.
    """
    n_out, n_room = 0, n_carried - n_over
    for i in range(n_carried):
        value = carried[i]
        if i < n_room:
            _put(values, bases, sizes, lowest, place, bucket_of, bucket, value)
            continue
        worst = _lowest(values, bases, sizes, lowest, bucket)
        if worst < value:
            at = place[worst & KEY_MASK]
            values[at], place[value & KEY_MASK], bucket_of[value & KEY_MASK] = value, at, bucket
            bucket_of[worst & KEY_MASK] = NOWHERE
            lowest[bucket] = UNKNOWN
            value = worst
        carried[n_out] = value
        n_out += 1
    while n_out < n_over:
        carried[n_out] = _lowest(values, bases, sizes, lowest, bucket)
        _take(values, bases, sizes, lowest, place, bucket_of, carried[n_out] & KEY_MASK)
        n_out += 1
    return n_out


@lean
def _halve(values, lowest, place, bucket_of, priority):  # type: ignore[no-untyped-def]
    """Halve all counts."""
    for key in range(len(priority)):
        value = priority[key]
        count = value >> COUNT_SHIFT
        priority[key] = ((count >> ONE) << COUNT_SHIFT) | (value & ((ONE << COUNT_SHIFT) - ONE))
        if bucket_of[key] != NOWHERE:
            values[place[key]] = priority[key]
    lowest[:] = UNKNOWN


@lean
def _replay(  # type: ignore[no-untyped-def]
    keys, offsets, next_use, use, halving_rows, n_layers, slots, widths, bases, values, sizes, lowest, place, bucket_of,
    priority, carried, begin_row, end_row, out,
):  # fmt: skip
    """
    Misses of rows begin_row to end_row - 1 into out (n_rows, n_capacities), which begins at 0.

    slots: int64 in ascending order, all above zero.

    next_use: see next_uses, empty for LFU; use: what a use adds to a count; halving_rows: 0 for never.
    """
    n_buckets = len(slots)
    for row in range(begin_row, end_row):
        begin, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if halving_rows > 0 and row > 0 and row % halving_rows == 0:
            _halve(values, lowest, place, bucket_of, priority)
        lap = np.uint64(row // n_layers)
        for i in range(begin, end):
            key = np.uint64(keys[np.uint64(i)])
            bucket = bucket_of[key]
            for missed in range(min(bucket, n_buckets)):
                out[row - begin_row, missed] += 1
            if bucket != NOWHERE:
                _take(values, bases, sizes, lowest, place, bucket_of, key)
            if len(next_use) > 0:
                priority[key] = (np.uint64(NO_ROW - next_use[np.uint64(i)]) << KEY_SHIFT) | key
            else:
                count = (priority[key] >> COUNT_SHIFT) + use
                priority[key] = (count << COUNT_SHIFT) | (lap << KEY_SHIFT) | key
        n_carried, n_above = 0, 0  # n_above: slots of smaller caches
        for bucket in range(n_buckets):
            n_own = min(max(0, end - begin - n_above), widths[bucket])  # experts of the row that stay in this bucket
            if n_own + n_carried == 0:
                break
            n_above += widths[bucket]
            n_over = max(0, np.int64(sizes[bucket]) + n_own + n_carried - widths[bucket])
            n_carried = _sink(values, bases, sizes, lowest, place, bucket_of, bucket, carried, n_carried, n_over)
        bucket = 0
        for i in range(end - 1, begin - 1, -1):  # the row's last expert on top
            while bucket < n_buckets and end - 1 - i >= slots[bucket]:
                bucket += 1
            if bucket == n_buckets:
                break
            _put(values, bases, sizes, lowest, place, bucket_of, bucket, priority[keys[np.uint64(i)]])


def stack_miss_blocks(rows: Rows, policy: str, slots: np.ndarray, block_rows: int) -> Iterator[np.ndarray]:
    """
    Misses of "belady", "lfu" or "lfu-decay", some rows at a time: see lru_miss_blocks.

    slots: different capacities above zero in ascending order, 1 to 254 of them.
    """
    out = np.empty((min(block_rows, rows.n_rows), len(slots)), count_type(rows))
    use, laps = (USE, HALVING_LAPS) if policy == "lfu-decay" else (1, 0)
    next_use = np.empty(len(rows.keys) if policy == "belady" else 0, np.uint32)
    if policy == "belady":
        next_uses(rows.keys, rows.offsets, rows.n_keys, next_use)
    else:
        _check_counts(rows, use, laps)
    shape = laps * rows.n_layers, rows.n_layers
    fixed = rows.keys, rows.offsets, next_use, np.uint64(use), *shape, *_buckets(rows, slots)
    for first in range(0, rows.n_rows, block_rows):
        n_rows = min(block_rows, rows.n_rows - first)
        out[:n_rows] = 0
        _replay(*fixed, first, first + n_rows, out)
        yield out[:n_rows]


def _buckets(rows: Rows, slots: np.ndarray) -> tuple[np.ndarray, ...]:
    """
    Empty buckets, in the order in which the pass takes them:

    slots, widths int64, bases uint64 (n_capacities,): slots of each cache, and in each bucket, and where it begins in
    values uint64 (most slots,): the priorities of its keys, sizes[bucket] of them, uint64 (n_capacities,)
    lowest uint64 (n_capacities,): the lowest of them or UNKNOWN
    place uint64, bucket_of uint8, priority uint64 (n_keys,): of a key: index in values, bucket, priority
    carried uint64: what sinks from one bucket to the next
    """
    ends = np.asarray(slots, np.int64)
    widths = np.diff(ends, prepend=0)
    sizes, lowest = np.zeros(len(ends), np.uint64), np.full(len(ends), UNKNOWN)
    values, place = np.zeros(ends[-1] + 1, np.uint64), np.zeros(rows.n_keys, np.uint64)
    bucket_of, priority = np.full(rows.n_keys, NOWHERE, np.uint8), np.arange(rows.n_keys).astype(np.uint64)
    carried = np.zeros(2 * rows.longest + 1, np.uint64)
    return ends, widths, (ends - widths).astype(np.uint64), values, sizes, lowest, place, bucket_of, priority, carried


def _check_counts(rows: Rows, use: int, laps: int) -> None:
    """Counts and laps must fit their bits: InputError."""
    most_uses = min(rows.n_rows, 2 * laps * rows.n_layers) if laps else rows.n_rows
    worst = int(np.bincount(rows.keys, minlength=1).max(initial=0))
    if min(most_uses, worst) * use >= 2**COUNT_BITS or rows.n_rows // rows.n_layers >= 2**LAP_BITS:
        must = f"must have fewer than {2**COUNT_BITS // use:,} uses of an expert and {2**LAP_BITS:,} tokens"
        raise InputError("cache pass", must, f"{min(most_uses, worst):,} and {rows.n_rows // rows.n_layers:,}")
