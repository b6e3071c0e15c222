"""
Made-up models whose rows miss a known number of experts: what reads cost beside their own time, where they stand.

A layer's row has so many experts that have to be read and takes the others from the cache, on the runtime's own cache,
readers and forward pass.  The same without a miss is the measure, in the same memory a moment before.

    router, attention, expert_ffn
    span         from the known top-k (or from asking on demand) to the arrival of the last missing expert
    hand_over    from that arrival to the end of the wait

Reads that take longer than the disk's own stand for slower storage: a thread that has slept for long works more slowly
for a while.  What is read goes to other memory, as large as the cache, and is not multiplied: the slots keep valid
weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType

from reference_runtime.forward import route
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.model import Model
from reference_runtime.model_config import ModelConfig
from reference_runtime.op_clock import OpClock
from reference_runtime.probe.in_situ import dense_weights
from reference_runtime.probe.memory import MemoryStore, WeightArena
from reference_runtime.probe.sampling import HICCUP_FRAC, Samples, trimmed_mean
from reference_runtime.probe.storage import offsets_in
from reference_runtime.session import Session
from reference_runtime.streaming.direct_reads import DirectFile, Read
from reference_runtime.streaming.expert_cache import StreamedExperts
from reference_runtime.streaming.storage_limiter import StorageLimiter
from reference_runtime.synthetic_model import synthetic_config
from simulator.expert_layout import ALIGNMENT_BYTES
from simulator.model.size import expert_bytes
from simulator.model.spec import ModelSpec
from simulator.policies import make_policy

MISSES = (1, 2, 4)
AT_LEAST_S = (0.002, 0.006, 0.018)  # that reads of SLOW_MISSES take: an expert of 2 MB from 1 GB/s to 100 MB/s
SLOW_MISSES = 2
N_LAYERS = 8
SKIPPED_TOKENS, COUNTED_TOKENS, SLOW_TOKENS = 1, 4, 1
PARTS = ("router", "attention", "expert_ffn", "span", "hand_over")


class ReadsKey(NamedTuple):
    """
    Seconds of a part of a layer (see the top of this file) with so many misses, whose reads take at_least_s or as long
    as the disk needs; without a miss prefetch is all one.
    """

    shape: str
    part: str
    n_misses: int
    is_prefetch: bool
    threads: int
    at_least_s: float = 0.0


class ShadowStore(MemoryStore):
    """A MemoryStore that, once `is_on_file`, reads pieces of a file instead, into other memory."""

    def __init__(self, spec: ModelSpec, n_layers: int, n_experts: int, file: DirectFile, targets: np.ndarray) -> None:
        """targets: uint8 from a page's start."""
        super().__init__(spec, GGMLQuantizationType[spec.tensor_types.experts.upper()], n_layers, n_experts)
        n, rng = self.layout.padded_bytes, np.random.default_rng(3)
        self._targets, self._file, self.is_on_file = targets, file, False
        self._places = offsets_in(file.n_bytes, n, rng), offsets_in(len(targets), n, rng)

    def reads(self, layer: int, expert: int, slot: np.ndarray, tag: int, issued_s: float) -> list[Read]:
        """See ExpertStore."""
        if not self.is_on_file:
            return super().reads(layer, expert, slot, tag, issued_s)
        offset, at, n = next(self._places[0]), next(self._places[1]), len(slot)
        return [Read(tag, self._file, offset, n, n, self._targets[at : at + n], None, issued_s)]


class RowsWithMisses:
    """
    A Router (see forward.py) whose rows have a known number of misses in a least-recently-used cache of n_slots.

    All layers use their experts alike, so the newest n_slots / n_layers of a layer, less those of one row, are there,
    and what is not among as many and those of one row more is not.
    """

    def __init__(self, n_layers: int, n_slots: int, top_k: int) -> None:
        self._top_k, self._rng = top_k, np.random.default_rng(0)
        self._n_there, self._n_maybe = n_slots // n_layers - top_k, n_slots // n_layers + 2 * top_k
        self.n_experts = self._n_maybe + 2 * top_k  # that each layer needs
        self._used: list[list[int]] = [list(range(self.n_experts)) for _ in range(n_layers)]  # oldest first
        self._rows: list[list[list[int]]] = []  # token, layer, row

    def plan(self, n_tokens: int, n_misses: int) -> None:
        """The rows of the next tokens; made before, so that making them takes no time of the router."""
        self._rows = [[self.row(layer, n_misses) for layer in range(len(self._used))] for _ in range(n_tokens)]

    def row(self, layer: int, n_misses: int) -> list[int]:
        """The next row of a layer, which counts as used."""
        used = self._used[layer]
        there = self._rng.choice(used[-self._n_there :], self._top_k - n_misses, replace=False).tolist()
        absent = used[: len(used) - self._n_maybe][:n_misses]
        row = [*there, *absent]
        self._used[layer] = [expert for expert in used if expert not in row] + row
        return row

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """See forward.Router."""
        _, weights = route(scores, config)
        return np.array([self._rows[first_position][layer]]), weights


