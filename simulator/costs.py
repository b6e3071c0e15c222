"""
Cost equations: seconds of every operation of a step when nothing else runs.

    t = max(FLOP / (FLOP/s), bytes / (bytes/s)) + n_kernels * op_overhead        (roofline: Williams et al. 2009)

Decode of one token is bound by bytes (each weight is used once), a prefill chunk by FLOP.  Attention reads the
keys and values of min(context, window) tokens, so its time is a function of the context and of the layer's kind.

Where the device has measured kernel times, an op is the sum of its kernel calls instead:

    t = sum over its calls of t_kernel(type, size, count, zero gates, working set)

The part of t that the op's bytes explain at the measured RAM bandwidth follows RAM in a what-if, the rest the
processor.

Left out: work spread unevenly over cores, caches that hold a small model between tokens, NUMA.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hardware_profiles.kernel_table import Call, KernelTimes
from hardware_profiles.rates import DeviceRates
from simulator import kernel_calls
from simulator.model import size as model_size
from simulator.model.spec import ModelSpec
from simulator.model.tensor_types import bytes_per_weight

# Kernel launches of an op in a graph executor; each pays the profile's op overhead (a barrier and a dispatch).
ROUTER_KERNELS = 2  # matrix product, top-k
ATTENTION_KERNELS = 8  # norm, q, k, v, RoPE, scores and mix, o, norm
EXPERT_KERNELS = 4  # gate, up, down, weighted sum, batched over the experts of the row
DENSE_FFN_KERNELS = 3  # gate, up, down
LM_HEAD_KERNELS = 2  # norm, matrix product
FLOP_PER_WEIGHT = 2  # a multiplication and an addition


@dataclass(frozen=True)
class Work:
    """
    What an op must move and compute: bytes from RAM, floating-point operations, kernels launched; and the same as
    kernel calls, for devices whose kernels were measured (empty: the roofline is taken there too).
    """

    n_bytes: float
    n_flop: float
    n_kernels: int
    calls: tuple[Call, ...] = ()


def seconds(work: Work, rates: DeviceRates, n_tokens: int = 1) -> float:
    """Measured kernel times where the device has them for all calls of the work, the roofline otherwise."""
    kernel_s = _kernel_seconds(work, rates)
    if kernel_s is not None and rates.kernels is not None:
        return float(_on_device(kernel_s, work.n_bytes, rates, rates.kernels))
    return roofline_seconds(work, rates, n_tokens)


def _on_device(kernel_s: Any, n_bytes: Any, rates: DeviceRates, kernels: KernelTimes) -> Any:
    """Measured times, scalars or arrays, on a draw or what-if of the device: see the top of this file."""
    ram_s = np.minimum(kernel_s, n_bytes / kernels.ram_bytes_per_s)
    return (kernel_s - ram_s) * rates.kernel_factor + ram_s * (kernels.ram_bytes_per_s / rates.ram_bytes_per_s)


def roofline_seconds(work: Work, rates: DeviceRates, n_tokens: int = 1) -> float:
    """Roofline time of a work; one token multiplies at the GEMV rate, a chunk at the better of GEMM and GEMV."""
    flop_per_s = rates.gemv_flop_per_s if n_tokens == 1 else max(rates.gemm_flop_per_s, rates.gemv_flop_per_s)
    return max(work.n_flop / flop_per_s, work.n_bytes / rates.ram_bytes_per_s) + work.n_kernels * rates.op_overhead_s


def _kernel_seconds(work: Work, rates: DeviceRates) -> float | None:
    kernels = rates.kernels
    if kernels is None or not work.calls or not all(kernels.has(call) for call in work.calls):
        return None
    return sum(kernels.seconds(call) for call in work.calls)


@dataclass(frozen=True, eq=False)
class Works:
    """Many works as arrays of one shape, to be timed on many devices at once."""

    n_bytes: np.ndarray
    n_flop: np.ndarray
    n_kernels: np.ndarray
    is_chunk: np.ndarray
    kernel_s: np.ndarray  # measured times, NaN where the roofline is to be taken

    @staticmethod
    def of(works: list[Work], n_tokens: list[int], rates: DeviceRates) -> "Works":
        """(len(works),) arrays; rates: of the device, for its kernel times (every draw of a device has the same)."""
        times = {work: _kernel_seconds(work, rates) for work in dict.fromkeys(works)}
        return Works(
            np.array([work.n_bytes for work in works], dtype=np.float64),
            np.array([work.n_flop for work in works], dtype=np.float64),
            np.array([work.n_kernels for work in works], dtype=np.float64),
            np.array(n_tokens) > 1,
            np.array([times[work] for work in works], dtype=np.float64),
        )

    def mixed(self, other: "Works", other_frac: float) -> "Works":
        """Between this and another set of works, for what is linear in a fraction such as sparsity."""
        return replace(
            self,
            n_bytes=self.n_bytes + other_frac * (other.n_bytes - self.n_bytes),
            n_flop=self.n_flop + other_frac * (other.n_flop - self.n_flop),
            kernel_s=self.kernel_s + other_frac * (other.kernel_s - self.kernel_s),
        )

    def seconds(self, rates: DeviceRates) -> np.ndarray:
        """The same as `seconds`, element by element."""
        gemm = max(rates.gemm_flop_per_s, rates.gemv_flop_per_s)
        flop_per_s = np.where(self.is_chunk, gemm, rates.gemv_flop_per_s)
        roofline_s = np.maximum(self.n_flop / flop_per_s, self.n_bytes / rates.ram_bytes_per_s)
        roofline_s = roofline_s + self.n_kernels * rates.op_overhead_s
        if rates.kernels is None:
            return roofline_s
        measured_s = _on_device(self.kernel_s, self.n_bytes, rates, rates.kernels)
        return np.where(np.isnan(self.kernel_s), roofline_s, measured_s)


def router_work(model: ModelSpec, n_tokens: int = 1) -> Work:
    """Scores of all experts for each token."""
    if model.experts is None:
        return Work(0, 0, 0)
    n_flop = FLOP_PER_WEIGHT * model.experts.n_experts * model.hidden_size * n_tokens
    calls = kernel_calls.router_calls(model, n_tokens)
    return Work(model_size.router_bytes_per_layer(model), n_flop, ROUTER_KERNELS, calls)


def attention_work(model: ModelSpec, layer: int, context: int, n_tokens: int = 1) -> Work:
    """
    Norms, q, k, v, o and the keys and values that are visible at the (last) token of the step.

    In a chunk the earlier tokens see fewer keys: token j of n sees context - (n - 1 - j), clipped to the window.
    """
    window = model.layer_window(layer)
    n_keys = context if window is None else min(context, window + n_tokens - 1)
    n_pairs: float = n_keys
    if n_tokens > 1:
        seen = np.arange(context - n_tokens + 1, context + 1, dtype=np.float64)
        n_pairs = float((seen if window is None else np.minimum(seen, window)).sum())
    kv_bytes = n_keys * model_size.kv_bytes_per_token_and_layer(model)
    n_flop: float = FLOP_PER_WEIGHT * model_size.attention_params_per_layer(model) * n_tokens
    n_flop += attention_flop_per_pair(model) * n_pairs
    calls = kernel_calls.attention_calls(model, n_pairs, n_tokens)
    return Work(model_size.attention_bytes_per_layer(model, layer) + kv_bytes, n_flop, ATTENTION_KERNELS, calls)


def attention_flop_per_pair(model: ModelSpec) -> float:
    """FLOP of one query token against one key token: scores and mix over all heads (MLA in its absorbed form)."""
    attention = model.attention
    if attention.mla is None:
        return 2 * FLOP_PER_WEIGHT * attention.n_heads * attention.head_dim
    scores = attention.mla.kv_lora_rank + attention.mla.qk_rope_head_dim
    return FLOP_PER_WEIGHT * attention.n_heads * (scores + attention.mla.kv_lora_rank)


def expert_ffn_work(
    model: ModelSpec,
    n_experts_used: int,
    n_tokens: int = 1,
    gate_sparsity: float | None = None,
    loads: tuple[int, ...] = (),
) -> Work:
    """
    The routed experts of a row, and the shared ones.

    With ReGLU the up and down rows of neurons whose gate is zero are skipped in decode:
    bytes = (1/3 + 2/3 (1 - sparsity)) x expert bytes.  In a chunk some token needs nearly every neuron, so all is read.
    gate_sparsity: a share other than the model's own.  loads: tokens of each expert of a chunk, see Step; only measured
    kernels ask for them.
    """
    experts = model.experts
    if experts is None:
        return Work(0, 0, 0)
    sparsity = experts.gate_sparsity.value if gate_sparsity is None else gate_sparsity
    kept_frac = 1.0 if n_tokens > 1 else 1 / 3 + 2 / 3 * (1 - sparsity)
    n_bytes = n_experts_used * model_size.expert_bytes(model) * kept_frac + model_size.shared_ffn_bytes_per_layer(model)
    per_token = experts.top_k * model_size.expert_params(model) * kept_frac + model_size.shared_ffn_params(model)
    calls = kernel_calls.expert_ffn_calls(model, n_experts_used, n_tokens, sparsity, loads)
    return Work(n_bytes, FLOP_PER_WEIGHT * per_token * n_tokens, EXPERT_KERNELS, calls)


def dense_ffn_work(model: ModelSpec, n_tokens: int = 1) -> Work:
    """The FFN of a layer without experts."""
    n_flop = FLOP_PER_WEIGHT * model_size.dense_ffn_params(model) * n_tokens
    calls = kernel_calls.dense_ffn_calls(model, n_tokens)
    return Work(model_size.dense_ffn_bytes_per_layer(model), n_flop, DENSE_FFN_KERNELS, calls)


def embedding_work(model: ModelSpec, n_tokens: int = 1) -> Work:
    """A lookup, one row a token; and what a step costs beside its layers, where that was measured."""
    row_bytes = model.hidden_size * bytes_per_weight(model.tensor_types.embedding)
    return Work(row_bytes * n_tokens, 0, 1, kernel_calls.step_calls(model, n_tokens))


def lm_head_work(model: ModelSpec, use_predictor: bool) -> Work:
    """Logits of one token; with the predictor only the rows that it lets through, plus the predictor itself."""
    n_bytes: float = model_size.lm_head_bytes(model)
    n_params = model.vocab_size * model.hidden_size
    n_kernels = LM_HEAD_KERNELS
    if use_predictor and model.lm_head_predictor is not None:
        active_rows_frac = model.lm_head_predictor.active_rows_frac
        n_bytes = n_bytes * active_rows_frac + model_size.predictor_bytes(model)
        n_params = round(n_params * active_rows_frac) + model_size.predictor_params(model)
        return Work(n_bytes, FLOP_PER_WEIGHT * n_params, n_kernels + 2)
    return Work(n_bytes, FLOP_PER_WEIGHT * n_params, n_kernels, kernel_calls.lm_head_calls(model))


class StepCosts:
    """Seconds of each op for one model on one device, cached by what they depend on."""

    def __init__(self, model: ModelSpec, rates: DeviceRates, use_predictor: bool) -> None:
        self.model, self.rates = model, rates
        self.lm_head_s = seconds(lm_head_work(model, use_predictor), rates)
        self.router_s = lru_cache(maxsize=None)(self._router_s)
        self.attention_s = lru_cache(maxsize=None)(self._attention_s)
        self.expert_ffn_s = lru_cache(maxsize=None)(self._expert_ffn_s)
        self.dense_ffn_s = lru_cache(maxsize=None)(self._dense_ffn_s)
        self.embedding_s = lru_cache(maxsize=None)(self._embedding_s)
        self._kind_layer = representative_layers(model)

    def _router_s(self, n_tokens: int) -> float:
        return seconds(router_work(self.model, n_tokens), self.rates, n_tokens)

    def _attention_s(self, layer: int, context: int, n_tokens: int) -> float:
        return seconds(attention_work(self.model, layer, context, n_tokens), self.rates, n_tokens)

    def attention_of(self, layer: int, context: int, n_tokens: int) -> float:
        """Attention seconds of a layer; layers of one kind cost the same."""
        return self.attention_s(self._kind_layer[layer], context, n_tokens)

    def _expert_ffn_s(self, n_experts_used: int, n_tokens: int, loads: tuple[int, ...] = ()) -> float:
        return seconds(expert_ffn_work(self.model, n_experts_used, n_tokens, loads=loads), self.rates, n_tokens)

    def _dense_ffn_s(self, n_tokens: int) -> float:
        return seconds(dense_ffn_work(self.model, n_tokens), self.rates, n_tokens)

    def _embedding_s(self, n_tokens: int) -> float:
        return seconds(embedding_work(self.model, n_tokens), self.rates, n_tokens)


def decode_layer_s(model: ModelSpec, rates: DeviceRates, context: int) -> float:
    """Seconds of compute of a layer for one token at a context, the mean over the layers."""
    costs = StepCosts(model, rates, False)
    top_k = 0 if model.experts is None else model.experts.top_k
    layers = range(model.n_layers)
    moe_s = costs.router_s(1) + costs.expert_ffn_s(top_k, 1)
    attention_s = float(np.mean([costs.attention_of(layer, max(1, context), 1) for layer in layers]))
    return attention_s + moe_s


def representative_layers(model: ModelSpec) -> list[int]:
    """For every layer the first one whose attention has the same kind and bytes, so costs the same."""
    first: dict[tuple[str, int], int] = {}
    keys = [(model.layer_kind(i), model_size.attention_bytes_per_layer(model, i)) for i in range(model.n_layers)]
    return [first.setdefault(key, layer) for layer, key in enumerate(keys)]
