"""CLOCK: FIFO with a second chance for what was used since the hand last passed."""

from collections.abc import Sequence

Key = tuple[int, int]  # layer, expert


class Clock:
    """
    Experts stand in a circle.  The hand passes over the row's own, clears the bit of one that was used since it was
    read or last passed, and evicts the first that has none.  A new expert comes in behind the hand, its bit clear.
    """

    def __init__(self, n_slots: int, n_layers: int) -> None:
        self.n_slots = n_slots
        self._circle: dict[Key, bool] = {}  # from the hand on: whether it was used

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[Key]]:
        """See CachePolicy."""
        circle, missing = self._circle, []
        for expert in experts:
            if (layer, expert) in circle:
                circle[layer, expert] = True
            else:
                missing.append(expert)
        circle.update({(layer, expert): False for expert in missing})
        kept = {(layer, expert) for expert in experts[max(0, len(experts) - self.n_slots) :]}
        evicted = []
        while len(circle) > self.n_slots:
            key = next(iter(circle))
            used = circle.pop(key)
            if key in kept:
                circle[key] = used
            elif used:
                circle[key] = False
            else:
                evicted.append(key)
        return missing, evicted
