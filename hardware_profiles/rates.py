"""DeviceRates: the plain SI numbers of a device that the simulator consumes; central, or one Monte Carlo draw."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hardware_profiles.schema import Z_80, Figure, HardwareProfile
from hardware_profiles.storage import StorageModel
from hardware_profiles.storage_fit import storage_model


@dataclass(frozen=True)
class DeviceRates:
    """
    gemv_flop_per_s: decode products of one token; gemm_flop_per_s: products of a prefill chunk;
    ram_bytes_per_s: sustained reads of weights; op_overhead_s: dispatch and barrier of one kernel;
    overlap_efficiency_frac: share of the shorter of compute and reads that running both at once hides.
    """

    gemv_flop_per_s: float
    gemm_flop_per_s: float
    ram_bytes_per_s: float
    op_overhead_s: float
    storage: StorageModel
    sequential_read_bytes_per_s: float
    overlap_efficiency_frac: float


def rates(profile: HardwareProfile) -> DeviceRates:
    """The central values of a profile."""
    return DeviceRates(
        gemv_flop_per_s=profile.cpu.gemv_flop_per_s.value,
        gemm_flop_per_s=profile.cpu.gemm_flop_per_s.value,
        ram_bytes_per_s=profile.ram.gemv_bandwidth.value,
        op_overhead_s=profile.cpu.op_overhead.value,
        storage=_storage_model(profile),
        sequential_read_bytes_per_s=profile.storage.sequential_read.value,
        overlap_efficiency_frac=profile.overlap_efficiency.value,
    )


@lru_cache(maxsize=64)
def _storage_model(profile: HardwareProfile) -> StorageModel:
    return storage_model(profile.storage)


def sample_rates(profile: HardwareProfile, rng: np.random.Generator) -> DeviceRates:
    """
    One draw from the profile's stated uncertainties; the same rng state gives the same draw.

    Rates and times are log-normal.  The storage's per-byte times share one draw (that of sequential_read) and its
    per-request times another (that of random_4k_read); overlap efficiency is normal, clipped to 0..1.
    """
    central = rates(profile)

    def factor(figure: Figure) -> float:
        return float(np.exp(figure.sigma * rng.standard_normal()))

    gemv, gemm = factor(profile.cpu.gemv_flop_per_s), factor(profile.cpu.gemm_flop_per_s)
    ram, overhead = factor(profile.ram.gemv_bandwidth), factor(profile.cpu.op_overhead)
    sequential, small = factor(profile.storage.sequential_read), factor(profile.storage.random_4k_read)
    overlap = profile.overlap_efficiency
    drawn_overlap = overlap.value + overlap.uncertainty / Z_80 * rng.standard_normal()
    storage = central.storage
    return DeviceRates(
        gemv_flop_per_s=central.gemv_flop_per_s * gemv,
        gemm_flop_per_s=central.gemm_flop_per_s * gemm,
        ram_bytes_per_s=central.ram_bytes_per_s * ram,
        op_overhead_s=central.op_overhead_s * overhead,
        storage=replace(
            storage,
            latency_s=storage.latency_s / small,
            request_overhead_s=storage.request_overhead_s / small,
            lane_s_per_byte=storage.lane_s_per_byte / sequential,
            bus_s_per_byte=storage.bus_s_per_byte / sequential,
        ),
        sequential_read_bytes_per_s=central.sequential_read_bytes_per_s * sequential,
        overlap_efficiency_frac=float(np.clip(drawn_overlap, 0.0, 1.0)),
    )
