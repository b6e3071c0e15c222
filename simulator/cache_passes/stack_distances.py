"""
LRU stack distances: one pass over the rows serves every capacity.

The distance of an access is the number of distinct keys used more recently, before its row.  An LRU cache of n slots
holds the n keys used last, so an access misses exactly where distance >= n, whatever the length of the rows.

Global scope: each use gives its key the next slot of a ring and sets that slot's bit.  The distance is the number of
bits above the key's slot: `ranks` holds how many lie in the blocks of 512 above, one population count the rest.
When the ring is full the keys move together at its bottom.
Per-layer scope: a layer has few experts; the distance is the number of them with a later last use.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.cache_passes.recency_kernels import (
    BLOCK,
    CHUNK_ROWS,
    GROUP,
    LANES,
    NEVER,
    PIECE,
    POSITION,
    VECTOR_LANES,
    above_masks,
    count,
    fill,
    settle,
    sort,
)
from simulator.cache_passes.rows import Rows


class Ring:
    """
    The recency of all keys, none used yet: unused keys lie at the bottom, below all used ones.

    words uint64 (n_slots / 64 + 1,), ranks uint16 (n_blocks,), slots uint16 (n_keys,), numbers int64 (2,);
    word_ranks uint16 (n_slots / 64,): room for the set bits below each word, when keys move together
    """

    def __init__(self, n_keys: int) -> None:
        n_slots = BLOCK * LANES
        while n_slots < 4 * n_keys and n_slots < 2**16:
            n_slots *= 2
        self.words = np.zeros(n_slots // 64 + 1, np.uint64)
        self.ranks = np.zeros(n_slots // BLOCK, np.uint16)
        self.slots = np.arange(n_keys).astype(np.uint16)
        self.numbers = np.array([0, 0], np.int64)
        self.masks = above_masks()
        self.word_ranks = np.zeros(n_slots // 64, np.uint16)
        self.numbers[POSITION] = settle(self.words, self.ranks, n_keys)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What the kernels take."""
        return self.words, self.ranks, self.slots, self.numbers, self.masks, self.word_ranks


def _state(rows: Rows, is_per_layer: bool) -> tuple[np.ndarray, ...]:
    """A fresh ring, old blocks of a piece and fresh last uses; what is not asked for is as small as can be."""
    padded = -(-rows.n_experts // VECTOR_LANES) * VECTOR_LANES
    last_use = np.zeros(rows.n_layers * padded if is_per_layer else 1, np.uint32)
    return *Ring(1 if is_per_layer else rows.n_keys).arrays, np.zeros(PIECE, np.uint16), last_use


def _chunk(rows: Rows) -> np.ndarray:
    """Room for the distances of a chunk of rows, wherever it begins."""
    return np.empty(CHUNK_ROWS * rows.longest, np.int16)


def stack_distances(rows: Rows, *, per_layer: bool = False) -> np.ndarray:
    """int16 (n_accesses,): distances in the order of rows.keys, NEVER for a first use; within layers if per_layer."""
    out = np.empty(len(rows.keys), np.int16)
    if rows.n_rows:
        fill(*_state(rows, per_layer), per_layer, rows.keys, rows.offsets, 0, rows.n_rows, rows.n_experts, out)
    return out


def sorted_distances(rows: Rows, *, per_layer: bool = False) -> np.ndarray:
    """
    int16 (n_accesses,): the distances in ascending order within each row: misses at all capacities at once.

    A cache of n slots (of n slots in the row's layer if per_layer) misses the experts of a row from the first with
    distance >= n on.
    """
    out = np.empty(len(rows.keys), np.int16)
    sort(*_state(rows, per_layer), per_layer, rows.keys, rows.offsets, rows.n_experts, _chunk(rows), out)
    return out


def lru_miss_blocks(
    rows: Rows, capacities: Sequence[int], block_rows: int, *, per_layer: bool = False
) -> Iterator[np.ndarray]:
    """
    LRU misses of every row, some rows at a time: uint8 (block_rows, n_capacities) and a rest, uint16 where a row has
    more than 255 experts.  A block holds until the next one is asked for.

    capacities: slots in all, different ones in ascending order, at most 255; per_layer: shared among the layers as
    PerLayerLRU does.
    """
    slots = np.asarray(capacities, np.int64)
    share = np.minimum(_shares(slots, rows.n_layers) if per_layer else slots[None, :], NEVER)
    deepest = rows.n_experts if per_layer else rows.n_keys
    level_of = (share[:, None, :] <= np.arange(deepest + 1)[None, :, None]).sum(axis=2).astype(np.uint8)
    level_of[:, -1] = len(slots)  # first uses miss whatever the capacity
    kind = count_type(rows)
    n_words = max(1, -(-len(slots) * kind.itemsize // (8 * GROUP))) * GROUP
    ones = np.zeros((len(slots) + 1, n_words * 8 // kind.itemsize), kind)
    ones[:, : len(slots)] = np.arange(len(slots) + 1)[:, None] > np.arange(len(slots))[None, :]
    chunk, out = _chunk(rows), np.empty((min(block_rows, rows.n_rows), n_words), np.uint64)
    tables = level_of.reshape(-1), deepest, ones.view(np.uint64).reshape(-1), np.empty(len(chunk), np.uint32)
    fixed = *_state(rows, per_layer), per_layer, rows.keys, rows.offsets, rows.n_experts, chunk, *tables
    for first in range(0, rows.n_rows, block_rows):
        n_rows = min(block_rows, rows.n_rows - first)
        count(*fixed, first, first + n_rows, out)
        yield out.view(kind)[:n_rows, : len(slots)]


def count_type(rows: Rows) -> np.dtype:
    """The smallest of uint8 and uint16 that holds the experts of the longest row."""
    return np.dtype(np.uint8 if rows.longest <= np.iinfo(np.uint8).max else np.uint16)


def _shares(slots: np.ndarray, n_layers: int) -> np.ndarray:
    """int64 (n_layers, n_capacities): the slots of each layer; the first ones get one more where they do not divide."""
    return slots[None, :] // n_layers + (np.arange(n_layers)[:, None] < slots[None, :] % n_layers)
