"""
Scenario: everything that one simulation depends on, and nothing else.

The trace is cut into steps once: a step is one prefill chunk or one decode token, with the experts that each MoE
layer needs (the union over the tokens of a chunk).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Literal, NamedTuple, overload

import numpy as np

from hardware_profiles.rates import DeviceRates
from moeplan.errors import InputError
from simulator.expert_layout import ExpertLayout
from simulator.model.spec import ModelSpec
from simulator.policies import OFFLINE_POLICIES, CachePolicy, make_policy
from traces.routing_trace import DECODE, PREFILL, RoutingTrace

PREFILL_CHUNK_TOKENS = 512  # the micro-batch that llama.cpp takes by default (n_ubatch)
WARM_UP_FRAC = 0.25  # share of the decode tokens that are run but not counted when the start is warm

Start = Literal["cold", "warm"]
Rows = Sequence[Sequence[int]]  # the experts of every MoE layer


@dataclass(frozen=True)
class Step:
    """
    One pass through the model.

    tokens: their indices in the trace; context: keys that the (last) token attends to, itself included; has_logits:
    whether the LM head runs (for every decode token, and once for a prompt, on its last chunk);
    rows: the distinct experts of each MoE layer, in slot order for one token and ascending for a chunk;
    loads: of a chunk, how many of its tokens each of those experts has, ascending; () where it is not known.
    """

    tokens: range
    is_decode: bool
    context: int
    rows: Rows
    has_logits: bool = True
    loads: Sequence[tuple[int, ...]] = field(default=(), compare=False)

    def loads_of(self, moe_layer: int) -> tuple[int, ...]:
        """Tokens of each expert of a layer's row, () for a decode token and where it is not known."""
        return self.loads[moe_layer] if self.loads else ()

    @property
    def n_tokens(self) -> int:
        """Tokens in the step."""
        return len(self.tokens)


class ChunkLoads(Sequence[tuple[int, ...]]):
    """Of every MoE layer the tokens of each expert that a chunk uses, ascending; counted when somebody asks."""

    __slots__ = ("_expert_ids",)

    def __init__(self, expert_ids: np.ndarray) -> None:
        """expert_ids: (n_tokens, n_moe_layers, top_k)."""
        self._expert_ids = expert_ids

    def __len__(self) -> int:
        return int(self._expert_ids.shape[1])

    @overload
    def __getitem__(self, layer: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, layer: slice) -> Sequence[tuple[int, ...]]: ...
    def __getitem__(self, layer: int | slice) -> tuple[int, ...] | Sequence[tuple[int, ...]]:
        if isinstance(layer, slice):
            return ChunkLoads(self._expert_ids[:, layer])
        counts = np.unique(self._expert_ids[:, layer], return_counts=True)[1]
        return tuple(np.sort(counts).tolist())


@dataclass(frozen=True)
class Scenario:
    """
    A model on a device, with a trace to replay.

    n_slots: experts that the cache holds; preloaded: all experts are read before the first token (verdict resident);
    context: keys in the KV cache when decode begins, None for the trace's own positions;
    n_warm_up_tokens: decode tokens at the head of the trace that are run but not counted.
    """

    model: ModelSpec
    rates: DeviceRates
    steps: tuple[Step, ...]
    n_slots: int
    cache_policy: str = "lru"
    prefetch_policy: str = "pre-attention"
    layout: ExpertLayout = field(default_factory=lambda: ExpertLayout("bundle", 1, 0))
    preloaded: bool = False
    lm_head_predictor: bool = False
    n_warm_up_tokens: int = 0

    @cached_property
    def is_counted(self) -> np.ndarray:
        """(n_steps,) bool: decode steps after the warm-up; at least one."""
        from simulator.trace_steps import StepColumns  # which makes steps

        is_decode = StepColumns.of(self.steps).is_decode
        return is_decode & (np.cumsum(is_decode) > self.n_warm_up_tokens)


def steps_of(
    trace: RoutingTrace,
    *,
    context: int | None,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    rows_of: Callable[[range, bool], Rows] | None = None,
) -> tuple[Step, ...]:
    """
    The trace as steps: per request its prefill in chunks, then one step a decode token.

    rows_of(tokens, is_decode): the rows of a step, where they are not to be made here and now.
    """
    if rows_of is None:
        rows_of = partial(_rows_now, trace)
    steps: list[Step] = []
    starts = np.flatnonzero(np.r_[True, np.diff(trace.request_id) != 0])
    bounds = [*starts.tolist(), trace.n_tokens]
    for start, stop in pairwise(bounds):
        n_prefill = int((trace.phase[start:stop] == PREFILL).sum())
        for chunk in range(start, start + n_prefill, chunk_tokens):
            tokens = range(chunk, min(chunk + chunk_tokens, start + n_prefill))
            is_last = tokens.stop == start + n_prefill
            context_now = int(trace.position[tokens[-1]]) + 1
            loads = ChunkLoads(trace.expert_ids[tokens.start : tokens.stop])
            steps.append(Step(tokens, False, context_now, rows_of(tokens, False), is_last, loads))
        for index in range(start + n_prefill, stop):
            keys = trace.position[index] + 1 if context is None else context + index - start - n_prefill + 1
            tokens = range(index, index + 1)
            steps.append(Step(tokens, True, int(keys), rows_of(tokens, True)))
    return tuple(steps)


