"""
Parameters and bytes of a model, all from its shapes.

A matrix is (rows, columns) = (outputs, inputs); blocks of a quantised type run along a row.  Small vectors (norms,
biases, attention sinks) are stored in the type of the `norm` group.  "Active" is what one token multiplies with: the
body and the LM head; an embedding row is a lookup.
"""

from collections.abc import Iterable
from typing import NamedTuple

from simulator.model.spec import ModelSpec
from simulator.model.tensor_types import bytes_per_weight, tensor_bytes


class Matrix(NamedTuple):
    """Shape of a weight matrix."""

    n_rows: int
    n_cols: int


GROUPS = ("embedding", "attention", "experts", "shared_experts", "dense_ffn", "router", "norm", "lm_head")


def attention_matrices(spec: ModelSpec) -> list[Matrix]:
    """q, k, v, o of one layer, or the latent projections (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    hidden, attention = spec.hidden_size, spec.attention
    mla = attention.mla
    if mla is None:
        q_width, kv_width = attention.n_heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
        return [Matrix(q_width, hidden), *[Matrix(kv_width, hidden)] * 2, Matrix(hidden, q_width)]
    n_heads, q_rank = attention.n_heads, mla.q_lora_rank
    q_width = n_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    queries = [Matrix(q_width, hidden)] if q_rank is None else [Matrix(q_rank, hidden), Matrix(q_width, q_rank)]
    down = Matrix(mla.kv_lora_rank + mla.qk_rope_head_dim, hidden)
    up = Matrix(n_heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
    return [*queries, down, up, Matrix(hidden, n_heads * mla.v_head_dim)]


def attention_vector_params(spec: ModelSpec) -> int:
    """Biases, query and key norms, latent norms and sinks of one layer."""
    attention, mla = spec.attention, spec.attention.mla
    q_width, kv_width = attention.n_heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
    norms = {"none": 0, "per_head": 2 * attention.head_dim, "all_heads": q_width + kv_width}[attention.qk_norm]
    biases = (q_width + 2 * kv_width) * attention.qkv_bias + spec.hidden_size * attention.output_bias
    latent = 0 if mla is None else mla.kv_lora_rank + (mla.q_lora_rank or 0)
    return norms + biases + latent + attention.n_heads * attention.sinks


def ffn_matrices(hidden_size: int, ffn_size: int) -> list[Matrix]:
    """Gate, up and down of a gated FFN; none for a width of 0."""
    if ffn_size == 0:
        return []
    return [Matrix(ffn_size, hidden_size), Matrix(ffn_size, hidden_size), Matrix(hidden_size, ffn_size)]


def expert_matrices(spec: ModelSpec) -> list[Matrix]:
    """Gate, up and down of one routed expert."""
    return ffn_matrices(spec.hidden_size, 0 if spec.experts is None else spec.experts.ffn_size)


def _count(matrices: Iterable[Matrix]) -> int:
    return sum(matrix.n_rows * matrix.n_cols for matrix in matrices)


def _bytes(matrices: Iterable[Matrix], tensor_type: str) -> int:
    return sum(tensor_bytes(matrix.n_rows, matrix.n_cols, tensor_type) for matrix in matrices)


def _vector_bytes(spec: ModelSpec, n_params: int) -> int:
    return tensor_bytes(n_params, 1, spec.tensor_types.norm)


# One layer


def attention_params_per_layer(spec: ModelSpec) -> int:
    """Parameters of a layer's attention, its biases, sinks and query and key norms included, the layer norms not."""
    return _count(attention_matrices(spec)) + attention_vector_params(spec)


def attention_bytes_per_layer(spec: ModelSpec, layer: int) -> int:
    """Bytes that the attention of a layer reads as weights, its two layer norms included; every layer is alike."""
    vectors = attention_vector_params(spec) + 2 * spec.hidden_size
    return _bytes(attention_matrices(spec), spec.tensor_types.attention) + _vector_bytes(spec, vectors)


