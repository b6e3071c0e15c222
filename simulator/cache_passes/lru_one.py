"""
LRU at one capacity: the trace itself is the recency list.

An access at position i is its key's last use while last_use[key] == i.  The cache holds the keys last used from some
position on; each miss moves that edge past one more last use.
"""

import numpy as np

from simulator.cache_passes.compiled import compiled
from simulator.cache_passes.rows import Rows
from simulator.cache_passes.stack_distances import count_type

ONE = np.uint32(1)


@compiled
def _replay(keys, offsets, n_keys, n_slots, out):  # type: ignore[no-untyped-def]
    last_use = np.zeros(n_keys, np.uint32)  # position + 1 in keys, 0 for never
    edge, n_held = np.uint32(1), 0  # held: last_use >= edge
    for row in range(len(offsets) - 1):
        begin, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        n_missing = 0
        for i in range(begin, end):
            n_missing += last_use[keys[i]] < edge
        for i in range(begin, end):
            last_use[keys[i]] = np.uint32(i) + ONE
        out[row] = n_missing
        n_held += n_missing
        while n_held > n_slots:
            n_held -= last_use[keys[np.uint64(edge - ONE)]] == edge
            edge = np.uint32(edge + ONE)


def lru_misses(rows: Rows, n_slots: int) -> np.ndarray:
    """Misses of a global LRU of n_slots: uint8 or uint16 (n_rows,)."""
    out = np.empty(rows.n_rows, count_type(rows))
    _replay(rows.keys, rows.offsets, rows.n_keys, n_slots, out)
    return out
