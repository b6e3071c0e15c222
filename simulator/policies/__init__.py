"""
Expert-cache policies: one file each, and a registry.

A policy decides which experts stay in RAM.  The simulator and the reference runtime run the very same code, so
their hits, misses and evictions are equal by construction and a validation measures time alone.

To add one: write `simulator/policies/<name>.py` with a class that satisfies CachePolicy, add it to POLICIES and give
it an oracle in tests/test_policies.py.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from moeplan.errors import InputError, nearest
from simulator.policies.lru import GlobalLRU
from simulator.policies.per_layer_lru import PerLayerLRU


class CachePolicy(Protocol):
    """An expert cache of a fixed number of slots, accessed a row (the experts of one token and layer) at a time."""

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """
        Use the distinct experts of one row of the layer (index among the MoE layers).

        Returns (missing experts in row order, evicted (layer, expert) pairs).  Hits count against the state before
        the row; no expert of the row is evicted for another one of it unless the row alone exceeds the slots, in
        which case the last ones of the row stay.
        """
        ...


POLICIES: dict[str, Callable[[int, int], CachePolicy]] = {"lru": GlobalLRU, "lru-per-layer": PerLayerLRU}


def make_policy(name: str, n_slots: int, n_layers: int) -> CachePolicy:
    """A fresh, empty cache. Raises InputError for an unknown name."""
    if name not in POLICIES:
        raise InputError("--cache", "must be a known cache policy", repr(name), nearest(name, POLICIES))
    return POLICIES[name](n_slots, n_layers)
