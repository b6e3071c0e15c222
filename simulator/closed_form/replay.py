"""What a sweep replays: a long trace in columns, cut into steps once for each size of a prompt's chunks."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from simulator.question import DENSE_TOKENS, Question, question_replay
from simulator.scenario import Extent, Replay, Step
from simulator.trace_steps import StepColumns, TraceSteps
from traces.routing_trace import RoutingTrace

if TYPE_CHECKING:
    from simulator.cache_passes.rows import Rows


class LeanReplay(Replay):
    """A Replay with TraceSteps: 26 bytes a step whatever the model's layers. Threads may share it."""

    def __init__(self, trace: RoutingTrace | None, context: int | None) -> None:
        super().__init__(trace, context, DENSE_TOKENS if trace is None else (0, 0))
        self._long = trace
        self._lean: dict[int, TraceSteps] = {}
        self._rows: tuple[int, Rows] | None = None
        self._lock = threading.RLock()

    def steps(self, chunk_tokens: int) -> tuple[Step, ...]:
        """The steps with prompts in chunks of at most so many tokens; not a tuple, but all that is read of one."""
        if self._long is None:
            return super().steps(chunk_tokens)
        with self._lock:
            if chunk_tokens not in self._lean:
                self._lean[chunk_tokens] = TraceSteps(self._long, self._context, chunk_tokens)
            return cast("tuple[Step, ...]", self._lean[chunk_tokens])

    def extent(self, chunk_tokens: int) -> Extent:
        """What a memory plan must hold of those steps."""
        if chunk_tokens not in self._extents:
            found = StepColumns.of(self.steps(chunk_tokens))
            largest = int((found.stops - found.firsts).max())
            self._extents[chunk_tokens] = Extent(int(found.contexts.max()), largest, int(found.is_decode.sum()))
        return self._extents[chunk_tokens]

    def rows(self, steps: Sequence[Step]) -> "Rows":
        """The rows of steps that this replay made, for a cache pass; the last ones asked for are kept."""
        from simulator.cache_passes.rows import rows_of_trace

        with self._lock:
            chunk_tokens = next(chunk for chunk, known in self._lean.items() if known is steps)
            assert self._long is not None
            if self._rows is None or self._rows[0] != chunk_tokens:
                self._rows = chunk_tokens, rows_of_trace(self._long, chunk_tokens)
            return self._rows[1]


def lean_replay(question: Question) -> LeanReplay:
    """What the question replays. Raises InputError where trace and model do not fit."""
    question_replay(question)  # the same complaints
    return LeanReplay(question.trace if question.model.experts is not None else None, question.context)
