"""The reference: dequantise, then multiply in plain float32 numpy."""

from collections.abc import Callable

import numpy as np

from reference_runtime.matrix import Matrix
from reference_runtime.model import Expert, Wave


class PlainKernels:
    """Kernels (see model.py) that read like the formula."""

    def matmul(self, x: np.ndarray, matrix: Matrix) -> np.ndarray:
        """x @ matrix.T: float32 (n, columns) -> float32 (n, rows)."""
        return x @ matrix.float32().T

    def attend(
        self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, window: int | None
    ) -> np.ndarray:
        """See `attend`."""
        return attend(q, keys, values, positions, window)

    def add_experts(
        self,
        mixed: np.ndarray,
        z: np.ndarray,
        wave: Wave,
        expert_ids: np.ndarray,
        expert_weights: np.ndarray,
        activation: str,
    ) -> int:
        """See Kernels; each expert runs once, on all tokens that chose it."""
        n_zero = 0
        for expert_id, expert in wave:
            tokens, slots = np.nonzero(expert_ids == expert_id)  # (m,) each, a token once at most
            n_zero += add_expert(self.matmul, mixed, z, tokens, expert, expert_weights[tokens, slots], activation)
        return n_zero


def add_expert(
    matmul: Callable[[np.ndarray, Matrix], np.ndarray],
    mixed: np.ndarray,
    z: np.ndarray,
    tokens: np.ndarray,
    expert: Expert,
    weights: np.ndarray,
    activation: str,
) -> int:
    """mixed[t] += weight * down(activation(gate z[t]) * (up z[t])) for tokens (m,), weights (m,); gates at zero."""
    gate = ACTIVATIONS[activation](matmul(z[tokens], expert.gate))  # (m, ffn)
    up = matmul(z[tokens], expert.up)  # (m, ffn)
    mixed[tokens] += weights[:, None] * matmul(gate * up, expert.down)
    return gate.size - int(np.count_nonzero(gate))


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x), with an exponent that cannot overflow."""
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1, e) / (1 + e)


ACTIVATIONS = {"relu": relu, "silu": silu}


def attend(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, window: int | None
) -> np.ndarray:
    """
    Causal grouped-query attention, scale 1 / sqrt(dim), before the output matrix: (n, heads * dim).

    q: (n, heads, dim) at the positions (n,); keys, values: (kv, s, dim) of positions 0 to s - 1.
    The query at i sees the key at j where 0 <= i - j, and i - j < window in a sliding layer.
    """
    n, n_heads, dim = q.shape
    n_kv = len(keys)
    first = 0 if window is None else max(0, int(positions[0]) - window + 1)  # what no query sees is not touched
    keys, values = keys[:, first:], values[:, first:]  # (kv, s, dim)
    n_keys = keys.shape[1]

    q = q.reshape(n, n_kv, -1, dim).transpose(1, 2, 0, 3).reshape(n_kv, -1, dim)  # (kv, heads / kv * n, dim)
    scores = q @ keys.transpose(0, 2, 1) * np.float32(dim**-0.5)  # (kv, heads / kv * n, s)
    scores = scores.reshape(n_kv, -1, n, n_keys)  # (kv, heads / kv, n, s)
    if n > 1:  # a single token stands behind all keys that are left
        distance = positions[:, None] - np.arange(first, first + n_keys)  # (n, s)
        hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)  # (n, s)
        scores[:, :, hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    share = np.exp(scores, out=scores)
    share /= share.sum(axis=-1, keepdims=True)
    mixed = share.reshape(n_kv, -1, n_keys) @ values  # (kv, heads / kv * n, dim)
    return mixed.reshape(n_kv, -1, n, dim).transpose(2, 0, 1, 3).reshape(n, n_heads * dim)
