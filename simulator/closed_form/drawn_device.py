"""
All draws of a device at once: what their reads take, and cost beside compute, as arrays.

Index 0 is the central device; draws, and whatever else differs in rates alone, follow.  Reads are timed as
hardware_profiles.storage does it, for all side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hardware_profiles.rates import DeviceRates
from hardware_profiles.storage import StorageModel
from simulator.closed_form.totals import cost_table
from simulator.expert_layout import ExpertLayout
from simulator.miss_costs import costs_of_waits_rise, miss_costs, read_table


@dataclass(frozen=True, eq=False)
class DrawnReads:
    """Speeds (n, 2) of compute and of reads while both run; tables (n, 4, top_k + 1): see totals.cost_table."""

    speeds: np.ndarray
    tables: np.ndarray

    @property
    def n_bytes(self) -> int:
        """Bytes of the tables; the speeds belong to the device."""
        return self.tables.nbytes


class DrawnDevice:
    """The rates of all draws, for one layout of experts and one prefetch policy; `reads` times any storage speed."""

    def __init__(self, rates: Sequence[DeviceRates], layout: ExpertLayout, top_k: int, prefetch_policy: str) -> None:
        self._rates, self._layout, self._top_k, self._policy = tuple(rates), layout, top_k, prefetch_policy
        self._speeds = np.array([(one.contended_compute_frac, one.contended_read_frac) for one in rates])

    def reads(self, factor: float = 1.0) -> DrawnReads:
        """With every byte read so many times as fast; latencies stay. A storage behind a limiter has factor 1 only."""
        if factor == 1.0:
            read_s = np.array([read_table(one, self._layout, self._top_k) for one in self._rates])
        else:
            assert self._rates[0].storage.limit_bytes_per_s is None
            read_s = read_tables([one.storage for one in self._rates], self._layout, self._top_k, factor)
        return DrawnReads(self._speeds, self._tables(read_s))

    @cached_property
    def costs_of_waits_rise(self) -> bool:
        """Whether longer waits never cost less, in any draw."""
        return all(costs_of_waits_rise(one, self._layout, self._policy) for one in self._rates)

    def _tables(self, read_s: np.ndarray) -> np.ndarray:
        if self._rates[0].kernels is None:  # what reads cost beside compute was not measured
            nothing = np.zeros_like(read_s)
            return np.stack([nothing, nothing, nothing, read_s], axis=1)
        return np.array([
            cost_table(miss_costs(one, self._layout, self._top_k, self._policy, own_s))
            for one, own_s in zip(self._rates, read_s, strict=True)
        ])  # fmt: skip


def read_tables(storages: Sequence[StorageModel], layout: ExpertLayout, most: int, factor: float = 1.0) -> np.ndarray:
    """
    float64 (len(storages), most + 1): miss_costs.read_table for draws of one storage, each byte `factor` times as fast.

    Lanes become free in the order in which they were taken, since the bus serves one request after the other: a queue
    of lanes is enough where StorageModel keeps a heap.
    """
    first = storages[0]
    found = np.zeros((len(storages), most + 1))
    if not layout.request_bytes or not most:
        return found
    n_pieces, piece_bytes = first.pieces(layout.request_bytes)
    per_request = np.array([(one.latency_s, one.request_overhead_s) for one in storages]).T
    per_byte = np.array([(one.lane_s_per_byte, one.bus_s_per_byte) for one in storages]).T / factor
    lane_s, bus_s = per_request + per_byte * piece_bytes
    n_lanes = min(first.queue_depth, most * layout.n_requests * n_pieces)
    lanes, bus_free = [np.zeros(len(storages)) for _ in range(n_lanes)], np.zeros(len(storages))
    piece = 0
    for expert in range(1, most + 1):
        for _ in range(layout.n_requests * n_pieces):
            bus_free = np.maximum(bus_free, lanes[piece % n_lanes] + lane_s) + bus_s
            lanes[piece % n_lanes], piece = bus_free, piece + 1
        found[:, expert] = bus_free
    return found
