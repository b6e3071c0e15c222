"""
The forward pass of SmallThinker (arXiv:2507.20984) in plain float32 numpy: exact, batch-efficient, no tricks.

`forward` reads top to bottom in the paper's order.  One sequence; any chunk of it at a time: a whole prompt, a part
of one, or a single token of decode, with the keys and values of all earlier tokens in the cache.

Names of axes: n tokens of the chunk, s keys visible, hidden, heads, kv (key-value heads), dim, ffn, k (top_k).
"""

from dataclasses import dataclass

import numpy as np

from moeplan.errors import InputError
from reference_runtime.gguf_weights import LayerWeights, ModelConfig, Weights


class KVCache:
    """
    Keys and values of the tokens so far, all layers: float32 (n_layers, kv, capacity, dim).

    A sliding layer's old tokens stay in it; the window is the attention's business.
    """

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        """Raises InputError where the capacity is above the model's context length."""
        if not 0 < capacity <= config.context_length:
            raise InputError("context", f"must be 1 to {config.context_length} tokens", capacity, "shorten the request")
        shape = (config.n_layers, config.n_kv_heads, capacity, config.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.capacity, self.n_tokens = capacity, 0

    def extend(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Store a chunk's k and v, each (n, kv, dim), behind the others; all of the layer's, each (kv, s, dim)."""
        end = self.n_tokens + len(k)
        self.keys[layer, :, self.n_tokens : end] = k.transpose(1, 0, 2)
        self.values[layer, :, self.n_tokens : end] = v.transpose(1, 0, 2)
        return self.keys[layer, :, :end], self.values[layer, :, :end]


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """What one chunk gives; zero_gate_frac is the share of neurons of the chosen experts that ReLU shuts."""

    logits: np.ndarray  # float32 (n, vocab)
    expert_ids: np.ndarray  # int16 (n, n_layers, k), best first
    expert_weights: np.ndarray  # float32 (n, n_layers, k), a row sums to 1
    zero_gate_frac: np.ndarray  # float64 (n_layers,)


def forward(weights: Weights, token_ids: np.ndarray, cache: KVCache) -> ForwardResult:
    """
    Run the next tokens of a sequence, (n,) ints, and extend the cache by them.

    Left out: nothing of the model; llama.cpp pins the window to 4096, here the file's own key counts.
    Raises InputError for a token outside the vocabulary and a chunk that the cache has no room for.
    """
    config = weights.config
    token_ids = _checked(token_ids, config, cache)  # (n,)
    n, first = len(token_ids), cache.n_tokens
    positions = np.arange(first, first + n)  # (n,)
    cos, sin = rope_tables(positions, config.head_dim, config.rope_theta)  # (n, 1, dim / 2) each
    routed_ids, routed_weights, zero_frac = [], [], []

    x = weights.token_embd[token_ids]  # (n, hidden)
    for i, layer in enumerate(weights.layers):
        # the router sees the RAW residual: before the input norm, before attention
        expert_ids, expert_weights = route(x @ layer.router.T, config)  # (n, k), (n, k)

        h = rms_norm(x, layer.attn_norm, config.rms_norm_eps)  # (n, hidden)
        q = (h @ layer.q.T).reshape(n, config.n_heads, config.head_dim)  # (n, heads, dim)
        k = (h @ layer.k.T).reshape(n, config.n_kv_heads, config.head_dim)  # (n, kv, dim)
        v = (h @ layer.v.T).reshape(n, config.n_kv_heads, config.head_dim)  # (n, kv, dim)
        if config.has_rope(i):
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys, values = cache.extend(i, k, v)  # (kv, s, dim) each
        y = x + attend(q, keys, values, positions, config.layer_window(i)) @ layer.o.T  # (n, hidden)

        z = rms_norm(y, layer.ffn_norm, config.rms_norm_eps)  # (n, hidden)
        mixed, zero = mix_experts(z, expert_ids, expert_weights, layer)  # (n, hidden)
        x = y + mixed  # (n, hidden)

        routed_ids.append(expert_ids)
        routed_weights.append(expert_weights)
        zero_frac.append(zero)
    cache.n_tokens += n

    logits = rms_norm(x, weights.output_norm, config.rms_norm_eps) @ weights.output.T  # (n, vocab)
    return ForwardResult(
        logits=logits,
        expert_ids=np.stack(routed_ids, axis=1).astype(np.int16),
        expert_weights=np.stack(routed_weights, axis=1),
        zero_gate_frac=np.array(zero_frac),
    )


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; x: (n, hidden)."""
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))  # (n, 1)
    return x * scale * weight


