"""SIEVE: a queue whose hand evicts what was not used since it last passed, and moves nothing (NSDI '24)."""

from collections.abc import Sequence

Key = tuple[int, int]  # layer, expert


class Sieve:
    """
    The hand goes from the oldest to the newest and then begins again.  It passes over the row's own experts, clears
    the mark of used ones and evicts the first without a mark.  A new expert is the newest, without a mark.

    Source: Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024.  Over the experts of all layers it tends to freeze:
    once all kept experts are used between two passes of the hand, new ones are evicted before their next use.
    """

    def __init__(self, n_slots: int, n_layers: int) -> None:
        self.n_slots = n_slots
        self._queue: list[Key] = []  # oldest first
        self._used: dict[Key, bool] = {}
        self._hand = 0  # index in the queue

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[Key]]:
        """See CachePolicy."""
        missing = [expert for expert in experts if (layer, expert) not in self._used]
        self._used.update({(layer, expert): True for expert in experts})
        for expert in missing:
            self._used[layer, expert] = False
            self._queue.append((layer, expert))
        kept = {(layer, expert) for expert in experts[max(0, len(experts) - self.n_slots) :]}
        evicted = []
        while len(self._queue) > self.n_slots:
            evicted.append(self._evict(kept))
        return missing, evicted

    def _evict(self, kept: set[Key]) -> Key:
        while True:
            key = self._queue[self._hand]
            if key not in kept and not self._used[key]:
                del self._queue[self._hand], self._used[key]
                self._hand = self._hand % len(self._queue) if self._queue else 0
                return key
            if key not in kept:
                self._used[key] = False
            self._hand = (self._hand + 1) % len(self._queue)
