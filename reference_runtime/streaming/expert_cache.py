"""
Experts that stream from disk through a cache of a fixed number of slots; what stays is the policy's decision.

    arena = n_slots + top_k slots, each of one padded expert

The policy is the simulator's own code and sees the same rows, so hits and misses are equal by construction.  The
top_k slots beside the cache hold the row in flight.  A prefill row that needs more than that comes in several waves.
"""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import numpy as np

from moeplan.errors import InputError
from moeplan.progress import OnProgress, ignore_progress
from reference_runtime.model import Expert, Wave
from reference_runtime.op_clock import RowReads
from reference_runtime.streaming.direct_reads import N_READERS, Readers, page_aligned
from reference_runtime.streaming.expert_store import ExpertStore, Places
from reference_runtime.streaming.storage_limiter import StorageLimiter
from simulator.policies import CachePolicy

Key = tuple[int, int]  # layer, expert


class StreamedExperts:
    """
    An ExpertSource (see model.py) that reads missing experts from a store.  Use it as a context manager.

    arena: uint8, all slots.  last_row: what the last row asked of cache and storage.  n_hits, n_misses, n_bytes: sums
    over all rows; waited_s: seconds that waves() waited for reads.
    """

    def __init__(
        self,
        store: ExpertStore,
        policy: CachePolicy,
        *,
        n_slots: int,
        top_k: int,
        prefetch: bool = True,
        n_readers: int = N_READERS,
        limiter: StorageLimiter | None = None,
        on_row: Callable[[RowReads], object] | None = None,
    ) -> None:
        """
        policy: an empty cache of n_slots.  prefetch: read when the router has spoken, otherwise when the experts are
        asked for.  on_row: told about each row when its last expert has arrived.  Takes over the store and closes it.
        """
        n_experts = len(store.places) * store.n_experts
        n_arena = n_experts if n_slots >= n_experts else n_slots + min(top_k, store.n_experts)
        slot_bytes = store.layout.padded_bytes
        self.arena_bytes, self.buffer_bytes = n_arena * slot_bytes, n_readers * store.buffer_bytes
        self.n_slots, self.prefetch, self.n_readers, self.limiter = n_slots, prefetch, n_readers, limiter
        self.store, self._policy, self.on_row = store, policy, on_row
        self.arena = page_aligned(self.arena_bytes)
        self._slots = [self.arena[at : at + slot_bytes] for at in range(0, self.arena_bytes, slot_bytes)]
        forms = list(dict.fromkeys(store.places))
        views = [[_expert(places, slot) for slot in self._slots] for places in forms]
        self._views = [views[forms.index(places)] for places in store.places]  # [layer][slot]
        self._free = list(range(n_arena))[::-1]
        self._slot_of: dict[Key, int] = {}
        self._n_coming = [0] * n_arena  # requests on their way into a slot
        self._to_issue: list[int] = []  # missing experts of the row, in its order reversed
        self._row: tuple[int, Sequence[int]] | None = None
        self._transient: frozenset[int] = frozenset()  # experts of the row that the policy does not keep
        self._failure: InputError | None = None
        self.n_hits = self.n_misses = self.n_bytes = 0
        self.waited_s = 0.0
        self.last_row: RowReads | None = None
        self._begin_counts(0, 0.0)
        self._readers = Readers(n_readers, store.buffer_bytes, limiter)

    def __enter__(self) -> "StreamedExperts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the readers and give the files back.  Matrices that were handed out must not be used any more."""
        self._readers.close()
        self.store.close()

    @property
    def read_mode(self) -> str:
        """How the files are read: see DirectFile.mode; several joined by +."""
        return " + ".join(dict.fromkeys(file.mode for file in self.store.files))

    def request(self, layer: int, row: Sequence[int]) -> None:
        """See ExpertSource."""
        if self._failure is not None:
            raise self._failure
        if self._row is not None:
            raise RuntimeError(f"the waves of layer {self._row[0]} were not taken to their end")
        if self.prefetch:
            self._begin(layer, row)

    def waves(self, layer: int, row: Sequence[int]) -> Iterator[Wave]:
        """See ExpertSource.  Raises InputError when a read failed; then and after, nothing is given out any more."""
        if self._row is None:
            self._begin(layer, row)
        if self._row != (layer, row):
            raise RuntimeError(f"layer {layer} asks for another row than it requested")
        views, slot_of, at = self._views[layer], self._slot_of, 0
        while at < len(row):
            self._issue()
            stop = at
            while stop < len(row) and (layer, row[stop]) in slot_of:
                stop += 1
            if stop == at:
                raise RuntimeError("the cache policy keeps experts of a row before others of it that are cached")
            slots = [slot_of[layer, expert] for expert in row[at:stop]]
            self._await(slots)
            if stop == len(row):
                self._end_row()
            yield [(expert, views[slot]) for expert, slot in zip(row[at:stop], slots, strict=True)]
            if self._transient:
                self._release(layer, self._transient.intersection(row[at:stop]))
            at = stop
        self._row = None

    def preload(self, progress: OnProgress = ignore_progress) -> None:
        """
        Read every expert before the first token, which counts neither as hits nor as misses.

        progress is called with experts read and experts in all.  Raises InputError where the slots do not hold all.
        """
        n_layers, row = len(self.store.places), range(self.store.n_experts)
        total = n_layers * len(row)
        if self.n_slots < total:
            raise InputError("expert cache", f"must have {total} slots to hold every expert", self.n_slots)
        hook, self.on_row = self.on_row, None
        for layer in range(n_layers):
            self.request(layer, row)
            for _ in self.waves(layer, row):
                pass
            progress((layer + 1) * len(row), total)
        self.on_row, self.last_row = hook, None
        self.n_hits = self.n_misses = self.n_bytes = 0
        self.waited_s = 0.0

    def _begin(self, layer: int, row: Sequence[int]) -> None:
        """Ask the policy, free what it evicts, issue the reads of what is missing."""
        if self._failure is not None:
            raise self._failure
        self._row = layer, row
        self._begin_counts(layer, perf_counter())
        missing, evicted = self._policy.access_row(layer, row)
        self._row_misses = len(missing)
        if missing or evicted:
            own = {expert for at, expert in evicted if at == layer}.intersection(row) if evicted else frozenset()
            self._transient = frozenset(own)
            for key in evicted:
                if key[0] != layer or key[1] not in own:
                    self._free.append(self._slot_of.pop(key))
            self._to_issue = missing[::-1]
            self._issue()
        elif self._transient:
            self._transient = frozenset()

    def _begin_counts(self, layer: int, now_s: float) -> None:
        self._row_layer, self._row_misses, self._row_bytes = layer, 0, 0
        self._issued_s = self._arrived_s = now_s

    def _issue(self) -> None:
        """Issue reads in the row's order as far as there are free slots."""
        while self._to_issue and self._free:
            expert, slot, layer = self._to_issue.pop(), self._free.pop(), self._row_layer
            reads = self.store.reads(layer, expert, self._slots[slot], slot, perf_counter())
            self._slot_of[layer, expert] = slot
            self._n_coming[slot] = len(reads)
            for read in reads:
                self._row_bytes += read.n_bytes
                self._readers.issue(read)

    def _await(self, slots: Sequence[int]) -> None:
        """Wait until slots are filled. Raises InputError."""
        coming = self._n_coming
        if not any(coming[slot] for slot in slots):
            return
        start_s = perf_counter()
        for slot in slots:
            while coming[slot]:
                done = self._readers.next_done()
                if done.failure is not None:
                    self._failure = done.failure
                    raise done.failure
                coming[done.tag] -= 1
                self._arrived_s = max(self._arrived_s, done.arrived_s)
        self.waited_s += perf_counter() - start_s

    def _release(self, layer: int, experts: frozenset[int]) -> None:
        """Free the slots of experts that have been used and are not kept."""
        for expert in experts:
            self._free.append(self._slot_of.pop((layer, expert)))

    def _end_row(self) -> None:
        assert self._row is not None
        n_hits = len(self._row[1]) - self._row_misses
        self.n_hits += n_hits
        self.n_misses += self._row_misses
        self.n_bytes += self._row_bytes
        self.last_row = RowReads(
            self._row_layer, n_hits, self._row_misses, self._row_bytes, self._issued_s, self._arrived_s
        )
        if self.on_row is not None:
            self.on_row(self.last_row)


def _expert(places: Places, slot: np.ndarray) -> Expert:
    gate, up, down = places
    return Expert(gate.matrix(slot), up.matrix(slot), down.matrix(slot))
