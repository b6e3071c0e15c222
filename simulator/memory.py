"""
The memory plan: what must be resident, what the expert cache gets, and whether the model can run at all.

    storage  = every tensor of the model file
    resident = dense part + KV(context) + activations + in-flight buffers + expert cache
    slots    = floor((RAM cap - everything else) / padded expert bytes)

The buffers hold one decode row in flight beside the cache.  The experts of a prefill chunk pass through cache and
buffers in waves, in ascending order, where they do not fit at once.
"""

from dataclasses import dataclass

from moeplan.quantity import format_bytes
from simulator.expert_layout import ExpertLayout
from simulator.model import size as model_size
from simulator.model.spec import ModelSpec
from simulator.result import MemoryResult, Reason, Verdict

FLOAT_BYTES = 4  # activations and logits are float32


@dataclass(frozen=True)
class MemoryPlan:
    """Verdict, slots of the expert cache and the bytes behind them; arithmetic is a sentence with the numbers."""

    verdict: Verdict
    n_slots: int
    memory: MemoryResult
    reason: Reason | None = None
    arithmetic: str = ""


def plan_memory(
    model: ModelSpec,
    layout: ExpertLayout,
    *,
    ram_cap_bytes: int,
    free_storage_bytes: int,
    context: int,
    chunk_tokens: int,
    lm_head_predictor: bool = False,
) -> MemoryPlan:
    """Divide the RAM cap. The KV cache is sized for the longest context, the rest for the largest prefill chunk."""
    if layout.name == "mmap":
        return _plan_mapped(model, layout, ram_cap_bytes, free_storage_bytes, context, chunk_tokens)
    storage = model_size.file_bytes(model)
    dense = model_size.dense_bytes(model) + (model_size.predictor_bytes(model) if lm_head_predictor else 0)
    kv = model_size.kv_bytes(model, context, chunk_tokens)
    activation = activation_bytes(model, chunk_tokens)
    n_experts = n_routed_experts(model)
    everything, fixed = n_experts * layout.padded_bytes, dense + kv + activation
    fits_whole = fixed + everything <= ram_cap_bytes
    top_k = 0 if model.experts is None else model.experts.top_k
    buffers = 0 if fits_whole else top_k * layout.padded_bytes  # the row in flight, beside the cache
    left = ram_cap_bytes - fixed - buffers
    n_slots = n_experts if fits_whole else max(0, min(n_experts, left // max(1, layout.padded_bytes)))
    cache = n_slots * layout.padded_bytes
    memory = MemoryResult(
        storage,
        fixed + buffers + cache,
        dense,
        kv,
        cache,
        buffers,
        activation,
        ram_cap_bytes,
        everything,
        model_size.dense_bytes(model),
    )
    if storage > free_storage_bytes:
        return MemoryPlan("cannot_run", n_slots, memory, "storage_capacity", _no_room(storage, free_storage_bytes))
    if left < 0:
        row = f" + buffers for one row of experts {format_bytes(buffers)}" if model.experts is not None else ""
        text = (
            f"resident: dense part {format_bytes(dense)} + KV at context {context} {format_bytes(kv)} + "
            f"{_activations(activation, chunk_tokens)}{row} = {format_bytes(fixed + buffers)}, the RAM cap is "
            f"{format_bytes(ram_cap_bytes)}: {format_bytes(-left)} are missing"
        )
        return MemoryPlan("cannot_run", 0, memory, "ram_floor", text)
    return MemoryPlan("resident" if fits_whole else "streams", n_slots, memory)


def _plan_mapped(
    model: ModelSpec, layout: ExpertLayout, ram_cap_bytes: int, free_storage_bytes: int, context: int, chunk_tokens: int
) -> MemoryPlan:
    """
    A mapped file: keys, values and activations are the process's own, the page cache gets the rest, dense part and all.

    resident where the whole file fits; n_slots is what the page cache would hold of experts alone.
    """
    storage = model_size.file_bytes(model)
    kv, activation = model_size.kv_bytes(model, context, chunk_tokens), activation_bytes(model, chunk_tokens)
    left = ram_cap_bytes - kv - activation
    cache = max(0, min(storage, left))
    n_experts = n_routed_experts(model)
    n_slots = min(n_experts, cache // max(1, layout.padded_bytes))
    everything = n_experts * layout.padded_bytes
    memory = MemoryResult(
        storage,
        kv + activation + cache,
        0,
        kv,
        cache,
        0,
        activation,
        ram_cap_bytes,
        everything,
        model_size.dense_bytes(model),
    )
    if storage > free_storage_bytes:
        return MemoryPlan("cannot_run", n_slots, memory, "storage_capacity", _no_room(storage, free_storage_bytes))
    if left <= 0:
        text = (
            f"resident: KV at context {context} {format_bytes(kv)} + {_activations(activation, chunk_tokens)} "
            f"= {format_bytes(kv + activation)}, the RAM cap is {format_bytes(ram_cap_bytes)}: no page of the mapped "
            f"file is left room"
        )
        return MemoryPlan("cannot_run", 0, memory, "ram_floor", text)
    return MemoryPlan("resident" if left >= storage else "streams", n_slots, memory)


def _activations(n_bytes: int, chunk_tokens: int) -> str:
    """They grow with the prompt tokens at a time, of which less is tried before a model is said not to fit."""
    tokens = f"{chunk_tokens} token{'' if chunk_tokens == 1 else 's'}"
    return f"activations {format_bytes(n_bytes)} (prompts {tokens} at a time)"


def _no_room(storage: int, free_storage_bytes: int) -> str:
    return (
        f"storage: the model file takes {format_bytes(storage)}, {format_bytes(free_storage_bytes)} are free: "
        f"{format_bytes(storage - free_storage_bytes)} are missing"
    )


def n_routed_experts(model: ModelSpec) -> int:
    """Routed experts over all layers: the most that a cache can hold."""
    return 0 if model.experts is None else model.n_moe_layers * model.experts.n_experts


def lap_slots(model: ModelSpec) -> int:
    """One lap of the model: the experts that one token uses, n_moe_layers x top_k."""
    return 0 if model.experts is None else model.n_moe_layers * model.experts.top_k


def activation_bytes(model: ModelSpec, chunk_tokens: int) -> int:
    """Float32 residual, norms, q, k, v, mix and expert hidden states of a chunk, and one row of logits."""
    width = 4 * model.hidden_size + 3 * model.attention.n_heads * model.attention.head_dim
    if model.experts is not None:
        width += 2 * model.experts.top_k * model.experts.ffn_size + model.experts.n_experts
    width += 2 * (model.dense_ffn_size or 0)
    return FLOAT_BYTES * (chunk_tokens * width + model.vocab_size)