def rope_tables(positions: np.ndarray, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position * theta^(-2j / head_dim), float32 (n, 1, head_dim / 2), to spread over the heads."""
    inverse = theta ** (-np.arange(0, head_dim, 2) / head_dim)  # (dim / 2,)
    angles = positions[:, None, None] * inverse  # (n, 1, dim / 2), in float64: large positions lose nothing
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """RoPE with NEOX pairing: dimension j turns with j + dim / 2; x: (n, heads, dim)."""
    a, b = np.split(x, 2, axis=-1)  # (n, heads, dim / 2) each
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def route(scores: np.ndarray, config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """
    The top_k experts of each token, best first, and their weights, each (n, k); scores: (n, n_experts).

        weight = sigmoid(score) / sum over the k of sigmoid(score), or softmax over the k only
    """
    expert_ids = np.argsort(-scores, axis=-1, kind="stable")[:, : config.top_k]  # ties: the lower id
    top = np.take_along_axis(scores, expert_ids, axis=-1)  # (n, k)
    log_share = top if config.scoring == "softmax" else -np.logaddexp(0, -top)  # the latter: ln sigmoid
    share = np.exp(log_share - log_share[:, :1])  # (n, k), the best is 1: nothing over- or underflows to 0 / 0
    return expert_ids, share / share.sum(axis=-1, keepdims=True)


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
    distance = positions[:, None] - np.arange(first, first + n_keys)  # (n, s)
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)  # (n, s)
    scores[:, :, hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    share = np.exp(scores, out=scores)
    share /= share.sum(axis=-1, keepdims=True)
    mixed = share.reshape(n_kv, -1, n_keys) @ values  # (kv, heads / kv * n, dim)
    return mixed.reshape(n_kv, -1, n, dim).transpose(2, 0, 1, 3).reshape(n, n_heads * dim)


def mix_experts(
    z: np.ndarray, expert_ids: np.ndarray, expert_weights: np.ndarray, layer: LayerWeights
) -> tuple[np.ndarray, float]:
    """
    sum over e of weight_e * down_e(relu(gate_e z) * up_e z), (n, hidden), and the share of gates that are shut.

    z: (n, hidden); expert_ids, expert_weights: (n, k).  Each expert runs once, on all tokens that chose it.
    """
    top_k = expert_ids.shape[1]
    flat = expert_ids.ravel()  # (n * k,)
    order = np.argsort(flat, kind="stable")  # the choices, expert by expert
    experts, starts = np.unique(flat[order], return_index=True)
    mixed, n_zero = np.zeros_like(z), 0
    for e, choices in zip(experts, np.split(order, starts[1:]), strict=True):
        tokens = choices // top_k  # (m,), a token once at most
        gate = np.maximum(z[tokens] @ layer.gate[e].T, 0)  # (m, ffn)
        up = z[tokens] @ layer.up[e].T  # (m, ffn)
        down = (gate * up) @ layer.down[e].T  # (m, hidden)
        mixed[tokens] += expert_weights.ravel()[choices, None] * down
        n_zero += gate.size - np.count_nonzero(gate)
    return mixed, n_zero / (flat.size * layer.gate.shape[1])


def _checked(token_ids: np.ndarray, config: ModelConfig, cache: KVCache) -> np.ndarray:
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError("tokens", "must be one row of at least one whole number", f"{ids.dtype} {ids.shape}")
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise InputError("tokens", f"must be 0 to {config.vocab_size - 1}", f"{ids.min()} to {ids.max()}")
    if cache.n_tokens + len(ids) > cache.capacity:
        raise InputError("context", f"must fit the cache's {cache.capacity} tokens", cache.n_tokens + len(ids))
    return ids.astype(np.int64)
