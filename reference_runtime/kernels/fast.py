"""
The fast kernels: products straight from packed Q4_0 and Q8_0 weights with float32 activations, nothing rounded.

One token takes the kernels of fast_dots and fast_experts, several take tiles (fast_tiles); whatever is not packed takes
plain numpy.  Results do not depend on the number of threads.  Only one Python thread may call these kernels at a time:
numba's simplest thread layer allows no more.
"""

import threading

import numba
import numpy as np

from moeplan.errors import InputError
from reference_runtime import packing
from reference_runtime.core_affinity import noting_workers
from reference_runtime.kernels import plain
from reference_runtime.kernels.fast_attention import attend_one
from reference_runtime.kernels.fast_chunk_attention import attend_chunk
from reference_runtime.kernels.fast_dots import multiply_rows
from reference_runtime.kernels.fast_experts import add_wave
from reference_runtime.kernels.fast_tiles import multiply_tokens, multiply_tokens_by_columns, panels, panels_of_heads
from reference_runtime.matrix import BLOCK, Matrix
from reference_runtime.model import Expert, Wave

# BLAS has next to nothing to do where all is packed, and its threads spin after a product: on two threads attention of
# 33 tokens took 32 ms beside them and 0.4 ms without (AMD EPYC, Zen 4).
BLAS_THREADS = 1
# Tokens that are multiplied one by one.  Unpacking for a tile takes as long as 8 of them do (0.95 ms of a 1536 x 1536
# matrix in Q4_0, a core of that processor), and as 2 where an expert is so small that the calls take longest.
MOST_ONE_BY_ONE = 8
_SMALL_BYTES, MOST_OF_SMALL = 2**16, 2  # bytes of an expert's gate
MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
_in_use = threading.local()  # numba counts threads per calling thread


