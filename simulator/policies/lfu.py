"""LFU: the expert that was used in the fewest rows so far goes first."""

from collections.abc import Sequence

from simulator.policies.worst_first import WorstFirst

Key = tuple[int, int]  # layer, expert


class LFU:
    """
    Counts are kept for all experts, cached or not: there are few, and an expert that comes back keeps its past.

    Of equal counts the one last used in the earlier lap (n_layers rows) goes, then the lower layer and expert.
    """

    def __init__(self, n_slots: int, n_layers: int) -> None:
        self.n_slots, self.n_layers = n_slots, n_layers
        self._cached = WorstFirst()
        self._counts: dict[Key, int] = {}
        self._n_rows = 0

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[Key]]:
        """See CachePolicy."""
        cached, lap = self._cached, self._n_rows // self.n_layers
        missing = [expert for expert in experts if (layer, expert) not in cached]
        for expert in experts:
            count = self._counts.get((layer, expert), 0) + 1
            self._counts[layer, expert] = count
            cached.put((layer, expert), (count, lap))
        self._n_rows += 1
        return missing, cached.shrink(self.n_slots, layer, experts)
