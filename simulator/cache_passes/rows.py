"""A trace as rows of keys: what all cache passes read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from moeplan.errors import InputError
from traces.routing_trace import PREFILL, RoutingTrace

MAX_KEYS = 32_766  # a stack distance is an int16, and the largest one means never used before
MAX_ACCESSES = 2**32 - 2  # positions in the trace are uint32


class StepRows(Protocol):
    """What is read of a step (simulator.scenario.Step): the distinct experts of each MoE layer."""

    @property
    def rows(self) -> Sequence[Sequence[int]]:
        """One row a layer, in the order of the layers."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """
    Rows in the order in which a cache sees them.

    keys     uint16 (n_accesses,)  layer * n_experts + expert, distinct within a row
    offsets  uint32 (n_rows + 1,)  row i is keys[offsets[i] : offsets[i + 1]], experts of one layer
    """

    keys: np.ndarray
    offsets: np.ndarray
    n_layers: int
    n_experts: int

    def __post_init__(self) -> None:
        if self.n_keys > MAX_KEYS:
            raise InputError("cache pass", f"must have at most {MAX_KEYS} (layer, expert) keys", self.n_keys)
        if len(self.keys) > MAX_ACCESSES:
            raise InputError("cache pass", f"must have at most {MAX_ACCESSES} accesses", len(self.keys))
        if self.keys.dtype != np.uint16 or self.offsets.dtype != np.uint32:
            raise TypeError(f"keys and offsets must be uint16 and uint32, got {self.keys.dtype}, {self.offsets.dtype}")
        if len(self.offsets) == 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self.keys):
            raise ValueError("offsets must run from 0 to the number of keys")
        if len(self.keys) and int(self.keys.max()) >= self.n_keys:
            raise ValueError(f"keys must be below {self.n_keys}, got {int(self.keys.max())}")

    @property
    def n_keys(self) -> int:
        """Distinct (layer, expert) pairs that may occur."""
        return self.n_layers * self.n_experts

    @property
    def n_rows(self) -> int:
        """Rows, of any length."""
        return len(self.offsets) - 1

    @property
    def n_used(self) -> np.ndarray:
        """int64 (n_rows,): experts of each row."""
        return np.diff(self.offsets.astype(np.int64))

    @cached_property
    def longest(self) -> int:
        """Experts of the longest row."""
        starts = range(0, self.n_rows, 2**16)  # a block at a time: no second list of all rows
        return int(max((np.diff(self.offsets[start : start + 2**16 + 1]).max() for start in starts), default=0))


def rows_of(rows: Sequence[tuple[int, Sequence[int]]], n_layers: int, n_experts: int) -> Rows:
    """Rows from (layer, experts) pairs."""
    keys = [layer * n_experts + expert for layer, experts in rows for expert in experts]
    offsets = np.cumsum([0, *(len(experts) for _, experts in rows)])
    return Rows(np.array(keys, np.uint16), offsets.astype(np.uint32), n_layers, n_experts)


def rows_of_steps(steps: Sequence[StepRows], n_layers: int, n_experts: int) -> Rows:
    """The rows of a scenario's steps: row step * n_layers + layer."""
    return rows_of([(layer, row) for step in steps for layer, row in enumerate(step.rows)], n_layers, n_experts)


def rows_of_trace(trace: RoutingTrace, chunk_tokens: int) -> Rows:
    """
    The rows that simulator.scenario.steps_of cuts: prompts in chunks, the union over a chunk's tokens in ascending
    order; then a row for each decode token and layer, in slot order.  Row step * n_layers + layer.
    """
    n_layers, top_k = trace.n_moe_layers, trace.top_k
    phases, unions = _phases(trace), _prompt_keys(trace, chunk_tokens)
    n_decode = sum(stop - start for start, stop, is_prefill in phases if not is_prefill)
    n_accesses = n_decode * n_layers * top_k + sum(len(keys) for keys, _ in unions.values())
    if n_accesses > MAX_ACCESSES:
        raise InputError("cache pass", f"must have at most {MAX_ACCESSES} accesses", n_accesses)
    keys = np.empty(n_accesses, np.uint16)
    offsets = np.zeros(1 + n_decode * n_layers + sum(len(lengths) for _, lengths in unions.values()), np.uint32)
    first_key = (np.arange(n_layers) * trace.header.n_experts).astype(np.uint16)[:, None]
    end, row = 0, 1  # of what is filled
    for start, stop, is_prefill in phases:
        begin = end
        if is_prefill:
            own, lengths = unions[start]
            end += len(own)
            keys[begin:end], ends = own, begin + np.cumsum(lengths)
        else:
            end += (stop - start) * n_layers * top_k
            rows = keys[begin:end].reshape(stop - start, n_layers, top_k)
            np.add(trace.expert_ids[start:stop], first_key, out=rows, casting="unsafe")  # ids are checked: not below 0
            ends = np.arange(begin + top_k, end + 1, top_k)
        offsets[row : row + len(ends)] = ends
        row += len(ends)
    return Rows(keys, offsets, n_layers, trace.header.n_experts)


def _prompt_keys(trace: RoutingTrace, chunk_tokens: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By the first token of a prompt: the keys of its chunks' rows, and how many each row has."""
    found = {}
    for start, stop, is_prefill in _phases(trace):
        if is_prefill:
            chunks = [range(first, min(first + chunk_tokens, stop)) for first in range(start, stop, chunk_tokens)]
            used = [_used(trace.expert_ids[chunk.start : chunk.stop], trace.header.n_experts) for chunk in chunks]
            keys = np.concatenate([np.flatnonzero(each).astype(np.uint16) for each in used])
            found[start] = keys, np.concatenate([each.sum(axis=1) for each in used])
    return found


def _used(expert_ids: np.ndarray, n_experts: int) -> np.ndarray:
    """bool (n_layers, n_experts): whether any token uses the expert."""
    n_layers = expert_ids.shape[1]
    used = np.zeros((n_layers, n_experts), dtype=bool)
    used[np.arange(n_layers)[:, None], expert_ids] = True
    return used


def _phases(trace: RoutingTrace) -> list[tuple[int, int, bool]]:
    """(first token, end, is prefill) of each request's prompt and decode, where there is one."""
    changes = (np.diff(trace.request_id) != 0) | (np.diff(trace.phase) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), trace.n_tokens]
    return [(start, stop, bool(trace.phase[start] == PREFILL)) for start, stop in pairwise(bounds)]
