"""
The forward pass, in the paper's order: SmallThinker (arXiv:2507.20984), and the families that route after attention.

One sequence; any chunk of it at a time: a whole prompt, a part of one, or a single token of decode, with the keys
and values of all earlier tokens in the cache.

Names of axes: n tokens of the chunk, s keys visible, hidden, heads, kv (key-value heads), dim, ffn, k (top_k).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeplan.errors import InputError
from reference_runtime.kv_cache import KVCache
from reference_runtime.model import DenseLayer, Model
from reference_runtime.model_config import ModelConfig


class Watch(Protocol):
    """Told when an operation of a layer has ended; the timing record hangs on it."""

    def start(self, n_tokens: int) -> None:
        """A chunk of n_tokens begins."""
        ...

    def done(self, op: str, layer: int) -> None:
        """An operation has ended: embedding, router, attention, wait, expert_ffn, lm_head; layer -1: no layer's."""
        ...


class Router(Protocol):
    """Chooses the experts of a layer; the model's own choice is `OwnRouter`."""

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Expert ids (n, k), distinct, best first, and their weights (n, k) from the scores (n, n_experts)."""
        ...


class OwnRouter:
    """What the model itself says."""

    def choose(
        self, layer: int, scores: np.ndarray, first_position: int, config: ModelConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `route`."""
        return route(scores, config)


class _NoWatch:
    def start(self, n_tokens: int) -> None:
        pass

    def done(self, op: str, layer: int) -> None:
        pass


NO_WATCH, OWN_ROUTER = _NoWatch(), OwnRouter()
NO_LAYER = -1


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """What one chunk gives; zero_gate_frac is the share of neurons of the chosen experts that ReLU shuts."""

    logits: np.ndarray  # float32 (n, vocab), or (1, vocab) of the last token
    hidden: np.ndarray  # float32 like logits but (., hidden): the normed state that the LM head reads
    expert_ids: np.ndarray  # int16 (n, n_layers, k), best first
    expert_weights: np.ndarray  # float32 (n, n_layers, k)
    zero_gate_frac: np.ndarray  # float64 (n_layers,)
    predicted: dict[str, np.ndarray]  # post-attention models: what an earlier state would have chosen, see _predict


def forward(
    model: Model,
    token_ids: np.ndarray,
    cache: KVCache,
    *,
    router: Router = OWN_ROUTER,
    watch: Watch = NO_WATCH,
    last_logits_only: bool = False,
    hidden_only: bool = False,
) -> ForwardResult:
    """
    Run the next tokens of a sequence, (n,) ints, and extend the cache by them.

    hidden_only: stop before the LM head, logits are (0, vocab); see lm_head.
    Left out: nothing of the model; llama.cpp pins the window to 4096, here the file's own key counts.
    Raises InputError for a token outside the vocabulary, a chunk that the cache has no room for and an expert that
    cannot be read; FloatingPointError where the logits are no numbers.
    """
    config, dense, experts, kernels = model.config, model.dense, model.experts, model.kernels
    token_ids = _checked(token_ids, config, cache)  # (n,)
    n, first = len(token_ids), cache.n_tokens
    positions = np.arange(first, first + n)  # (n,)
    rope = rope_tables(positions, config.head_dim, config.rope_theta)  # cos, sin: (n, 1, dim / 2) each
    routed_ids, routed_weights, zero_frac, early = [], [], [], []

    watch.start(n)
    x = dense.token_embd.float32_rows(token_ids)  # (n, hidden)
    watch.done("embedding", NO_LAYER)
    for i, layer in enumerate(dense.layers):
        if config.pre_attention_router:
            # the router sees the RAW residual: before the input norm, before attention
            expert_ids, expert_weights = router.choose(i, x @ layer.router.T, first, config)  # (n, k), (n, k)
            row = row_of(expert_ids)
            watch.done("router", i)  # the top-k is known: t_attention and t_prefetch both run from here
            experts.request(i, row)
        else:
            early.append(_early_choice(x, layer, config))  # (n, k): recorded, never used

        h = rms_norm(x, layer.attn_norm, config.rms_norm_eps)  # (n, hidden)
        q = kernels.matmul(h, layer.q).reshape(n, config.n_heads, config.head_dim)  # (n, heads, dim)
        k = kernels.matmul(h, layer.k).reshape(n, config.n_kv_heads, config.head_dim)  # (n, kv, dim)
        v = kernels.matmul(h, layer.v).reshape(n, config.n_kv_heads, config.head_dim)  # (n, kv, dim)
        q, k = _qk_norm(q, layer.q_norm, config), _qk_norm(k, layer.k_norm, config)
        if config.has_rope(i):
            q, k = rotate(q, *rope, config.rope_style), rotate(k, *rope, config.rope_style)
        keys, values = cache.extend(i, k, v)  # (kv, s, dim) each
        attended = kernels.attend(q, keys, values, positions, config.layer_window(i))  # (n, heads * dim)
        y = x + kernels.matmul(attended, layer.o)  # (n, hidden)
        z = rms_norm(y, layer.ffn_norm, config.rms_norm_eps)  # (n, hidden)
        watch.done("attention", i)

        if not config.pre_attention_router:
            seen = z if config.post_attention_input == "normed" else y
            expert_ids, expert_weights = router.choose(i, seen @ layer.router.T, first, config)  # (n, k), (n, k)
            row = row_of(expert_ids)
            watch.done("router", i)
            experts.request(i, row)

        mixed, n_zero = np.zeros_like(z), 0  # sum over e of weight_e * down_e(activation(gate_e z) * up_e z)
        for wave in experts.waves(i, row):
            watch.done("wait", i)
            n_zero += kernels.add_experts(mixed, z, wave, expert_ids, expert_weights, config.activation)
            watch.done("expert_ffn", i)
        x = y + mixed  # (n, hidden)

        routed_ids.append(expert_ids)
        routed_weights.append(expert_weights)
        zero_frac.append(n_zero / (expert_ids.size * config.expert_ffn_size))
    cache.n_tokens += n

    hidden = rms_norm(x[-1:] if last_logits_only else x, dense.output_norm, config.rms_norm_eps)
    logits = lm_head(model, hidden[:0] if hidden_only else hidden)  # (n, vocab)
    watch.done("lm_head", NO_LAYER)
    return ForwardResult(
        logits=logits,
        hidden=hidden,
        expert_ids=np.stack(routed_ids, axis=1).astype(np.int16),
        expert_weights=np.stack(routed_weights, axis=1),
        zero_gate_frac=np.array(zero_frac),
        predicted={"previous-layer-state": np.stack(early, axis=1).astype(np.int16)} if early else {},
    )


