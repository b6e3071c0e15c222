"""
Products alone, on a number of threads: matrices, rows of experts, attention.

The keys of the cases are those of the kernel table (see hardware_profiles/kernel_table.py).  Small working sets stand
for small models or short contexts, large ones for large models or long ones.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType

from reference_runtime.kernels.fast import MOST_OF_SMALL, MOST_ONE_BY_ONE, FastKernels
from reference_runtime.kernels.fast_tiles import TOKENS
from reference_runtime.matrix import Matrix, matrix_bytes
from reference_runtime.model import Expert, Wave
from reference_runtime.probe.memory import (
    MOST_VIEWS,
    OPEN_COLUMN,
    SPARSE_COLUMN,
    ZERO_FRAC,
    ExpertPool,
    WeightArena,
    cycled,
)
from reference_runtime.probe.plan import KINDS, STREAM_SHAPE, Plan
from reference_runtime.probe.sampling import Case, repeated
from simulator.model.size import attention_matrices
from simulator.model.spec import ModelSpec

F32 = GGMLQuantizationType.F32
FEW_TOKENS = (2, MOST_ONE_BY_ONE)
ROW_EXPERTS = (1, 4)
# Tokens of an expert of a chunk: up to where they are multiplied one by one, then whole tiles and the first of another.
ENDS = (MOST_OF_SMALL, MOST_ONE_BY_ONE, TOKENS, 2 * TOKENS)
LOADS = (1, *(load for end in ENDS for load in (end, end + 1)), 64, 128)
MOST_GEMM_FLOP = 3e9  # a longer product of a chunk tells no more than a shorter one
CHUNK_CONTEXTS = (0, 1024)  # keys before the chunk


@dataclass(frozen=True)
class RowKey:
    """What a row of the kernel table says beside its time."""

    op: str
    type: str
    size: int
    count: int
    zero_frac: float
    working_set: int
    threads: int


class Weights:
    """
    What products are timed on: one arena of dense weights, pools of experts of each shape and type that share
    another, keys and values.
    """

    def __init__(self, plan: Plan) -> None:
        """Raises InputError where the system has not so much memory."""
        self.arena = WeightArena(plan.arena_bytes)
        self.pools = [
            (spec, kind, ExpertPool(spec, kind, self.arena.for_experts)) for spec in plan.shapes for kind in KINDS
        ]
        self.caches = [
            _KeysAndValues(plan, spec, working_set)
            for spec in plan.shapes[:2]
            for working_set in (plan.warm_bytes, plan.middle_bytes, plan.arena_bytes)
        ]

    @property
    def arrays(self) -> list[np.ndarray]:
        """All the memory."""
        return [*self.arena.arrays, *(array for cache in self.caches for array in (cache.keys, cache.values))]


def type_name(kind: GGMLQuantizationType) -> str:
    """The tensor type as the model specs write it."""
    return kind.name.lower()


def product_cases(plan: Plan, weights: Weights, kernels: FastKernels) -> list[Case]:
    """Every product of the plan on the kernels' threads, without rows of experts."""
    return [
        *_gemv_cases(plan, weights.arena, kernels, (plan.warm_bytes, plan.arena_bytes)),
        *_gemm_cases(plan, weights.arena, kernels),
        *(case for cache in weights.caches for case in _attend_cases(cache, plan.contexts, kernels)),
        *_chunk_cases(plan, kernels),
    ]


def expert_cases(
    plan: Plan, spec: ModelSpec, kind: GGMLQuantizationType, pool: ExpertPool, kernels: FastKernels
) -> list[Case]:
    """Rows of a pool's experts; the pool must have been filled before they are sampled."""
    result = []
    for working_set in (plan.warm_bytes, plan.middle_bytes, plan.arena_bytes):
        for n in ROW_EXPERTS:
            waves = [list(enumerate(row)) for row in pool.rows(n, working_set)]
            for zero_frac, column in ((0.0, OPEN_COLUMN), (ZERO_FRAC, SPARSE_COLUMN)):
                z = np.zeros((1, spec.hidden_size), np.float32)
                z[0, column] = 1
                name = type_name(kind)
                key = RowKey("experts", name, pool.expert_bytes, n, zero_frac, working_set, kernels.n_threads)
                result.append(Case(key, _row_of_experts(kernels, z, waves)))
    return [*result, *_chunk_expert_cases(plan, spec, type_name(kind), pool, kernels)]


def _chunk_expert_cases(
    plan: Plan, spec: ModelSpec, name: str, pool: ExpertPool, kernels: FastKernels
) -> Iterator[Case]:
    """An expert of a chunk; shut gates save time only where its tokens are multiplied one by one."""
    inputs = ((0.0, OPEN_COLUMN), (ZERO_FRAC, SPARSE_COLUMN))
    waves = [list(enumerate(row)) for row in pool.rows(1, plan.arena_bytes)]
    for n in LOADS:
        for zero_frac, column in inputs if n <= MOST_ONE_BY_ONE else inputs[:1]:
            z = np.zeros((n, spec.hidden_size), np.float32)
            z[:, column] = 1
            key = RowKey("experts_chunk", name, pool.expert_bytes, n, zero_frac, plan.arena_bytes, kernels.n_threads)
            yield Case(key, _row_of_experts(kernels, z, waves))


def products_from_ram(kernels: FastKernels, arena: WeightArena, arena_bytes: int) -> Callable[[], object]:
    """A product whose weights come from RAM each time, of a fraction of a millisecond."""
    following, x = arena.cycle(KINDS[0], STREAM_SHAPE, arena_bytes), np.ones((1, STREAM_SHAPE[1]), np.float32)
    return lambda: kernels.matmul(x, following())


