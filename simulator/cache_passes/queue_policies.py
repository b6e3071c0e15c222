"""
FIFO, CLOCK, SIEVE and S3-FIFO for up to 64 capacities in one pass over the rows.

A key has a mask with one bit a capacity: which caches hold it.  A hit is then a few operations on whole masks for all
capacities together, marks and use counts included; only misses and evictions go through the caches one by one.
A queue is a singly linked list of keys; the number of the last use tells the row's own experts.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from simulator.cache_passes.compiled import inlined, lean
from simulator.cache_passes.rows import Rows
from simulator.cache_passes.stack_distances import count_type
from simulator.policies.s3_fifo import MOST_USES, SMALL_PART, USES_TO_STAY

FIFO, CLOCK, SIEVE, S3_FIFO = range(4)
CODES = {"fifo": FIFO, "clock": CLOCK, "sieve": SIEVE, "s3-fifo": S3_FIFO}
NONE = np.uint16(2**16 - 1)  # no key
MAX_CAPACITIES = 64  # bits of a mask
# where a cache's figures begin in `ends`, uint16: ends of its queues and the key before SIEVE's hand
HEAD, TAIL, MAIN_HEAD, MAIN_TAIL, HAND = (np.uint64(i) for i in range(5))
# and in `numbers`, int64: keys held, slots, the small queue's share, keys in it, evictions from it
SIZE, SLOTS, SHARE, IN_SMALL, N_LET_GO = (np.uint64(i) for i in range(5))
STRIDE = np.uint64(8)  # figures of a cache in either
ZERO, ONE, BITS = np.uint64(0), np.uint64(1), np.uint64(MAX_CAPACITIES)
assert (MOST_USES, USES_TO_STAY) == (3, 2)  # two bits hold the uses, the higher one says whether to stay


@intrinsic
def first_bit(typing_context: Any, mask: Any) -> Any:
    """The index of the lowest set bit of a mask that has one."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number, flag = ir.IntType(64), ir.IntType(1)
        kind = ir.FunctionType(number, [number, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.cttz.i64")
        return builder.call(function, [values[0], ir.Constant(flag, 1)])

    return types.uint64(types.uint64), emit


@inlined
def _append(after, ends, cache, n_caches, head, key):  # type: ignore[no-untyped-def]
    """Put a key at the tail of the queue whose head stands at ends[head]."""
    after[np.uint64(key) * n_caches + cache] = NONE
    if ends[head] == NONE:
        ends[head] = key
    else:
        after[np.uint64(ends[head + ONE]) * n_caches + cache] = key
    ends[head + ONE] = key


@inlined
def _unlink(after, ends, cache, n_caches, head, before, key):  # type: ignore[no-untyped-def]
    """Take a key out of its queue; before: the one in front of it, NONE at the head."""
    following = after[np.uint64(key) * n_caches + cache]
    if before == NONE:
        ends[head] = following
    else:
        after[np.uint64(before) * n_caches + cache] = following
    if following == NONE:
        ends[head + ONE] = before


@inlined
def _oldest(after, ends, cache, n_caches, head, last_use, kept_from):  # type: ignore[no-untyped-def]
    """(the key before it, the first key of a queue that is not kept); NONE where all are."""
    before, key = NONE, ends[head]
    while key != NONE and last_use[key] > kept_from:
        before = key
        key = after[np.uint64(key) * n_caches + cache]
    return before, key


@lean
def _evict_fifo(after, ends, cache, n_caches, last_use, kept_from):  # type: ignore[no-untyped-def]
    head = cache * STRIDE + HEAD
    before, key = _oldest(after, ends, cache, n_caches, head, last_use, kept_from)
    _unlink(after, ends, cache, n_caches, head, before, key)
    return key


@lean
def _evict_clock(after, ends, cache, n_caches, last_use, kept_from, used):  # type: ignore[no-untyped-def]
    head, bit = cache * STRIDE + HEAD, ONE << cache
    while True:
        key = ends[head]
        _unlink(after, ends, cache, n_caches, head, NONE, key)
        if last_use[key] <= kept_from:
            if used[key] & bit == ZERO:
                return key
            used[key] &= ~bit
        _append(after, ends, cache, n_caches, head, key)


@lean
def _evict_sieve(after, ends, cache, n_caches, last_use, kept_from, used):  # type: ignore[no-untyped-def]
    head, tail, hand, bit = cache * STRIDE + HEAD, cache * STRIDE + TAIL, cache * STRIDE + HAND, ONE << cache
    before = ends[hand]
    while True:
        key = ends[head] if before == NONE else after[np.uint64(before) * n_caches + cache]
        is_kept = last_use[key] > kept_from
        if not is_kept and used[key] & bit == ZERO:
            is_last = key == ends[tail]
            _unlink(after, ends, cache, n_caches, head, before, key)
            ends[hand] = NONE if is_last else before
            return key
        if not is_kept:
            used[key] &= ~bit
        before = NONE if key == ends[tail] else key


@lean
def _evict_s3(after, ends, numbers, let_go, cache, n_caches, last_use, kept_from, low, high):  # type: ignore[no-untyped-def]
    """low, high: the two bits of the uses."""
    first, bit = cache * STRIDE, ONE << cache
    while True:
        is_small = numbers[first + IN_SMALL] > numbers[first + SHARE] or ends[first + MAIN_HEAD] == NONE
        head = first + (HEAD if is_small else MAIN_HEAD)
        before, key = _oldest(after, ends, cache, n_caches, head, last_use, kept_from)
        if key == NONE:
            is_small = not is_small
            head = first + (HEAD if is_small else MAIN_HEAD)
            before, key = _oldest(after, ends, cache, n_caches, head, last_use, kept_from)
        _unlink(after, ends, cache, n_caches, head, before, key)
        if is_small:
            numbers[first + IN_SMALL] -= 1
            stays = high[key] & bit != ZERO
            low[key] &= ~bit
            high[key] &= ~bit
            if not stays:
                numbers[first + N_LET_GO] += 1
                let_go[np.uint64(key) * n_caches + cache] = numbers[first + N_LET_GO]
                return key
        else:
            if (low[key] | high[key]) & bit == ZERO:
                return key
            high[key] &= low[key] | ~bit  # one use less: 3 -> 2, 2 -> 1, 1 -> 0
            low[key] ^= bit
        _append(after, ends, cache, n_caches, first + MAIN_HEAD, key)


@inlined
def _queue_for(numbers, let_go, cache, n_caches, key):  # type: ignore[no-untyped-def]
    """The queue of S3-FIFO that a new key enters."""
    first, at = cache * STRIDE, np.uint64(key) * n_caches + cache
    number = np.int64(let_go[at])
    let_go[at] = 0
    n_remembered = numbers[first + SLOTS] - numbers[first + SHARE]
    is_remembered = number > 0 and numbers[first + N_LET_GO] - number < n_remembered
    if not is_remembered:
        numbers[first + IN_SMALL] += 1
    return MAIN_HEAD if is_remembered else HEAD


@lean
def _replay(  # type: ignore[no-untyped-def]
    code, keys, offsets, n_caches, after, ends, numbers, let_go, held, low, high, last_use, begin_row, end_row, out
):  # fmt: skip
    """
    Misses of rows begin_row to end_row - 1 into out (n_rows, n_capacities), which begins at 0.

    The other arrays are those of _caches.
    """
    full = ~ZERO >> (BITS - n_caches)
    for row in range(begin_row, end_row):
        begin, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        grown = ZERO
        for i in range(begin, end):
            key = keys[i]
            hits = held[key]
            missing = full & ~hits
            grown |= missing
            held[key] = full
            last_use[key] = np.uint32(i + ONE)
            if code == S3_FIFO:
                low_before = low[key]
                low[key] = (low_before ^ hits) | (high[key] & low_before & hits)
                high[key] |= low_before & hits
            elif code != FIFO:
                low[key] |= hits
            while missing != ZERO:
                cache = first_bit(missing)
                missing &= missing - ONE
                head = _queue_for(numbers, let_go, cache, n_caches, key) if code == S3_FIFO else HEAD
                _append(after, ends, cache, n_caches, cache * STRIDE + head, key)
                numbers[cache * STRIDE + SIZE] += 1
                out[row - begin_row, cache] += 1
        while grown != ZERO:
            cache = first_bit(grown)
            grown &= grown - ONE
            slots = numbers[cache * STRIDE + SLOTS]
            kept_from = np.uint32(max(np.int64(begin), np.int64(end) - slots))
            for _ in range(numbers[cache * STRIDE + SIZE] - slots):
                if code == FIFO:
                    victim = _evict_fifo(after, ends, cache, n_caches, last_use, kept_from)
                elif code == CLOCK:
                    victim = _evict_clock(after, ends, cache, n_caches, last_use, kept_from, low)
                elif code == SIEVE:
                    victim = _evict_sieve(after, ends, cache, n_caches, last_use, kept_from, low)
                else:
                    victim = _evict_s3(
                        after, ends, numbers, let_go, cache, n_caches, last_use, kept_from, low, high
                    )  # fmt: skip
                held[victim] &= ~(ONE << cache)
                numbers[cache * STRIDE + SIZE] -= 1


def _caches(rows: Rows, slots: np.ndarray, is_s3: bool) -> tuple[np.ndarray, ...]:
    """
    Empty caches, in the order in which the pass takes them:

    after uint16 (n_keys, n_caches), flat: the next younger key in a cache's queue
    ends uint16, numbers int64 (n_caches * STRIDE,): see HEAD and SIZE
    let_go uint32 (n_keys, n_caches), flat: the number of a key's last eviction from the small queue, 0 for none
    held, low, high uint64 (n_keys,): a bit a cache; held; used (CLOCK, SIEVE), or the two bits of the uses (S3-FIFO)
    last_use uint32 (n_keys,): index + 1 of the key's last access
    """
    n_caches = len(slots)
    after, ends = np.full(rows.n_keys * n_caches, NONE), np.full(n_caches * int(STRIDE), NONE)
    numbers = np.zeros((n_caches, int(STRIDE)), np.int64)
    numbers[:, SLOTS], numbers[:, SHARE] = slots, np.maximum(1, slots // SMALL_PART)
    let_go = np.zeros(rows.n_keys * n_caches if is_s3 else 1, np.uint32)
    masks = tuple(np.zeros(rows.n_keys, np.uint64) for _ in range(3))
    return after, ends, numbers.reshape(-1), let_go, *masks, np.zeros(rows.n_keys, np.uint32)


def queue_miss_blocks(rows: Rows, policy: str, slots: np.ndarray, block_rows: int) -> Iterator[np.ndarray]:
    """
    Misses of a policy of CODES for 1 to 64 capacities above zero, some rows at a time: see lru_miss_blocks.
    """
    code, out = CODES[policy], np.empty((min(block_rows, rows.n_rows), len(slots)), count_type(rows))
    caches = _caches(rows, np.asarray(slots, np.int64), code == S3_FIFO)
    for first in range(0, rows.n_rows, block_rows):
        n_rows = min(block_rows, rows.n_rows - first)
        out[:n_rows] = 0
        _replay(code, rows.keys, rows.offsets, np.uint64(len(slots)), *caches, first, first + n_rows, out)
        yield out[:n_rows]
