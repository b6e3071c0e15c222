"""
Expert-cache policies: one file each, and a registry.

A policy decides which experts stay in RAM.  The simulator and the reference runtime run the very same code, so
their hits, misses and evictions are equal by construction and a validation measures time alone.

To add one: write `simulator/policies/<name>.py` with a class that satisfies CachePolicy, add it to POLICIES
(OFFLINE_POLICIES if it must know the future) and give it an oracle in tests/test_policies.py.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from moeplan.errors import InputError, nearest
from simulator.policies.belady import Belady
from simulator.policies.clock import Clock
from simulator.policies.fifo import FIFO
from simulator.policies.lfu import LFU
from simulator.policies.lfu_decay import LFUDecay
from simulator.policies.lru import GlobalLRU
from simulator.policies.per_layer_lru import PerLayerLRU
from simulator.policies.s3_fifo import S3FIFO
from simulator.policies.sieve import Sieve


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


Row = tuple[int, Sequence[int]]  # layer, experts

POLICIES: dict[str, Callable[[int, int], CachePolicy]] = {
    "lru": GlobalLRU,
    "lru-per-layer": PerLayerLRU,
    "lfu": LFU,
    "lfu-decay": LFUDecay,
    "fifo": FIFO,
    "clock": Clock,
    "s3-fifo": S3FIFO,
    "sieve": Sieve,
}

OFFLINE_POLICIES: dict[str, Callable[[int, int, Sequence[Row]], CachePolicy]] = {"belady": Belady}
"""Policies that must be told all rows beforehand: bounds to compare with, which no runtime can follow."""

STACK_POLICIES = ("lru", "lru-per-layer", "lfu", "lfu-decay", "belady")
"""A larger cache holds all that a smaller one holds, so more slots never mean more misses; the others break this."""


def make_policy(name: str, n_slots: int, n_layers: int, future: Sequence[Row] | None = None) -> CachePolicy:
    """
    A fresh, empty cache; future: all rows that it will be asked, in order, where they are known.

    Raises InputError for an unknown name, and for an offline policy where the future is not known.
    """
    if name in POLICIES:
        return POLICIES[name](n_slots, n_layers)
    if name not in OFFLINE_POLICIES:
        known = (*POLICIES, *OFFLINE_POLICIES)
        raise InputError("--cache", "must be a known cache policy", repr(name), nearest(name, known))
    if future is None:
        raise InputError(
            "--cache",
            "must be a policy that decides as it goes",
            repr(name),
            f"{name} knows the future: simulate only",
        )
    return OFFLINE_POLICIES[name](n_slots, n_layers, future)