def router_params_per_layer(spec: ModelSpec) -> int:
    """Parameters of a MoE layer's router, 0 for a dense model."""
    if spec.experts is None:
        return 0
    return spec.experts.n_experts * (spec.hidden_size + spec.experts.router_bias)


def router_bytes_per_layer(spec: ModelSpec) -> int:
    """Bytes of a MoE layer's router, 0 for a dense model."""
    if spec.experts is None:
        return 0
    matrix = Matrix(spec.experts.n_experts, spec.hidden_size)
    return _bytes([matrix], spec.tensor_types.router) + _vector_bytes(spec, matrix.n_rows * spec.experts.router_bias)


def expert_params(spec: ModelSpec) -> int:
    """Parameters of the matrices of one routed expert, 0 for a dense model; biases stay resident and are not in it."""
    return _count(expert_matrices(spec))


def expert_bytes(spec: ModelSpec) -> int:
    """Bytes of one routed expert as it is streamed: gate, up and down; 0 for a dense model."""
    return _bytes(expert_matrices(spec), spec.tensor_types.experts)


def expert_bias_params(spec: ModelSpec) -> int:
    """Biases of one routed expert."""
    if spec.experts is None or not spec.experts.expert_bias:
        return 0
    return 2 * spec.experts.ffn_size + spec.hidden_size


def shared_ffn_params(spec: ModelSpec) -> int:
    """Parameters of a MoE layer's shared experts."""
    return _count(ffn_matrices(spec.hidden_size, 0 if spec.experts is None else spec.experts.shared_ffn_size))


def shared_ffn_bytes_per_layer(spec: ModelSpec) -> int:
    """Bytes of a MoE layer's shared experts."""
    width = 0 if spec.experts is None else spec.experts.shared_ffn_size
    return _bytes(ffn_matrices(spec.hidden_size, width), spec.tensor_types.shared_experts)


def dense_ffn_params(spec: ModelSpec) -> int:
    """Parameters of the FFN of a layer without experts."""
    return _count(ffn_matrices(spec.hidden_size, spec.dense_ffn_size or 0))


def dense_ffn_bytes_per_layer(spec: ModelSpec) -> int:
    """Bytes of the FFN of a layer without experts."""
    return _bytes(ffn_matrices(spec.hidden_size, spec.dense_ffn_size or 0), spec.tensor_types.dense_ffn)


# The whole model


def vocab_params(spec: ModelSpec) -> int:
    """Parameters of one vocabulary matrix."""
    return spec.vocab_size * spec.hidden_size


def lm_head_bytes(spec: ModelSpec) -> int:
    """Bytes that the LM head reads; a tied head is the embedding matrix."""
    types = spec.tensor_types
    return tensor_bytes(spec.vocab_size, spec.hidden_size, types.embedding if spec.tied_embeddings else types.lm_head)


def predictor_params(spec: ModelSpec) -> int:
    """Parameters of the LM-head predictor, two matrices of its rank; 0 for a model without one."""
    return 0 if spec.lm_head_predictor is None else spec.lm_head_predictor.rank * (spec.hidden_size + spec.vocab_size)


def predictor_bytes(spec: ModelSpec) -> int:
    """Bytes of the LM-head predictor, stored in the type of the LM head; it is no part of the model file."""
    return round(predictor_params(spec) * bytes_per_weight(spec.tensor_types.lm_head))


def group_params(spec: ModelSpec) -> dict[str, int]:
    """Parameters of each tensor group; a tied embedding stands under `embedding` only."""
    n_moe, n_experts = spec.n_moe_layers, 0 if spec.experts is None else spec.experts.n_experts
    vectors = 2 * spec.hidden_size + attention_vector_params(spec)
    router_bias = n_experts * (spec.experts is not None and spec.experts.router_bias)
    return {
        "embedding": vocab_params(spec),
        "attention": spec.n_layers * _count(attention_matrices(spec)),
        "experts": n_moe * n_experts * expert_params(spec),
        "shared_experts": n_moe * shared_ffn_params(spec),
        "dense_ffn": (spec.n_layers - n_moe) * dense_ffn_params(spec),
        "router": n_moe * (router_params_per_layer(spec) - router_bias),
        "norm": spec.n_layers * vectors
        + spec.hidden_size
        + n_moe * (router_bias + n_experts * expert_bias_params(spec)),
        "lm_head": 0 if spec.tied_embeddings else vocab_params(spec),
    }


