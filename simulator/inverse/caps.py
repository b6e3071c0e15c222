"""
RAM caps worth asking for: one for every size of the expert cache.

Between two of them the cache gets no slot more.  A prompt runs in smaller chunks where a cap is near its floor, which
changes what the cache has seen: the caps of one chunk size are a run in which more RAM means more slots, and only that.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from moeplan.quantity import format_bytes
from simulator.inverse.proofs import doubt_of_more_slots
from simulator.inverse.search import thinned
from simulator.inverse.speeds import Speeds
from simulator.memory import n_routed_experts
from simulator.question import Question

PLENTY_BYTES = 2**60  # a cap at which every chunk size and all experts fit
MAX_SCANNED_CAPS = 100  # where each size has to be tried: a fraction of a second each for a long trace


def cap_runs(speeds: Speeds, question: Question) -> list[range]:
    """Ascending runs of ascending caps in bytes, one run a chunk size of the prompt; the last cap holds all experts."""
    experts, layout = question.model.experts, speeds.prepared(question).layout
    n_rows = 0 if experts is None else experts.top_k
    n_sizes = n_routed_experts(question.model) - n_rows + 1
    step = max(1, layout.padded_bytes)
    firsts = sorted({floor_bytes(speeds, question, chunk) for chunk in _chunks(question.chunk_tokens)})
    runs = [range(first, min(end, first + n_sizes * step), step) for first, end in pairwise(firsts)]
    return [run for run in [*runs, range(firsts[-1], firsts[-1] + n_sizes * step, step)] if run]


def _chunks(chunk_tokens: int) -> list[int]:
    chunks = [chunk_tokens]
    while chunks[-1] > 1:
        chunks.append(chunks[-1] // 2)
    return chunks


def floor_bytes(speeds: Speeds, question: Question, chunk_tokens: int) -> int:
    """The least cap with prompts in chunks of so many tokens: all but the cache."""
    plenty = speeds.prepared(replace(question, ram_cap_bytes=PLENTY_BYTES, chunk_tokens=chunk_tokens))
    memory, experts = plenty.plan.memory, question.model.experts
    row_bytes = 0 if experts is None else experts.top_k * plenty.layout.padded_bytes
    return memory.dense_bytes + memory.kv_bytes + memory.activation_bytes + row_bytes


class CapGrid:
    """The caps to search for one cache policy and layout: all sizes where larger is never slower, some otherwise."""

    def __init__(self, speeds: Speeds, question: Question, least_bytes: int = 0) -> None:
        """least_bytes: no smaller cap is asked for."""
        self._doubt = doubt_of_more_slots(speeds, question)
        all_runs = [[cap for cap in run if cap >= least_bytes] for run in cap_runs(speeds, question)]
        self.step_bytes = speeds.prepared(question).layout.padded_bytes
        self.runs: Sequence[Sequence[int]] = [run for run in all_runs if run]
        self._n_sizes = len(self.caps)
        if not self.is_monotone:
            self.runs = [thinned([cap for run in self.runs for cap in run], MAX_SCANNED_CAPS)]
            speeds.decide([replace(question, ram_cap_bytes=cap) for cap in self.runs[0]])

    @property
    def is_monotone(self) -> bool:
        """Whether more RAM is proven never to be slower within a run; else a part of the caps is one run."""
        return not self._doubt

    @property
    def caps(self) -> list[int]:
        """All caps of the grid in ascending order."""
        return [cap for run in self.runs for cap in run]

    @property
    def text(self) -> str:
        """The grid in words."""
        caps = self.caps
        if not caps:
            return "no cap"
        ends = f"{format_bytes(caps[0])} to {format_bytes(caps[-1])}"
        if self.is_monotone:
            return f"{len(caps):,} caps, {ends}, in steps of one expert ({format_bytes(self.step_bytes)})"
        part = f"{len(caps):,} caps" if len(caps) == self._n_sizes else f"{len(caps):,} of {self._n_sizes:,} caps"
        return f"{part}, {ends}, from the smallest on: {self._doubt}"
