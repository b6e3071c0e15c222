"""
The fast kernels: products straight from packed Q4_0 and Q8_0 weights with float32 activations, nothing rounded.

One token takes numba kernels, several take unpacked panels and BLAS; whatever is not packed takes plain numpy.  Results
do not depend on the number of threads (where BLAS has no part).  Only one Python thread may call these kernels at a
time: numba's simplest thread layer allows no more.  BLAS counts its own threads.
"""

import threading
from collections.abc import Iterator

import numba
import numpy as np

from moeplan.errors import InputError
from reference_runtime import packing
from reference_runtime.core_affinity import noting_workers
from reference_runtime.kernels import plain
from reference_runtime.kernels.fast_attention import attend_one
from reference_runtime.kernels.fast_dots import multiply_rows
from reference_runtime.kernels.fast_experts import add_wave
from reference_runtime.kernels.fast_panels import unpack_panel
from reference_runtime.matrix import BLOCK, Matrix
from reference_runtime.model import Expert, Wave

_FEW = 12  # tokens that are multiplied one by one: up to here that beats unpacking
_PANEL = 2**19  # float32 weights that are unpacked at a time
MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
_in_use = threading.local()  # numba counts threads per calling thread


class FastKernels:
    """Kernels (see model.py) for matrices packed by rows, and by columns for down; they run on n_threads threads."""

    def __init__(self, n_threads: int) -> None:
        """Raises InputError where numba does not have so many threads."""
        if not 1 <= n_threads <= MOST_THREADS:
            raise InputError("--threads", f"must be 1 to {MOST_THREADS}", n_threads)
        self.n_threads = n_threads
        self._panel = np.empty(0, np.float32)

    def matmul(self, x: np.ndarray, matrix: Matrix) -> np.ndarray:
        """x @ matrix.T: float32 (n, columns) -> float32 (n, rows)."""
        if x.shape[1] != matrix.shape[1]:  # the kernels read addresses: nothing below would notice
            raise ValueError(f"x of {x.shape[1]} columns times a matrix of {matrix.shape[1]}")
        if matrix.packing == "ggml":
            return x @ matrix.float32().T
        out = np.empty((len(x), matrix.shape[0]), np.float32)
        if matrix.packing == "rows" and len(x) <= _FEW:
            arguments = _kind(matrix), _address(matrix.data), matrix.shape[0], matrix.shape[1] // BLOCK
            _use(self.n_threads)
            for one, to in zip(_owned(x), out, strict=True):
                multiply_rows(self.n_threads, *arguments, one, to)
            return out
        if matrix.packing == "rows":
            for start, stop, panel in self._panels(matrix):
                np.matmul(x, panel.T, out=out[:, start:stop])
            return out
        out[:] = 0
        for start, stop, panel in self._panels(matrix):
            out += x[:, start:stop] @ panel
        return out

    def attend(
        self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, window: int | None
    ) -> np.ndarray:
        """See reference_runtime.kernels.plain.attend."""
        n, n_heads, dim = q.shape
        if n > 1 or dim % 32 or not (_is_plain(keys[0]) and _is_plain(values[0])):
            return plain.attend(q, keys, values, positions, window)
        first = 0 if window is None else max(0, int(positions[0]) - window + 1)
        scaled = _owned(q * np.float32(dim**-0.5)).reshape(len(keys), -1, dim)  # (kv, heads / kv, dim)
        keys, values = keys[:, first:], values[:, first:]
        addresses, strides = (_address(keys), _address(values)), (keys.strides[0], values.strides[0])
        _use(self.n_threads)
        mixed = attend_one(self.n_threads, scaled, *addresses, strides, keys.shape[1])
        return mixed.reshape(1, n_heads * dim)

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
        several tokens of an expert share its unpacked weights and multiply by the zeros.
        """
        if len(z) == 1 and all(_is_packed(expert) for _, expert in wave):
            chosen = [int(np.flatnonzero(expert_ids[0] == expert_id)[0]) for expert_id, _ in wave]
            experts = [expert for _, expert in wave]
            return self._add_wave(mixed, z, 0, experts, expert_weights[0, chosen], activation)
        n_zero = 0
        for expert_id, expert in wave:
            tokens, slots = np.nonzero(expert_ids == expert_id)  # (m,) each, a token once at most
            weights = expert_weights[tokens, slots]
            if len(tokens) <= _FEW and _is_packed(expert):
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
        x = rng.standard_normal((_FEW + 1, BLOCK), np.float32)
        for kind in sorted(packing.PACKED_KINDS):
            data = packing.pack(
                np.zeros(packing.matrix_bytes(kind, BLOCK, BLOCK), np.uint8), kind, (BLOCK, BLOCK), "rows"
            )
            rows, columns = (Matrix(kind, (BLOCK, BLOCK), data, which) for which in ("rows", "columns"))
            for n in (1, _FEW + 1):
                self.matmul(x[:n], rows)
                self.matmul(x[:n], columns)
                ids, weights = np.zeros((n, 1), np.int64), np.ones((n, 1), np.float32)
                self.add_experts(x[:n].copy(), x[:n], [(0, Expert(rows, rows, columns))], ids, weights, "relu")
        cache = np.zeros((1, 2, BLOCK), np.float32)
        for n_keys in (1, 2):
            keys = cache[:, :n_keys]
            self.attend(x[:1, None], keys, keys, np.zeros(1, np.int64), None)

    def _add_wave(
        self, mixed: np.ndarray, z: np.ndarray, token: int, experts: list[Expert], weights: np.ndarray, activation: str
    ) -> int:
        rows = [[*(_address(matrix.data) for matrix in expert), *map(_kind, expert)] for expert in experts]
        table, n_ffn = np.array(rows, np.int64), experts[0].gate.shape[0]
        out = np.zeros(mixed.shape[1], np.float32)
        is_relu = activation == "relu"
        _use(self.n_threads)
        n_zero = add_wave(self.n_threads, table, _owned(weights), _owned(z)[token], out, n_ffn, is_relu)
        mixed[token] += out
        return int(n_zero)

    def _panels(self, matrix: Matrix) -> Iterator[tuple[int, int, np.ndarray]]:
        """
        A packed matrix as float32, some lines at a time: first, last + 1, panel (lines, the other axis).

        A line is a row, or a column of a matrix packed by columns.  The panel is overwritten by the next.
        """
        by_columns = matrix.packing == "columns"
        n_lines, length = matrix.shape[::-1] if by_columns else matrix.shape
        step = min(n_lines, max(1, _PANEL // length))
        if self._panel.size < step * length:
            self._panel = np.empty(step * length, np.float32)
        for start in range(0, n_lines, step):
            stop = min(start + step, n_lines)
            panel = self._panel[: (stop - start) * length].reshape(-1, length)
            where = by_columns, _kind(matrix), _address(matrix.data), *matrix.shape, start, stop
            _use(self.n_threads)
            unpack_panel(self.n_threads, *where, panel)
            yield start, stop, panel


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
