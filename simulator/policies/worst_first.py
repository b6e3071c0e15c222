"""A set of cached experts ordered by a priority: what LFU, LFU with decay and Belady evict from."""

from collections.abc import Container, Sequence
from heapq import heapify, heappop, heappush

Key = tuple[int, int]  # layer, expert
Priority = tuple[int, ...]  # the smallest goes first; equal ones by layer and expert


class WorstFirst:
    """A heap in which an expert may get a new priority: its old entry is skipped when it comes up."""

    def __init__(self) -> None:
        self._priority: dict[Key, Priority] = {}
        self._heap: list[tuple[Priority, Key]] = []

    def __len__(self) -> int:
        return len(self._priority)

    def __contains__(self, key: Key) -> bool:
        return key in self._priority

    def put(self, key: Key, priority: Priority) -> None:
        """Add an expert or change its priority."""
        if self._priority.get(key) == priority:
            return
        self._priority[key] = priority
        heappush(self._heap, (priority, key))
        if len(self._heap) > 2 * len(self._priority) + 64:
            self._heap = [(priority, key) for key, priority in self._priority.items()]
            heapify(self._heap)

    def shrink(self, n_slots: int, layer: int, row: Sequence[int]) -> list[Key]:
        """Take out the worst until n_slots are left, none of the row's last n_slots experts; what went, in order."""
        kept = {(layer, expert) for expert in row[max(0, len(row) - n_slots) :]}
        return [self._pop(kept) for _ in range(len(self) - n_slots)]

    def _pop(self, kept: Container[Key]) -> Key:
        """The expert of the smallest priority among those that are not kept; there must be one."""
        passed = []
        while True:
            entry = heappop(self._heap)
            if self._priority.get(entry[1]) != entry[0]:
                continue
            if entry[1] not in kept:
                break
            passed.append(entry)
        for other in passed:
            heappush(self._heap, other)
        del self._priority[entry[1]]
        return entry[1]

    def keys(self) -> list[Key]:
        """The experts in it."""
        return list(self._priority)
