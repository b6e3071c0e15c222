"""Belady: the expert whose next use lies farthest ahead goes first: the bound of all policies that hold each row."""

from collections.abc import Sequence

from simulator.policies.worst_first import WorstFirst

Key = tuple[int, int]  # layer, expert
Row = tuple[int, Sequence[int]]  # layer, experts


class Belady:
    """
    Knows all rows that will come.  Experts that are never used again go first, then the lower layer and expert.

    The best that a cache can do which holds the experts of each row while it is used: a row is one access, so the
    distance to the next use is counted in rows.
    """

    def __init__(self, n_slots: int, n_layers: int, future: Sequence[Row]) -> None:
        self.n_slots = n_slots
        self._cached = WorstFirst()
        self._future, self._n_rows = future, 0
        self._next_uses = _next_uses(future)

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[Key]]:
        """See CachePolicy. Raises ValueError where the row is not the one that was foretold."""
        cached, row = self._cached, self._n_rows
        if row >= len(self._future) or layer != self._future[row][0] or list(experts) != list(self._future[row][1]):
            raise ValueError(f"row {row} is not the one that the policy was told of: layer {layer}, {list(experts)}")
        missing = [expert for expert in experts if (layer, expert) not in cached]
        for expert, next_use in zip(experts, self._next_uses[row], strict=True):
            cached.put((layer, expert), (-next_use,))
        self._n_rows += 1
        return missing, cached.shrink(self.n_slots, layer, experts)


def _next_uses(rows: Sequence[Row]) -> list[list[int]]:
    """For every expert of every row the index of the next row that uses it, len(rows) where there is none."""
    result: list[list[int]] = []
    coming: dict[Key, int] = {}
    for index in range(len(rows) - 1, -1, -1):
        layer, experts = rows[index]
        result.append([coming.get((layer, expert), len(rows)) for expert in experts])
        coming.update({(layer, expert): index for expert in experts})
    return result[::-1]
