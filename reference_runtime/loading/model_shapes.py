"""What an architecture's name implies, and the shape of every tensor of a model by the fields of model.py."""

from math import isfinite
from pathlib import Path
from typing import Any

from moeplan.errors import InputError
from reference_runtime.model_config import ModelConfig

Shape = tuple[int, ...]
_AFTER_ATTENTION: dict[str, Any] = {"pre_attention_router": False, "activation": "silu", "scoring": "softmax"}
# Fields of ModelConfig that no key says: src/models/*.cpp of llama.cpp, modeling_*.py of transformers.
TRAITS: dict[str, dict[str, Any]] = {
    "smallthinker": {},
    "olmoe": {**_AFTER_ATTENTION, "qk_norm": "all_heads", "normalised": False},
    "qwen3moe": {**_AFTER_ATTENTION, "qk_norm": "per_head"},
    "mixtral": _AFTER_ATTENTION,
}


def top_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Field of DenseWeights -> shape."""
    table = (config.vocab_size, config.hidden_size)
    return {"token_embd": table, "output_norm": (config.hidden_size,), "output": table}


def dense_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Field of DenseLayer -> shape; norms are vectors."""
    hidden, width, kv_width = config.hidden_size, config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "attn_norm": (hidden,),
        "q": (width, hidden),
        "k": (kv_width, hidden),
        "v": (kv_width, hidden),
        "o": (hidden, width),
        "ffn_norm": (hidden,),
        "router": (config.n_experts, hidden),
    }
    if config.qk_norm == "per_head":
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    elif config.qk_norm == "all_heads":
        shapes |= {"q_norm": (width,), "k_norm": (kv_width,)}
    return shapes


def expert_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Field of Expert -> shape of one expert's matrix."""
    hidden, ffn = config.hidden_size, config.expert_ffn_size
    return {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}


def check_config(config: ModelConfig, path: Path) -> ModelConfig:
    """The config itself, its numbers in reach of the forward pass. Raises InputError."""
    for name, value in vars(config).items():
        if isinstance(value, int | float) and not isinstance(value, bool) and not (value > 0 and isfinite(value)):
            raise InputError(f"{path}: {name}", "must be a finite number above 0", value)
    if config.top_k > config.n_experts:
        raise InputError(f"{path}: top_k", f"must be at most the {config.n_experts} experts", config.top_k)
    if config.n_heads % config.n_kv_heads:
        must = f"must be a multiple of the {config.n_kv_heads} key-value heads"
        raise InputError(f"{path}: n_heads", must, config.n_heads)
    if config.head_dim % 2:
        raise InputError(f"{path}: head_dim", "must be even for RoPE", config.head_dim)
    return config
