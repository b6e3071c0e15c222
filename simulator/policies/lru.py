"""Global LRU: one recency list over the experts of all layers."""

from collections.abc import Sequence


class GlobalLRU:
    """
    The expert that was used least recently, in whatever layer, goes first.

    In decode every layer is visited once a token, so with at most (n_layers - 1) * top_k slots everything is
    evicted before its layer comes round again: no hits at all.
    """

    def __init__(self, n_slots: int, n_layers: int) -> None:
        self.n_slots = n_slots
        self._recency: dict[tuple[int, int], None] = {}  # oldest first

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """See CachePolicy."""
        recency, missing = self._recency, []
        for expert in experts:
            key = (layer, expert)
            if key in recency:
                del recency[key]
            else:
                missing.append(expert)
            recency[key] = None
        evicted = []
        while len(recency) > self.n_slots:
            oldest = next(iter(recency))
            del recency[oldest]
            evicted.append(oldest)
        return missing, evicted