class FastKernels:
    """Kernels (see model.py) for matrices packed by rows, and by columns for down; they run on n_threads threads."""

    def __init__(self, n_threads: int) -> None:
        """Raises InputError where numba does not have so many threads."""
        if not 1 <= n_threads <= MOST_THREADS:
            raise InputError("--threads", f"must be 1 to {MOST_THREADS}", n_threads)
        self.n_threads = n_threads

    def matmul(self, x: np.ndarray, matrix: Matrix) -> np.ndarray:
        """x @ matrix.T: float32 (n, columns) -> float32 (n, rows)."""
        if x.shape[1] != matrix.shape[1]:  # the kernels read addresses: nothing below would notice
            raise ValueError(f"x of {x.shape[1]} columns times a matrix of {matrix.shape[1]}")
        if matrix.packing == "ggml":
            return x @ matrix.float32().T
        out = np.empty((len(x), matrix.shape[0]), np.float32)
        where = _kind(matrix), _address(matrix.data), *matrix.shape
        _use(self.n_threads)
        if matrix.packing == "columns":
            multiply_tokens_by_columns(self.n_threads, *where, panels(x), out)
        elif len(x) > MOST_ONE_BY_ONE:
            multiply_tokens(self.n_threads, *where, panels(x), out)
        else:
            for one, to in zip(_owned(x), out, strict=True):
                multiply_rows(self.n_threads, *where[:3], matrix.shape[1] // BLOCK, one, to)
        return out

    def attend(
        self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, window: int | None
    ) -> np.ndarray:
        """See reference_runtime.kernels.plain.attend."""
        n, n_heads, dim = q.shape
        if keys.shape != values.shape or keys.shape[2] != dim or n_heads % len(keys):  # as in matmul
            raise ValueError(f"queries {q.shape} on keys {keys.shape} and values {values.shape}")
        are_last = positions[0] + n == keys.shape[1] and positions[-1] - positions[0] == n - 1
        if dim % 32 or not (are_last and _is_plain(keys[0]) and _is_plain(values[0])):
            return plain.attend(q, keys, values, positions, window)
        first = 0 if window is None else max(0, int(positions[0]) - window + 1)
        keys, values = keys[:, first:], values[:, first:]
        cache = _address(keys), _address(values), (keys.strides[0], values.strides[0])
        scaled, group, n_keys = _owned(q * np.float32(dim**-0.5)), n_heads // len(keys), keys.shape[1]
        _use(self.n_threads)
        if n == 1:
            return attend_one(self.n_threads, scaled.reshape(-1, group, dim), *cache, n_keys).reshape(1, -1)
        mixed, seen = np.empty((n, n_heads, dim), np.float32), n_keys if window is None else min(window, n_keys)
        attend_chunk(self.n_threads, panels_of_heads(scaled), *cache, group, n_keys, seen, n, mixed)
        return mixed.reshape(n, -1)

    def add_experts(
        self,
        mixed: np.ndarray,
        z: np.ndarray,
        wave: Wave,
        expert_ids: np.ndarray,
        expert_weights: np.ndarray,
        activation: str,
    ) -> int:
        """
        See Kernels.  A token alone reads neither the up row nor the down column of a neuron whose gate is zero;
        many tokens of an expert share its unpacked weights and multiply by the zeros.
        """
        if len(z) == 1 and all(_is_packed(expert) for _, expert in wave):
            chosen = [int(np.flatnonzero(expert_ids[0] == expert_id)[0]) for expert_id, _ in wave]
            experts = [expert for _, expert in wave]
            return self._add_wave(mixed, z, 0, experts, expert_weights[0, chosen], activation)
        n_zero = 0
        for expert_id, expert in wave:
            tokens, slots = np.nonzero(expert_ids == expert_id)  # (m,) each, a token once at most
            weights = expert_weights[tokens, slots]
            if _is_packed(expert) and len(tokens) <= _most_one_by_one(expert):
                for i, token in enumerate(tokens.tolist()):
                    n_zero += self._add_wave(mixed, z, token, [expert], weights[i : i + 1], activation)
            else:
                n_zero += plain.add_expert(self.matmul, mixed, z, tokens, expert, weights, activation)
        return n_zero

    @noting_workers()
    def warm_up(self) -> None:
        """Compile all kernels, or load them from numba's cache: up to a minute once, later a second."""
        packing.warm_up()
        rng = np.random.default_rng(0)
        x = rng.standard_normal((MOST_ONE_BY_ONE + 1, BLOCK), np.float32)
        for kind in sorted(packing.PACKED_KINDS):
            data = packing.pack(
                np.zeros(packing.matrix_bytes(kind, BLOCK, BLOCK), np.uint8), kind, (BLOCK, BLOCK), "rows"
            )
            rows, columns = (Matrix(kind, (BLOCK, BLOCK), data, which) for which in ("rows", "columns"))
            for n in (1, MOST_ONE_BY_ONE + 1):
                self.matmul(x[:n], rows)
                self.matmul(x[:n], columns)
                ids, weights = np.zeros((n, 1), np.int64), np.ones((n, 1), np.float32)
                self.add_experts(x[:n].copy(), x[:n], [(0, Expert(rows, rows, columns))], ids, weights, "relu")
        cache = np.zeros((1, 2, BLOCK), np.float32)
        for n in (1, 2):
            self.attend(x[:n, None], cache, cache, np.arange(2 - n, 2), None)

    def _add_wave(
        self, mixed: np.ndarray, z: np.ndarray, token: int, experts: list[Expert], weights: np.ndarray, activation: str
    ) -> int:
        if any(expert.gate.shape != experts[0].gate.shape or expert.gate.shape[1] != z.shape[1] for expert in experts):
            raise ValueError(f"experts of {[expert.gate.shape for expert in experts]} on tokens of {z.shape[1]}")
        rows = [[*(_address(matrix.data) for matrix in expert), *map(_kind, expert)] for expert in experts]
        table, n_ffn = np.array(rows, np.int64), experts[0].gate.shape[0]
        out = np.zeros(mixed.shape[1], np.float32)
        is_relu = activation == "relu"
        _use(self.n_threads)
        n_zero = add_wave(self.n_threads, table, _owned(weights), _owned(z)[token], out, n_ffn, is_relu)
        mixed[token] += out
        return int(n_zero)


def _most_one_by_one(expert: Expert) -> int:
    return MOST_OF_SMALL if expert.gate.data.nbytes < _SMALL_BYTES else MOST_ONE_BY_ONE


def _use(n_threads: int) -> None:
    if getattr(_in_use, "n_threads", 0) != n_threads:  # numba's own call takes microseconds
        numba.set_num_threads(n_threads)
        _in_use.n_threads = n_threads


def _is_packed(expert: Expert) -> bool:
    return tuple(matrix.packing for matrix in expert) == ("rows", "rows", "columns")


def _is_plain(array: np.ndarray) -> bool:
    return array.dtype == np.float32 and array.flags.c_contiguous


def _kind(matrix: Matrix) -> int:
    return int(matrix.kind)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _owned(x: np.ndarray) -> np.ndarray:
    """A float32 array of the one kind that the kernels are compiled for: contiguous, aligned, writable."""
    return np.require(x, np.float32, ["C", "A", "W"])
