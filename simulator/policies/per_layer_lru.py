"""Per-layer LRU: every layer has its own share of the slots and its own recency list."""

from collections.abc import Sequence

from simulator.policies.lru import GlobalLRU


class PerLayerLRU:
    """
    LRU within each layer; slots are shared equally, the first layers get one more where they do not divide.

    Its cliff is at top_k slots a layer: below, a row evicts itself.
    """

    def __init__(self, n_slots: int, n_layers: int) -> None:
        share, extra = divmod(n_slots, n_layers)
        self._layers = [GlobalLRU(share + (layer < extra), 1) for layer in range(n_layers)]

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """See CachePolicy."""
        return self._layers[layer].access_row(layer, experts)
