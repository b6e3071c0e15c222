"""A long trace as steps that are columns of numbers: a Step, and its rows, are made when somebody asks for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from simulator.scenario import ChunkLoads, Step
from traces.routing_trace import PREFILL, RoutingTrace


class TraceRows(Sequence[Sequence[int]]):
    """The rows of one step, layer by layer: a token's experts in slot order, the ascending union of a chunk's."""

    __slots__ = ("_expert_ids", "_is_decode", "_tokens")

    def __init__(self, expert_ids: np.ndarray, tokens: range, is_decode: bool) -> None:
        self._expert_ids, self._tokens, self._is_decode = expert_ids, tokens, is_decode

    def __len__(self) -> int:
        return int(self._expert_ids.shape[1])

    @overload
    def __getitem__(self, layer: int) -> Sequence[int]: ...
    @overload
    def __getitem__(self, layer: slice) -> Sequence[Sequence[int]]: ...
    def __getitem__(self, layer: int | slice) -> Sequence[int] | Sequence[Sequence[int]]:
        if isinstance(layer, slice):
            return [self[index] for index in range(*layer.indices(len(self)))]
        if not -len(self) <= layer < len(self):
            raise IndexError(layer)
        ids = self._expert_ids[self._tokens.start : self._tokens.stop, layer]
        return ids[0].tolist() if self._is_decode else np.unique(ids).tolist()


@dataclass(frozen=True, eq=False)
class StepColumns:
    """What is known of steps but their rows, (n_steps,) each; see Step. Tokens firsts to stops - 1 of the trace."""

    firsts: np.ndarray
    stops: np.ndarray
    is_decode: np.ndarray
    contexts: np.ndarray
    has_logits: np.ndarray

    @staticmethod
    def of(steps: Sequence[Step]) -> "StepColumns":
        """Those of any steps."""
        if isinstance(steps, TraceSteps):
            return steps.columns
        return StepColumns(
            np.array([step.tokens.start for step in steps], np.int64),
            np.array([step.tokens.stop for step in steps], np.int64),
            np.array([step.is_decode for step in steps], bool),
            np.array([step.context for step in steps], np.int64),
            np.array([step.has_logits for step in steps], bool),
        )


class TraceSteps(Sequence[Step]):
    """The steps that simulator.scenario.steps_of cuts, as columns."""

    def __init__(self, trace: RoutingTrace, context: int | None, chunk_tokens: int) -> None:
        self.trace, self.chunk_tokens = trace, chunk_tokens
        self._expert_ids, self.columns = trace.expert_ids, _columns(trace, context, chunk_tokens)

    def __len__(self) -> int:
        return len(self.columns.firsts)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(index, slice):
            return self._all[index]
        return self._step(range(len(self))[index])

    def __iter__(self) -> Iterator[Step]:
        return iter(self._all)

    @cached_property
    def _all(self) -> tuple[Step, ...]:
        columns, ids = self.columns, self._expert_ids
        lists = (columns.firsts, columns.stops, columns.is_decode, columns.contexts, columns.has_logits)
        return tuple(
            _step_of(ids, range(first, stop), is_decode, context, has_logits)
            for first, stop, is_decode, context, has_logits in zip(*(each.tolist() for each in lists), strict=True)
        )

    def _step(self, index: int) -> Step:
        found = self.columns
        is_decode, tokens = bool(found.is_decode[index]), range(int(found.firsts[index]), int(found.stops[index]))
        return _step_of(self._expert_ids, tokens, is_decode, int(found.contexts[index]), bool(found.has_logits[index]))


def _step_of(ids: np.ndarray, tokens: range, is_decode: bool, context: int, has_logits: bool) -> Step:
    loads = () if is_decode else ChunkLoads(ids[tokens.start : tokens.stop])
    return Step(tokens, is_decode, context, TraceRows(ids, tokens, is_decode), has_logits, loads)


def _columns(trace: RoutingTrace, context: int | None, chunk_tokens: int) -> StepColumns:
    index, is_prefill = np.arange(trace.n_tokens), trace.phase == PREFILL
    starts = np.flatnonzero(np.r_[True, np.diff(trace.request_id) != 0])  # of requests
    lengths = np.diff(np.append(starts, trace.n_tokens))
    prompt_ends = np.repeat(starts + np.add.reduceat(is_prefill, starts, dtype=np.int64), lengths)
    firsts = np.flatnonzero(~is_prefill | ((index - np.repeat(starts, lengths)) % chunk_tokens == 0))
    stops = np.append(firsts[1:], trace.n_tokens)
    is_decode, contexts = ~is_prefill[firsts], trace.position[stops - 1].astype(np.int64) + 1
    if context is not None:
        contexts = np.where(is_decode, context + firsts - prompt_ends[firsts] + 1, contexts)
    return StepColumns(firsts, stops, is_decode, contexts, is_decode | (stops == prompt_ends[firsts]))