def dense_shapes(spec: ModelSpec) -> list[tuple[int, int]]:
    """The matrices of a layer's attention and the LM head."""
    return [*map(tuple, attention_matrices(spec)), (spec.vocab_size, spec.hidden_size)]  # type: ignore[list-item]


def _by_bytes(kind: GGMLQuantizationType, shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """One shape of each size."""
    return list({matrix_bytes(kind, *shape): shape for shape in shapes}.values())


def _gemv_cases(plan: Plan, arena: WeightArena, kernels: FastKernels, sets: tuple[int, ...]) -> Iterator[Case]:
    for kind in (*KINDS, F32):
        for shape in _by_bytes(kind, [shape for spec in plan.shapes for shape in dense_shapes(spec)]):
            n_bytes = matrix_bytes(kind, *shape)
            for working_set in sets:
                if arena.holds(kind, shape) and (n_bytes <= working_set):
                    key = RowKey("gemv", type_name(kind), n_bytes, 1, 0.0, working_set, kernels.n_threads)
                    yield Case(key, _product(kernels, arena.cycle(kind, shape, working_set), 1, shape[1]))


def _gemm_cases(plan: Plan, arena: WeightArena, kernels: FastKernels) -> Iterator[Case]:
    shapes = [shape for spec in plan.shapes for shape in dense_shapes(spec)[:-1]]
    counts = sorted({*FEW_TOKENS, *plan.chunks})
    for kind in (*KINDS, F32):
        for shape in _by_bytes(kind, shapes):
            for n in counts:
                if arena.holds(kind, shape) and 2 * shape[0] * shape[1] * n <= MOST_GEMM_FLOP:
                    n_bytes = matrix_bytes(kind, *shape)
                    key = RowKey("gemm", type_name(kind), n_bytes, n, 0.0, plan.arena_bytes, kernels.n_threads)
                    yield Case(key, _product(kernels, arena.cycle(kind, shape, plan.arena_bytes), n, shape[1]))


def _product(kernels: FastKernels, matrix: Callable[[], Matrix], n: int, n_columns: int) -> Callable[[], float]:
    x = np.random.default_rng(0).standard_normal((n, n_columns), np.float32)
    return repeated(lambda: kernels.matmul(x, matrix()))


def _row_of_experts(kernels: FastKernels, z: np.ndarray, waves: list[list[tuple[int, Expert]]]) -> Callable[[], float]:
    n = len(waves[0])
    ids, shares = np.tile(np.arange(n), (len(z), 1)), np.full((len(z), n), 1 / n, np.float32)
    mixed = np.zeros_like(z)
    following: Callable[[], Wave] = cycled(waves)
    return repeated(lambda: kernels.add_experts(mixed, z, following(), ids, shares, "relu"))


class _KeysAndValues:
    """A KV cache of the working set's bytes, float32 (layers, kv, capacity, dim) each, and a query of a model."""

    def __init__(self, plan: Plan, spec: ModelSpec, working_set: int) -> None:
        attention, capacity = spec.attention, plan.contexts[-1]
        layer_bytes = 2 * 4 * attention.n_kv_heads * capacity * attention.head_dim
        shape = (max(1, working_set // layer_bytes), attention.n_kv_heads, capacity, attention.head_dim)
        self._rng, self.working_set = np.random.default_rng(0), working_set
        self.n_sharing = attention.n_heads // attention.n_kv_heads
        self.keys, self.values = (self._rng.random(shape, np.float32) for _ in range(2))
        self.q = self._rng.standard_normal((1, attention.n_heads, attention.head_dim), np.float32)

    def views(self, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys and values of contexts of n tokens, in random order."""
        n_layers, _, capacity, _ = self.keys.shape
        starts = [(layer, at) for layer in range(n_layers) for at in range(0, capacity - n + 1, n)]
        chosen = [starts[i] for i in self._rng.permutation(len(starts))[:MOST_VIEWS]]
        return [(self.keys[layer, :, at : at + n], self.values[layer, :, at : at + n]) for layer, at in chosen]


def _attend_cases(cache: _KeysAndValues, contexts: Iterable[int], kernels: FastKernels) -> Iterator[Case]:
    """One token; keys and values lie as in a KV cache of the longest context."""
    for n in contexts:
        size = cache.q.shape[1] * cache.q.shape[2] * n
        key = RowKey("attend", "f32", size, cache.n_sharing, 0.0, cache.working_set, kernels.n_threads)
        following, positions = cycled(cache.views(n)), np.array([n - 1])
        yield Case(key, repeated(partial(_attend, kernels, cache.q, following, positions)))


def _chunk_cases(plan: Plan, kernels: FastKernels) -> Iterator[Case]:
    """A chunk's tokens, with and without keys before them."""
    for spec in plan.shapes[:2]:
        attention = spec.attention
        for n in plan.chunks:
            for before in CHUNK_CONTEXTS:
                keys, values = (
                    np.full((attention.n_kv_heads, before + n, attention.head_dim), size, np.float32)
                    for size in (0.1, 0.2)
                )
                q = np.ones((n, attention.n_heads, attention.head_dim), np.float32)
                size = attention.n_heads * attention.head_dim * (before * n + n * (n + 1) // 2)
                key = RowKey("attend_chunk", "f32", size, n, 0.0, plan.arena_bytes, kernels.n_threads)
                positions = np.arange(before, before + n)
                yield Case(key, repeated(partial(_attend, kernels, q, cycled([(keys, values)]), positions)))


def _attend(
    kernels: FastKernels,
    q: np.ndarray,
    following: Callable[[], tuple[np.ndarray, np.ndarray]],
    positions: np.ndarray,
) -> None:
    keys, values = following()
    kernels.attend(q, keys, values, positions, None)
