"""
Bursts: how a row of experts is read, on the runtime's own cache and readers.

Some requests at once on a device that had nothing to do for a while, in which products from RAM ran as in a layer; from
asking for the row to the arrival of its last read, as a run counts it.  On some machines the first read after a pause
takes longer, and traffic on the memory bus just before makes a read slower, so both are part of it.  The targets lie
all over an arena as a large cache's slots do, and so do the places in the file.
"""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType

from reference_runtime.probe.storage import offsets_in
from reference_runtime.streaming.direct_reads import DirectFile, Read
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.streaming.expert_store import Place, Places
from simulator.expert_layout import layout_of_bytes
from simulator.policies import make_policy

MOST_REQUESTS = 8
N_SLOTS, N_EXPERTS = 2 * MOST_REQUESTS, 8 * MOST_REQUESTS  # between two uses of an expert it has left the cache
NOTHING = Place(GGMLQuantizationType.F32, (1, 8), "ggml", 0)  # is never multiplied


class BurstKey(NamedTuple):
    """Seconds of n_requests that are issued at once after so long without a read."""

    request_bytes: int
    n_requests: int
    idle_s: float


class PieceStore:
    """An ExpertStore (see expert_store.py) of one layer: pieces of a file, read to places all over an arena."""

    def __init__(self, file: DirectFile, n_bytes: int, arena: np.ndarray) -> None:
        self.layout = layout_of_bytes(n_bytes, "bundle")
        self.places: tuple[Places, ...] = ((NOTHING, NOTHING, NOTHING),)
        self.n_experts, self.buffer_bytes, self._arena = N_EXPERTS, 0, arena
        self.files: tuple[DirectFile, ...] = (file,)
        rng = np.random.default_rng(1)
        self._offsets, self._starts = offsets_in(file.n_bytes, n_bytes, rng), offsets_in(len(arena), n_bytes, rng)

    def reads(self, layer: int, expert: int, slot: np.ndarray, tag: int, issued_s: float) -> list[Read]:
        """See ExpertStore."""
        at, n = next(self._starts), len(slot)
        return [Read(tag, self.files[0], next(self._offsets), n, n, self._arena[at : at + n], None, issued_s)]

    def close(self) -> None:
        """The file is its owner's."""


class Bursts:
    """Bursts on the runtime's readers."""

    def __init__(self, file: DirectFile, arena: np.ndarray, compute: Callable[[], object]) -> None:
        """arena: uint8 from a page's start, is overwritten.  compute: some product of a fraction of a millisecond."""
        self._file, self._compute, self._arena = file, compute, arena
        self._experts: dict[int, StreamedExperts] = {}
        self._next = 0

    def seconds(self, key: BurstKey) -> float:
        """Of one burst of whole pages, after idle_s of compute.  Raises InputError when a read failed."""
        experts = self._experts.get(key.request_bytes) or self._open(key.request_bytes)
        row = [(self._next + i) % N_EXPERTS for i in range(key.n_requests)]
        self._next += key.n_requests
        until = perf_counter() + key.idle_s
        while perf_counter() < until:
            self._compute()
        experts.request(0, row)
        for _ in experts.waves(0, row):
            pass
        reads = experts.last_row
        assert reads is not None
        assert reads.n_misses == key.n_requests
        return reads.arrived_s - reads.issued_s

    def close(self) -> None:
        """Join the readers."""
        for experts in self._experts.values():
            experts.close()

    def _open(self, n_bytes: int) -> StreamedExperts:
        store = PieceStore(self._file, n_bytes, self._arena)
        policy = make_policy("lru", N_SLOTS, 1)
        self._experts[n_bytes] = StreamedExperts(store, policy, n_slots=N_SLOTS, top_k=MOST_REQUESTS)
        return self._experts[n_bytes]
