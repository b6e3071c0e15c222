"""LFU with decay: like LFU, but old uses count less and less."""

from collections.abc import Sequence

from simulator.policies.worst_first import WorstFirst

Key = tuple[int, int]  # layer, expert
USE = 2**8  # one use, in a count's fixed point: halves that fall below one part of it are forgotten
HALVING_LAPS = 64  # tokens after which all counts are halved: a paragraph or two of text; our choice


class LFUDecay:
    """
    Counts are kept for all experts and halved every HALVING_LAPS * n_layers rows, before the row that follows.

    Of equal counts the one last used in the earlier lap (n_layers rows) goes, then the lower layer and expert.
    """

    def __init__(self, n_slots: int, n_layers: int) -> None:
        self.n_slots, self.n_layers = n_slots, n_layers
        self._cached = WorstFirst()
        self._uses: dict[Key, tuple[int, int]] = {}  # count, lap of the last use
        self._n_rows = 0

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[Key]]:
        """See CachePolicy."""
        if self._n_rows and self._n_rows % (HALVING_LAPS * self.n_layers) == 0:
            self._halve()
        cached, lap = self._cached, self._n_rows // self.n_layers
        missing = [expert for expert in experts if (layer, expert) not in cached]
        for expert in experts:
            count, _ = self._uses.get((layer, expert), (0, 0))
            self._uses[layer, expert] = count + USE, lap
            cached.put((layer, expert), self._uses[layer, expert])
        self._n_rows += 1
        return missing, cached.shrink(self.n_slots, layer, experts)

    def _halve(self) -> None:
        self._uses = {key: (count // 2, lap) for key, (count, lap) in self._uses.items()}
        for key in self._cached.keys():  # noqa: SIM118 (not a dict)
            self._cached.put(key, self._uses[key])
