"""
Small random models, the same on every machine: a seed names the weights, and no file has to be kept.

The numbers come from the raw bits of PCG64, whose stream numpy promises to keep, and not from a distribution, whose
method may change.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from reference_runtime.model_config import ModelConfig

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RandomModel:
    """Float32 weights by field name of DenseWeights / DenseLayer; experts are banks (n_experts, rows, columns)."""

    config: ModelConfig
    top: dict[str, np.ndarray]  # token_embd, output_norm, and output unless tied
    layers: tuple[dict[str, np.ndarray], ...]

    def digest(self) -> str:
        """The first 16 hexadecimal digits of the sha256 of all weights."""
        digest = hashlib.sha256()
        for group in (self.top, *self.layers):
            for name, array in sorted(group.items()):
                digest.update(name.encode() + array.tobytes())
        return digest.hexdigest()[:16]


SMALLTHINKER = ModelConfig(
    name="random-smallthinker",
    n_layers=8,  # llama.cpp gives a model of 4 layers RoPE everywhere
    hidden_size=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=32,  # queries are wider than the residual, as in the 21B
    n_experts=16,
    top_k=4,
    expert_ffn_size=96,
    vocab_size=96,
    context_length=8192,
    rope_theta=1.5e6,
    rms_norm_eps=1e-6,
    window=4096,
    scoring="sigmoid",
    nope_period=4,
)
EVERYWHERE_ROPE = {"window": None, "nope_period": None}
LONG = replace(  # 4,200 tokens take seconds
    SMALLTHINKER, hidden_size=32, n_heads=2, n_kv_heads=1, n_experts=4, top_k=2, expert_ffn_size=32, vocab_size=64
)
_POST_ATTENTION = replace(
    SMALLTHINKER,
    **EVERYWHERE_ROPE,
    n_layers=4,
    scoring="softmax",
    pre_attention_router=False,
    activation="silu",
    context_length=512,
)
OLMOE = replace(
    _POST_ATTENTION,
    name="random-olmoe",
    architecture="olmoe",
    n_kv_heads=4,
    head_dim=16,  # llama.cpp wants heads * dim = hidden here, and as many key heads as query heads
    qk_norm="all_heads",
    normalised=False,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
)
QWEN3_MOE = replace(_POST_ATTENTION, name="random-qwen3moe", architecture="qwen3moe", qk_norm="per_head")
MIXTRAL = replace(
    _POST_ATTENTION, name="random-mixtral", architecture="mixtral", n_experts=8, top_k=2, rms_norm_eps=1e-5
)
FAMILIES = {"olmoe": OLMOE, "qwen3moe": QWEN3_MOE, "mixtral": MIXTRAL}


def random_model(config: ModelConfig, seed: int, tied: bool = False) -> RandomModel:
    """Weights under which every layer matters: matrices of unit gain, a residual of variance 1, norms around 1."""
    bits = np.random.PCG64(seed)
    table = (config.vocab_size, config.hidden_size)
    top = {
        "token_embd": uniform(bits, table) * np.float32(math.sqrt(3)),
        "output_norm": _norm(bits, config.hidden_size),
    }
    layers = tuple(dict(_layer(bits, config)) for _ in range(config.n_layers))
    if not tied:
        top["output"] = _matrix(bits, table)
    return RandomModel(config, top, layers)


def random_tokens(config: ModelConfig, n: int, seed: int) -> np.ndarray:
    """Token ids, int64 (n,)."""
    raw = np.random.PCG64(seed).random_raw(n)
    return (raw % np.uint64(config.vocab_size)).astype(np.int64)


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Field -> shape of a layer's weights."""
    hidden, ffn, experts = config.hidden_size, config.expert_ffn_size, config.n_experts
    width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    norms = {
        "none": {},
        "per_head": {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)},
        "all_heads": {"q_norm": (width,), "k_norm": (kv_width,)},
    }
    return {
        "attn_norm": (hidden,),
        "q": (width, hidden),
        "k": (kv_width, hidden),
        "v": (kv_width, hidden),
        "o": (hidden, width),
        "ffn_norm": (hidden,),
        "router": (experts, hidden),
        "gate": (experts, ffn, hidden),
        "up": (experts, ffn, hidden),
        "down": (experts, hidden, ffn),
        **norms[config.qk_norm],
    }


def uniform(bits: np.random.PCG64, shape: Shape) -> np.ndarray:
    """Float32 in [-1, 1), multiples of 2^-23: exact in every step, so the same everywhere."""
    steps = bits.random_raw(math.prod(shape)) >> np.uint64(40)  # 24 bits
    return (steps.astype(np.float64) / 2**23 - 1).astype(np.float32).reshape(shape)


def _layer(bits: np.random.PCG64, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    for field, shape in layer_shapes(config).items():
        yield field, _norm(bits, *shape) if len(shape) == 1 else _matrix(bits, shape)


def _matrix(bits: np.random.PCG64, shape: Shape) -> np.ndarray:
    return uniform(bits, shape) * np.float32(math.sqrt(3 / shape[-1]))


def _norm(bits: np.random.PCG64, size: int) -> np.ndarray:
    return np.float32(1) + uniform(bits, (size,)) * np.float32(0.25)
