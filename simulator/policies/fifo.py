"""FIFO: the expert that was read first goes first, however often it was used since."""

from collections.abc import Sequence

Key = tuple[int, int]  # layer, expert


class FIFO:
    """One queue over the experts of all layers. Experts of the row keep their place in it and are passed over."""

    def __init__(self, n_slots: int, n_layers: int) -> None:
        self.n_slots = n_slots
        self._queue: dict[Key, None] = {}  # oldest first

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[Key]]:
        """See CachePolicy."""
        queue, missing = self._queue, [expert for expert in experts if (layer, expert) not in self._queue]
        for expert in missing:
            queue[layer, expert] = None
        kept = {(layer, expert) for expert in experts[max(0, len(experts) - self.n_slots) :]}
        evicted = []
        while len(queue) > self.n_slots:
            oldest = next(key for key in queue if key not in kept)
            del queue[oldest]
            evicted.append(oldest)
        return missing, evicted
