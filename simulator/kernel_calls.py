"""
The kernel calls behind each op, for devices whose kernels were measured: see hardware_profiles/kernel_table.py.

Working sets: what a layer's dense part touches comes again after one token, an expert after a lap of the experts that
are in use; both decide whether a processor's cache still holds them.
"""

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from hardware_profiles.kernel_table import Call, KernelOp
from simulator.model import size as model_size
from simulator.model.size import Matrix
from simulator.model.spec import ModelSpec
from simulator.model.tensor_types import tensor_bytes

NO_TYPE = "f32"  # of ops without a matrix; activations, keys and values are float32


def router_calls(model: ModelSpec, n_tokens: int = 1) -> tuple[Call, ...]:
    """Scores, top-k and weights."""
    if model.experts is None:
        return ()
    size = model.experts.n_experts * model.hidden_size
    return (Call("router", NO_TYPE, size, n_tokens, working_set=token_bytes(model)),)


def attention_calls(model: ModelSpec, n_pairs: float, n_tokens: int = 1) -> tuple[Call, ...]:
    """q, k, v, o, the products with n_pairs visible keys, and the rest; () for latent attention, never measured."""
    attention = model.attention
    if attention.mla is not None:
        return ()
    seen_bytes = n_pairs / n_tokens * model_size.kv_bytes_per_token(model)
    working_set = _rounded(token_bytes(model) + seen_bytes)
    matrices = matrix_calls(model_size.attention_matrices(model), model.tensor_types.attention, n_tokens, working_set)
    pairs = attention.n_heads * attention.head_dim * n_pairs
    op: KernelOp = "attend" if n_tokens == 1 else "attend_chunk"
    count = attention.n_heads // attention.n_kv_heads if n_tokens == 1 else n_tokens
    attend = Call(op, NO_TYPE, pairs, count, working_set=working_set)
    rest = Call("attention_rest", NO_TYPE, model.hidden_size, n_tokens, working_set=working_set)
    return (*matrices, attend, rest)


def expert_ffn_calls(
    model: ModelSpec, n_experts_used: int, n_tokens: int, zero_frac: float, loads: tuple[int, ...] = ()
) -> tuple[Call, ...]:
    """
    The routed experts of one token, or of a chunk: loads are the tokens of each of its experts, () for evenly spread.

    () where shared experts or SwiGLU's full width were never measured as such: SwiGLU is zero_frac 0.
    """
    experts = model.experts
    if experts is None or experts.n_shared:
        return ()
    tensor_type, n_bytes = model.tensor_types.experts, model_size.expert_bytes(model)
    row = (Call("row", NO_TYPE, 1, 1), Call("row_wait", NO_TYPE, 1, 1))
    if n_tokens == 1:
        working_set = n_bytes * experts.n_experts * model.n_moe_layers
        return (Call("experts", tensor_type, n_bytes, n_experts_used, zero_frac, working_set), *row)
    counts = Counter(loads or even_loads(n_tokens * experts.top_k, n_experts_used))
    chunk = (Call("experts_chunk", tensor_type, n_bytes, n, zero_frac, times=times) for n, times in counts.items())
    return (*chunk, *row)


def even_loads(n_choices: int, n_experts: int) -> tuple[int, ...]:
    """Choices of experts spread over so many as evenly as whole numbers allow, ascending."""
    least, n_more = divmod(n_choices, max(1, n_experts))
    return (least,) * (n_experts - n_more) + (least + 1,) * n_more


def dense_ffn_calls(model: ModelSpec, n_tokens: int = 1) -> tuple[Call, ...]:
    """Gate, up and down of a layer without experts."""
    matrices = model_size.ffn_matrices(model.hidden_size, model.dense_ffn_size or 0)
    return matrix_calls(matrices, model.tensor_types.dense_ffn, n_tokens, token_bytes(model))


def lm_head_calls(model: ModelSpec) -> tuple[Call, ...]:
    """The product of the last token."""
    types = model.tensor_types
    tensor_type = types.embedding if model.tied_embeddings else types.lm_head
    return (Call("gemv", tensor_type, model_size.lm_head_bytes(model), 1, working_set=token_bytes(model)),)


def step_calls(model: ModelSpec, n_tokens: int = 1) -> tuple[Call, ...]:
    """What a step costs beside its layers."""
    return (Call("step", NO_TYPE, model.hidden_size, n_tokens),)


def matrix_calls(matrices: Iterable[Matrix], tensor_type: str, n_tokens: int, working_set: float) -> tuple[Call, ...]:
    """A product with each matrix; up to a few tokens the kernels multiply one by one, and so does the table."""
    op: KernelOp = "gemv" if n_tokens == 1 else "gemm"
    sizes = [tensor_bytes(matrix.n_rows, matrix.n_cols, tensor_type) for matrix in matrices]
    return tuple(Call(op, tensor_type, n_bytes, n_tokens, working_set=working_set) for n_bytes in sizes)


def _rounded(n_bytes: float) -> float:
    """To the next power of 2^(1/8), so that neighbouring contexts share their times; 9 % change no time by 1 %."""
    return 2 ** (math.ceil(8 * math.log2(n_bytes)) / 8)


@lru_cache(maxsize=64)
def token_bytes(model: ModelSpec) -> float:
    """Bytes of weights that one token touches: what lies between two uses of a dense weight."""
    groups = model_size.group_bytes(model)
    body = sum(groups[name] for name in ("attention", "shared_experts", "dense_ffn", "router", "norm"))
    top_k = 0 if model.experts is None else model.experts.top_k
    return body + model_size.lm_head_bytes(model) + model.n_moe_layers * top_k * model_size.expert_bytes(model)