def first_cache(scenario: Scenario) -> CachePolicy:
    """
    The expert cache as the first step finds it: empty, or with all experts where they are preloaded.

    A policy that must know the future is told the rows of the scenario.
    """
    model, name = scenario.model, scenario.cache_policy
    preload = []
    if scenario.preloaded and model.experts is not None:
        preload = [(layer, range(model.experts.n_experts)) for layer in range(model.n_moe_layers)]
    future = None
    if name in OFFLINE_POLICIES:
        future = [*preload, *((layer, row) for step in scenario.steps for layer, row in enumerate(step.rows))]
    cache = make_policy(name, scenario.n_slots, max(1, model.n_moe_layers), future)
    for layer, row in preload:
        cache.access_row(layer, row)
    return cache


class Extent(NamedTuple):
    """Of some steps: the longest context, the tokens of the largest step, the number of decode steps."""

    longest_context: int
    largest_step: int
    n_decode: int


class Replay:
    """A trace (or a dense model's tokens) as steps, for whatever prefill chunk the memory allows; cut once each."""

    def __init__(self, trace: RoutingTrace | None, context: int | None, dense_tokens: tuple[int, int] = (0, 0)) -> None:
        """dense_tokens: (prompt, decode) tokens where there is no trace."""
        self._trace, self._context, self._dense_tokens = trace, context, dense_tokens
        self._steps: dict[int, tuple[Step, ...]] = {}
        self._extents: dict[int, Extent] = {}

    def steps(self, chunk_tokens: int) -> tuple[Step, ...]:
        """The steps with prompts in chunks of at most so many tokens."""
        if chunk_tokens not in self._steps:
            self._steps[chunk_tokens] = (
                dense_steps(*self._dense_tokens, self._context)
                if self._trace is None
                else steps_of(self._trace, context=self._context, chunk_tokens=chunk_tokens)
            )
        return self._steps[chunk_tokens]

    def extent(self, chunk_tokens: int) -> Extent:
        """What a memory plan must hold of those steps; looked up once."""
        if chunk_tokens not in self._extents:
            steps = self.steps(chunk_tokens)
            longest, largest = max(step.context for step in steps), max(step.n_tokens for step in steps)
            self._extents[chunk_tokens] = Extent(longest, largest, sum(step.is_decode for step in steps))
        return self._extents[chunk_tokens]


def dense_steps(n_prompt: int, n_decode: int, context: int | None) -> tuple[Step, ...]:
    """A prompt and decode steps of a model without experts, which needs no trace; decode begins at the context."""
    start = n_prompt if context is None else context
    decode = (Step(range(n_prompt + i, n_prompt + i + 1), True, start + i + 1, ()) for i in range(n_decode))
    return (Step(range(n_prompt), False, n_prompt, ()), *decode)


def _rows_now(trace: RoutingTrace, tokens: range, is_decode: bool) -> Rows:
    """A token's experts in slot order, or the ascending union of a chunk's."""
    if is_decode:
        return tuple(trace.expert_ids[tokens.start].tolist())
    ids = trace.expert_ids[tokens.start : tokens.stop]
    return tuple(np.unique(ids[:, layer]).tolist() for layer in range(trace.n_moe_layers))


def check_trace_fits(model: ModelSpec, trace: RoutingTrace) -> None:
    """Raises InputError when the trace's shape is not the model's."""
    if model.experts is None:
        raise InputError("--trace", f"must be left out for the dense model {model.name}", trace.header.model)
    wanted = (model.n_moe_layers, model.experts.n_experts, model.experts.top_k)
    found = (trace.n_moe_layers, trace.header.n_experts, trace.top_k)
    if wanted != found:
        raise InputError(
            "--trace",
            f"must have the routing shape of {model.name}: {_shape(wanted)}",
            f"{_shape(found)} from {trace.header.model}",
            "take a trace of this model, or say --adapt-trace to get a labelled stand-in",
        )
    if not (trace.phase == DECODE).any():
        raise InputError("--trace", "must have decode tokens", "prefill only")


def _shape(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]} MoE layers x {shape[1]} experts, top-{shape[2]}"