def group_bytes(spec: ModelSpec) -> dict[str, int]:
    """Bytes of each tensor group in the model file."""
    params, types = group_params(spec), spec.tensor_types
    n_moe, n_experts = spec.n_moe_layers, 0 if spec.experts is None else spec.experts.n_experts
    routers = _bytes([Matrix(n_experts, spec.hidden_size)], types.router)
    return {
        "embedding": tensor_bytes(spec.vocab_size, spec.hidden_size, types.embedding),
        "attention": spec.n_layers * _bytes(attention_matrices(spec), types.attention),
        "experts": n_moe * n_experts * expert_bytes(spec),
        "shared_experts": n_moe * shared_ffn_bytes_per_layer(spec),
        "dense_ffn": (spec.n_layers - n_moe) * dense_ffn_bytes_per_layer(spec),
        "router": n_moe * routers,
        "norm": _vector_bytes(spec, params["norm"]),
        "lm_head": 0 if spec.tied_embeddings else lm_head_bytes(spec),
    }


def n_params(spec: ModelSpec) -> int:
    """All parameters, a tied embedding once."""
    return sum(group_params(spec).values())


def body_active_params(spec: ModelSpec) -> int:
    """Parameters of the layers and the last norm that one token multiplies with: top_k of the routed experts."""
    groups = group_params(spec)
    body = n_params(spec) - groups["embedding"] - groups["lm_head"]
    if spec.experts is None:
        return body
    n_idle = spec.n_moe_layers * (spec.experts.n_experts - spec.experts.top_k)
    return body - n_idle * (expert_params(spec) + expert_bias_params(spec))


def n_active_params(spec: ModelSpec) -> int:
    """Parameters that one token multiplies with: the active body and the LM head."""
    return body_active_params(spec) + vocab_params(spec)


def vendor_active_params(spec: ModelSpec) -> int:
    """Active parameters as the vendor counts them (`active_convention`)."""
    n_matrices = {"body": 0, "body_and_head": 1, "body_and_both": 1 if spec.tied_embeddings else 2}
    return body_active_params(spec) + n_matrices[spec.active_convention] * vocab_params(spec)


def file_bytes(spec: ModelSpec) -> int:
    """Bytes of all tensors of the model file; its header and tokenizer (a few MiB) are left out."""
    return sum(group_bytes(spec).values())


def dense_bytes(spec: ModelSpec) -> int:
    """Bytes that stay resident: everything but the routed experts; a tied embedding once."""
    return file_bytes(spec) - group_bytes(spec)["experts"]


# Keys and values


def kv_bytes_per_token_and_layer(spec: ModelSpec) -> int:
    """Bytes that one token leaves in one layer's cache: keys and values, or the latent vector and its RoPE key."""
    attention, mla = spec.attention, spec.attention.mla
    if mla is not None:
        return tensor_bytes(1, mla.kv_lora_rank + mla.qk_rope_head_dim, spec.kv_type)
    return tensor_bytes(2, attention.n_kv_heads * attention.head_dim, spec.kv_type)


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """Bytes that one token leaves in the caches of all layers, before any window."""
    return spec.n_layers * kv_bytes_per_token_and_layer(spec)


def kv_bytes(spec: ModelSpec, context: int, chunk_tokens: int = 1) -> int:
    """
    Bytes of the KV cache at a context length.

    A sliding layer keeps min(context, window + chunk_tokens - 1) tokens: the first token of a chunk still sees a whole
    window.
    """
    windows = (spec.layer_window(layer) for layer in range(spec.n_layers))
    n_tokens = sum(context if window is None else min(context, window + chunk_tokens - 1) for window in windows)
    return n_tokens * kv_bytes_per_token_and_layer(spec)
