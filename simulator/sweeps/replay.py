"""A long trace as steps whose rows are cut out of the trace when they are asked for, not kept as lists."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, overload

import numpy as np

from simulator.question import DENSE_TOKENS, Question, question_replay
from simulator.scenario import Replay, Step, steps_of
from traces.routing_trace import RoutingTrace

if TYPE_CHECKING:
    from simulator.cache_passes.rows import Rows


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


class LeanReplay(Replay):
    """A Replay with TraceRows: about 200 bytes a step whatever the model's layers."""

    def __init__(self, trace: RoutingTrace | None, context: int | None) -> None:
        super().__init__(trace, context, DENSE_TOKENS if trace is None else (0, 0))
        self._long = trace
        self._lean: dict[int, tuple[Step, ...]] = {}
        self._rows: tuple[int, Rows] | None = None

    def steps(self, chunk_tokens: int) -> tuple[Step, ...]:
        """The steps with prompts in chunks of at most so many tokens."""
        if self._long is None:
            return super().steps(chunk_tokens)
        if chunk_tokens not in self._lean:
            rows_of = partial(TraceRows, self._long.expert_ids)
            self._lean[chunk_tokens] = steps_of(
                self._long, context=self._context, chunk_tokens=chunk_tokens, rows_of=rows_of
            )
        return self._lean[chunk_tokens]

    def rows(self, steps: tuple[Step, ...]) -> "Rows":
        """The rows of steps that this replay made, for a cache pass; the last ones asked for are kept."""
        from simulator.cache_passes.rows import rows_of_trace

        chunk_tokens = next(chunk for chunk, known in self._lean.items() if known is steps)
        assert self._long is not None
        if self._rows is None or self._rows[0] != chunk_tokens:
            self._rows = chunk_tokens, rows_of_trace(self._long, chunk_tokens)
        return self._rows[1]


def lean_replay(question: Question) -> LeanReplay:
    """What the question replays. Raises InputError where trace and model do not fit."""
    question_replay(question)  # the same complaints
    return LeanReplay(question.trace if question.model.experts is not None else None, question.context)