def lm_head(model: Model, hidden: np.ndarray) -> np.ndarray:
    """
    Logits, float32 (n, vocab), of the normed states of a ForwardResult, float32 (n, hidden).

    Raises FloatingPointError where they are no numbers.
    """
    if len(hidden) == 0:
        return np.empty((0, model.config.vocab_size), np.float32)
    logits = model.kernels.matmul(hidden, model.dense.output)
    if not np.isfinite(logits).all():
        raise FloatingPointError("logits: must be finite numbers; the weights are damaged")
    return logits


def row_of(expert_ids: np.ndarray) -> Sequence[int]:
    """The distinct experts of a chunk, (n, k) -> in slot order for one token, ascending for several."""
    return expert_ids[0].tolist() if len(expert_ids) == 1 else np.unique(expert_ids).tolist()


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))  # (..., 1)
    return x * scale * weight


def _qk_norm(x: np.ndarray, weight: np.ndarray | None, config: ModelConfig) -> np.ndarray:
    """The norm of queries or keys, (n, heads, dim), where the model has one."""
    if weight is None:
        return x
    if config.qk_norm == "per_head":
        return rms_norm(x, weight, config.rms_norm_eps)
    return rms_norm(x.reshape(len(x), -1), weight, config.rms_norm_eps).reshape(x.shape)


def rope_tables(positions: np.ndarray, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position * theta^(-2j / head_dim), float32 (n, 1, head_dim / 2), to spread over the heads."""
    inverse = theta ** (-np.arange(0, head_dim, 2) / head_dim)  # (dim / 2,)
    angles = positions[:, None, None] * inverse  # (n, 1, dim / 2), in float64: large positions lose nothing
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, style: str = "neox") -> np.ndarray:
    """RoPE: dimension j turns with j + dim / 2 (neox), or 2j with 2j + 1 (interleaved); x: (n, heads, dim)."""
    if style == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]  # (n, heads, dim / 2) each
        return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
    a, b = np.split(x, 2, axis=-1)  # (n, heads, dim / 2) each
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def route(scores: np.ndarray, config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """
    The top_k experts of each token, best first, and their weights, each (n, k); scores: (n, n_experts).

        weight = sigmoid(score) / sum over the k of sigmoid(score), or softmax over the k only
        not normalised: sigmoid(score), or softmax over all experts
    """
    expert_ids = np.argsort(-scores, axis=-1, kind="stable")[:, : config.top_k]  # ties: the lower id
    top = np.take_along_axis(scores, expert_ids, axis=-1)  # (n, k)
    log_share = top if config.scoring == "softmax" else -np.logaddexp(0, -top)  # the latter: ln sigmoid
    if not config.normalised:
        if config.scoring == "softmax":
            best = scores.max(axis=-1, keepdims=True)
            log_share = top - best - np.log(np.exp(scores - best).sum(axis=-1, keepdims=True))
        return expert_ids, np.exp(log_share)
    share = np.exp(log_share - log_share[:, :1])  # (n, k), the best is 1: nothing over- or underflows to 0 / 0
    return expert_ids, share / share.sum(axis=-1, keepdims=True)


def _early_choice(x: np.ndarray, layer: DenseLayer, config: ModelConfig) -> np.ndarray:
    """
    What a prefetcher could know before attention: this layer's router on the state that enters the layer, under the
    norm that the router is used to; (n, k).
    """
    seen = rms_norm(x, layer.ffn_norm, config.rms_norm_eps) if config.post_attention_input == "normed" else x
    return route(seen @ layer.router.T, config)[0]


def _checked(token_ids: np.ndarray, config: ModelConfig, cache: KVCache) -> np.ndarray:
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError("tokens", "must be one row of at least one whole number", f"{ids.dtype} {ids.shape}")
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise InputError("tokens", f"must be 0 to {config.vocab_size - 1}", f"{ids.min()} to {ids.max()}")
    if cache.n_tokens + len(ids) > cache.capacity:
        raise InputError("context", f"must fit the cache's {cache.capacity} tokens", cache.n_tokens + len(ids))
    return ids.astype(np.int64)