class ModelWithReads:
    """A made-up model of a shape on a cache that holds half of its experts, or what the arena's bytes allow."""

    def __init__(self, spec: ModelSpec, arena_bytes: int, arena: WeightArena, file: DirectFile) -> None:
        """
        arena: of the dense weights; what is read goes over its experts.  Raises InputError where the system has not so
        much memory.
        """
        assert spec.experts is not None
        top_k = spec.experts.top_k
        n_layers = max(1, min(N_LAYERS, spec.n_layers, arena_bytes // (3 * top_k * expert_bytes(spec))))
        own = spec.n_layers * spec.experts.n_experts
        n_slots = max(3 * n_layers * top_k, min(own // 2, arena_bytes // expert_bytes(spec)))
        self.spec, self._top_k = spec, top_k
        self._config = replace(synthetic_config(spec, 0), n_layers=n_layers)
        kind = GGMLQuantizationType[spec.tensor_types.attention.upper()]
        self._dense = dense_weights(self._config, kind, arena)
        self._router = RowsWithMisses(n_layers, n_slots, top_k)
        n_target_bytes = -(-n_slots * expert_bytes(spec) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        targets = arena.for_experts[:n_target_bytes]
        self._store = ShadowStore(spec, n_layers, self._router.n_experts, file, targets)
        self.expert_bytes = self._store.layout.padded_bytes
        policy = make_policy("lru", n_slots, n_layers)
        self._limiter = StorageLimiter()
        self.experts = StreamedExperts(self._store, policy, n_slots=n_slots, top_k=top_k, limiter=self._limiter)
        self._fill(n_layers)

    def measure(self, kernels: FastKernels, samples: Samples) -> None:
        """One sample of each part for each number of misses, with prefetch and on demand."""
        for n_misses, at_least_s in ((0, 0.0), *takes(self._top_k)):
            for is_prefetch in (True, False) if n_misses else (True,):
                clock = self._run(kernels, n_misses, at_least_s, is_prefetch)
                for part, seconds in layer_parts(clock, n_misses, SKIPPED_TOKENS * self._config.n_layers).items():
                    key = ReadsKey(self.spec.name, part, n_misses, is_prefetch, kernels.n_threads, at_least_s)
                    samples.add(key, trimmed_mean(seconds, HICCUP_FRAC))

    def _run(self, kernels: FastKernels, n_misses: int, at_least_s: float, is_prefetch: bool) -> OpClock:
        """The clock of some tokens whose rows all have so many misses."""
        clock = OpClock()
        self.experts.on_row, self.experts.prefetch, self._limiter.latency_s = clock.row_read, is_prefetch, at_least_s
        n_tokens = SKIPPED_TOKENS + (SLOW_TOKENS if at_least_s else COUNTED_TOKENS)
        self._router.plan(n_tokens, n_misses)
        model = Model(self._config, self._dense, self.experts, kernels)
        session = Session(model, n_tokens, router=self._router, watch=clock)
        for token in range(n_tokens):
            session.feed([token])
        return clock

    def close(self) -> None:
        """Stop the readers."""
        self.experts.close()

    def _fill(self, n_layers: int) -> None:
        """Valid weights into every slot, and the cache into the state that the router knows."""
        for expert in range(self._router.n_experts):
            for layer in range(n_layers):
                self.experts.request(layer, [expert])
                for _ in self.experts.waves(layer, [expert]):
                    pass
        self._store.is_on_file = True


def takes(top_k: int) -> Iterator[tuple[int, float]]:
    """(misses, seconds that their reads take at least) of the rows that are measured beside those without a miss."""
    yield from ((n, 0.0) for n in MISSES if n <= top_k)
    yield from ((min(top_k, SLOW_MISSES), at_least_s) for at_least_s in AT_LEAST_S)


def layer_parts(clock: OpClock, n_misses: int, n_skipped: int) -> dict[str, list[float]]:
    """Seconds of each part in every layer but the first n_skipped that has just n_misses; see the top of this file."""
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for ends, reads in list(zip(_layer_ends(clock), clock.reads, strict=True))[n_skipped:]:
        if reads.n_misses == n_misses:
            began, router, attention, wait, expert_ffn = ends
            span, hand_over = reads.arrived_s - reads.issued_s, wait - max(attention, reads.arrived_s)
            values = (router - began, attention - router, expert_ffn - wait, span, hand_over)
            for part, seconds in zip(PARTS, values, strict=True):
                found[part].append(seconds)
    return found


def _layer_ends(clock: OpClock) -> Iterator[tuple[float, ...]]:
    """(begin, end of router, attention, wait, expert FFN) of each layer."""
    marks = clock.marks
    for i, (op, _, _) in enumerate(marks):
        if op == "router":
            yield tuple(end_s for _, _, end_s in marks[i - 1 : i + 4])


@contextmanager
def models_with_reads(
    shapes: Sequence[ModelSpec], arena_bytes: int, arena: WeightArena, file: DirectFile
) -> Iterator[list[ModelWithReads]]:
    """The shapes as models. Raises InputError where the system has not so much memory."""
    models: list[ModelWithReads] = []
    try:
        for spec in shapes:
            models.append(ModelWithReads(spec, arena_bytes, arena, file))
        yield models
    finally:
        for model in models:
            model.close()
