"""
The compiled loops behind stack_distances.py: the recency of all keys as bits, distances, and counts of them.

All kernels that call one another stand here, with what they are made of, as compiled.py asks.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from simulator.cache_passes.compiled import lean

NEVER = np.iinfo(np.int16).max  # the distance of a first use
BLOCK = 512  # slots that one population count covers
LANES = 32  # ranks (uint16) in a vector
PIECE = 64  # keys that move at once: a machine word of slots
CHUNK_ROWS = 16  # rows whose distances are at hand before they are used, few enough for the L1 cache
VECTOR_LANES = 16  # last uses (uint32) in a vector; a layer's are padded to a multiple
GROUP = 3  # words of counts that are summed side by side
ONE, TWO, ALL = np.uint64(1), np.uint64(2), np.uint64(2**64 - 1)
POSITION, N_SEEN = range(2)  # numbers of a ring

_BYTE, _SHORT, _INT, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_WORDS, _RANKS = ir.VectorType(_LONG, 8), ir.VectorType(_SHORT, LANES)


def above_masks() -> np.ndarray:
    """uint8 (8, 128): row b & 7, read from byte 63 - (b >> 3) on, is a block's mask of the bits above bit b."""
    masks = np.zeros((8, 128), np.uint8)
    masks[:, 64:] = 0xFF
    masks[:, 63] = [0xFF & (0xFE << bit) for bit in range(8)]
    return masks


def _call(builder: Any, name: str, returns: Any, *values: Any) -> Any:
    kind = ir.FunctionType(returns, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _load(builder: Any, address: Any, what: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, what.as_pointer()), align=align)


@intrinsic
def ones_above(typing_context, words, masks, slot):  # type: ignore[no-untyped-def]
    """Set bits above a slot within its block; addresses of the words and of above_masks()."""

    def emit(context, builder, signature, values):  # type: ignore[no-untyped-def]
        words, masks, slot = values
        number = lambda value: ir.Constant(_LONG, value)  # noqa: E731
        block = builder.mul(builder.lshr(slot, number(9)), number(BLOCK // 8))
        line = builder.mul(builder.and_(slot, number(7)), number(128))
        byte = builder.and_(builder.lshr(slot, number(3)), number(63))
        mask_at = builder.add(masks, builder.sub(builder.add(line, number(63)), byte))
        mask = _load(builder, mask_at, _WORDS, 1)
        bits = builder.and_(_load(builder, builder.add(words, block), _WORDS, 8), mask)
        counts = _call(builder, "llvm.ctpop.v8i64", _WORDS, bits)
        return _call(builder, "llvm.vector.reduce.add.v8i64", _LONG, counts)

    return types.uint64(types.uint64, types.uint64, types.uint64), emit


@intrinsic
def ones(typing_context, word):  # type: ignore[no-untyped-def]
    """Set bits of a word."""

    def emit(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return _call(builder, "llvm.ctpop.i64", _LONG, values[0])

    return types.uint64(types.uint64), emit


@intrinsic
def raise_ranks(typing_context, ranks, first, old_blocks, n_old, top):  # type: ignore[no-untyped-def]
    """For blocks first to first + 31 below the top: rank += the number of old_blocks at or below the block."""

    def emit(context, builder, signature, values):  # type: ignore[no-untyped-def]
        ranks, first, old_blocks, n_old, top = values
        spread = lambda value: builder.shuffle_vector(  # noqa: E731
            builder.insert_element(ir.Constant(_RANKS, ir.Undefined), value, ir.Constant(_INT, 0)),
            ir.Constant(_RANKS, ir.Undefined),
            ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES),
        )
        lanes = ir.Constant(_RANKS, list(range(LANES)))
        blocks = builder.add(spread(builder.trunc(first, _SHORT)), lanes)
        sums = cgutils.alloca_once_value(builder, ir.Constant(_RANKS, [0] * LANES))
        builder.store(ir.Constant(_RANKS, [0] * LANES), sums)
        with cgutils.for_range(builder, n_old) as loop:
            at = builder.add(old_blocks, builder.shl(loop.index, ir.Constant(_LONG, 1)))
            old = spread(_load(builder, at, _SHORT, 2))
            one = builder.zext(builder.icmp_unsigned(">=", blocks, old), _RANKS)
            builder.store(builder.add(builder.load(sums), one), sums)
        below = builder.icmp_unsigned("<", blocks, spread(builder.trunc(top, _SHORT)))
        more = builder.select(below, builder.load(sums), ir.Constant(_RANKS, [0] * LANES))
        at = builder.add(ranks, builder.shl(first, ir.Constant(_LONG, 1)))
        builder.store(
            builder.add(_load(builder, at, _RANKS, 2), more), builder.inttoptr(at, _RANKS.as_pointer()), align=2
        )
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64, types.intp, types.uint64), emit


@lean
def settle(words, ranks, n_keys):  # type: ignore[no-untyped-def]
    """Set the lowest n_keys bits and the ranks that follow; returns the first free slot, at a block's start."""
    words[:] = np.uint64(0)
    words[: n_keys // 64] = ALL
    words[n_keys // 64] = (ONE << np.uint64(n_keys % 64)) - ONE
    for block in range(len(ranks)):
        ranks[block] = max(0, n_keys - (block + 1) * BLOCK)
    return (n_keys + BLOCK - 1) // BLOCK * BLOCK


@lean
def _move_together(words, ranks, slots, word_ranks):  # type: ignore[no-untyped-def]
    """Give the keys the lowest slots in the order they have; returns the first free slot."""
    n_below = np.uint64(0)
    for word in range(len(word_ranks)):
        word_ranks[word] = n_below
        n_below += ones(words[word])
    for key in range(len(slots)):
        slot = np.uint64(slots[key])
        below = words[slot >> np.uint64(6)] & ((ONE << (slot & np.uint64(63))) - ONE)
        slots[key] = np.uint64(word_ranks[slot >> np.uint64(6)]) + ones(below)
    return settle(words, ranks, len(slots))


@lean
def _distances(words, ranks, slots, numbers, masks, word_ranks, old_blocks, keys, offsets, first, last, out):  # type: ignore[no-untyped-def]
    """Distances of rows first to last - 1 into out, int16, from index 0 on."""
    words_at, masks_at = np.uint64(words.ctypes.data), np.uint64(masks.ctypes.data)
    old_at, ranks_at = np.uint64(old_blocks.ctypes.data), np.uint64(ranks.ctypes.data)
    position, n_seen = numbers[POSITION], numbers[N_SEEN]
    n_slots = BLOCK * len(ranks)
    base = np.uint64(offsets[first])
    for row in range(first, last):
        begin, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        n_new = 0
        for i in range(begin, end):
            slot = np.uint64(slots[keys[i]])
            distance = np.int64(ranks[slot >> np.uint64(9)]) + np.int64(ones_above(words_at, masks_at, slot))
            is_new = distance >= n_seen
            out[i - base] = NEVER if is_new else distance
            n_new += is_new
        n_seen += n_new
        piece = begin
        while piece < end:
            n = min(np.int64(end - piece), PIECE)
            if (position & (BLOCK - 1)) + n > BLOCK:
                position = (position | (BLOCK - 1)) + 1
            if position + n > n_slots:
                position = _move_together(words, ranks, slots, word_ranks)
            for j in range(np.uint64(n)):
                key = keys[piece + j]
                slot = np.uint64(slots[key])
                words[slot >> np.uint64(6)] &= ~(ONE << (slot & np.uint64(63)))
                old_blocks[j] = slot >> np.uint64(9)
                slots[key] = np.uint64(position) + j
            top = position >> 9
            for block in range(0, top, LANES):
                raise_ranks(ranks_at, np.uint64(block), old_at, n, np.uint64(top))
            shift, bits = np.uint64(position & 63), ALL >> np.uint64(64 - n)
            words[position >> 6] |= bits << shift
            words[(position >> 6) + 1] |= (bits >> ONE) >> (np.uint64(63) - shift)
            position += n
            piece += np.uint64(n)
    numbers[POSITION], numbers[N_SEEN] = position, n_seen


@lean
def _layer_distances(last_use, keys, offsets, first, last, n_experts, out):  # type: ignore[no-untyped-def]
    """The same within each layer; last_use uint32 (n_layers, padded n_experts), flat, 0 is never."""
    n_padded = (n_experts + VECTOR_LANES - 1) // VECTOR_LANES * VECTOR_LANES
    base = np.uint64(offsets[first])
    for row in range(first, last):
        begin, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        if begin == end:
            continue
        layer = np.int64(keys[begin]) // n_experts
        line, first_key = np.uint64(layer * n_padded), np.uint64(layer * n_experts)
        for i in range(begin, end):
            own = last_use[line + np.uint64(keys[i]) - first_key]
            later = np.uint32(0)
            for expert in range(line, line + np.uint64(n_padded)):
                later += np.uint32(last_use[expert] > own)
            out[i - base] = NEVER if own == 0 else later
        for i in range(begin, end):
            last_use[line + np.uint64(keys[i]) - first_key] = np.uint32(i + ONE)


@lean
def fill(  # type: ignore[no-untyped-def]
    words, ranks, slots, numbers, masks, word_ranks, old_blocks, last_use, is_per_layer, keys,
    offsets, first, last, n_experts, out,
):  # fmt: skip
    if is_per_layer:
        _layer_distances(last_use, keys, offsets, first, last, n_experts, out)
    else:
        _distances(words, ranks, slots, numbers, masks, word_ranks, old_blocks, keys, offsets, first, last, out)


@lean
def count(  # type: ignore[no-untyped-def]
    words, ranks, slots, numbers, masks, word_ranks, old_blocks, last_use, is_per_layer, keys, offsets, n_experts,
    chunk, level_of, deepest, sums, levels, begin_row, end_row, out,
):  # fmt: skip
    """
    Misses of rows begin_row to end_row - 1 into out, uint64 (n_rows, n_words): as many counts side by side as a word
    has room for.

    level_of uint8 (1 or n_layers, deepest + 1), flat: the number of capacities that miss at a distance;
    sums uint64 (n_levels, n_words), flat: a one for each of them; n_words is a multiple of GROUP.
    """
    n_words = np.uint64(out.shape[1])
    for first in range(begin_row, end_row, CHUNK_ROWS):
        last = min(first + CHUNK_ROWS, end_row)
        fill(
            words, ranks, slots, numbers, masks, word_ranks, old_blocks, last_use, is_per_layer, keys, offsets,
            first, last, n_experts, chunk,
        )  # fmt: skip
        base = np.uint64(offsets[first])
        for row in range(first, last):
            begin, end = np.uint64(offsets[row]) - base, np.uint64(offsets[row + 1]) - base
            line = np.uint64(0)
            if is_per_layer and begin < end:
                line = np.uint64(np.int64(keys[begin + base]) // n_experts * (deepest + 1))
            first_sum = second_sum = third_sum = np.uint64(0)
            for i in range(begin, end):
                at = np.uint64(level_of[line + np.uint64(min(chunk[i], deepest))]) * n_words
                levels[i] = at
                first_sum += sums[at]
                second_sum += sums[at + ONE]
                third_sum += sums[at + TWO]
            own = row - begin_row
            out[own, 0], out[own, 1], out[own, 2] = first_sum, second_sum, third_sum
            # more than 24 capacities (12 where counts are uint16) go on from the levels
            for word in range(np.uint64(GROUP), n_words, np.uint64(GROUP)):
                first_sum = second_sum = third_sum = np.uint64(0)
                for i in range(begin, end):
                    at = np.uint64(levels[i]) + word
                    first_sum += sums[at]
                    second_sum += sums[at + ONE]
                    third_sum += sums[at + TWO]
                out[own, word], out[own, word + ONE], out[own, word + TWO] = first_sum, second_sum, third_sum


@lean
def sort(  # type: ignore[no-untyped-def]
    words, ranks, slots, numbers, masks, word_ranks, old_blocks, last_use, is_per_layer, keys,
    offsets, n_experts, chunk, out,
):  # fmt: skip
    """Distances into out, int16 (n_accesses,), in ascending order within each row."""
    n_rows = len(offsets) - 1
    for first in range(0, n_rows, CHUNK_ROWS):
        last = min(first + CHUNK_ROWS, n_rows)
        fill(
            words, ranks, slots, numbers, masks, word_ranks, old_blocks, last_use, is_per_layer, keys, offsets,
            first, last, n_experts, chunk,
        )  # fmt: skip
        base = np.uint64(offsets[first])
        for row in range(first, last):
            begin, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
            for i in range(begin - base, end - base):
                own, place = chunk[i], begin
                for j in range(begin - base, end - base):
                    place += np.uint64((chunk[j] < own) | ((chunk[j] == own) & (j < i)))
                out[place] = own
