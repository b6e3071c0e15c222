"""DeviceRates: the plain SI numbers of a device that the simulator consumes; central, or one Monte Carlo draw."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hardware_profiles.kernel_table import KernelTimes
from hardware_profiles.schema import HardwareProfile
from hardware_profiles.schema_base import Z_80
from hardware_profiles.schema_figures import Figure, FracFigure
from hardware_profiles.storage import StorageModel
from hardware_profiles.storage_fit import burst_model, storage_model
from moeplan.errors import InputError

SLOWEST_FRAC = 0.01  # a drawn speed while both run is at least this: nothing stands still


@dataclass(frozen=True)
class DeviceRates:
    """
    gemv_flop_per_s: decode products of one token; gemm_flop_per_s: products of a prefill chunk;
    ram_bytes_per_s: sustained reads of weights; op_overhead_s: dispatch and barrier of one kernel;
    contended_compute_frac, contended_read_frac: speed of compute and of reads while both run;
    kernels: measured times, which come before the rates; kernel_factor multiplies the part of them that RAM does not
    explain; timer_lag_s: how late a sleeper wakes.
    """

    gemv_flop_per_s: float
    gemm_flop_per_s: float
    ram_bytes_per_s: float
    op_overhead_s: float
    storage: StorageModel
    sequential_read_bytes_per_s: float
    contended_compute_frac: float
    contended_read_frac: float
    kernels: KernelTimes | None = None
    kernel_factor: float = 1.0
    timer_lag_s: float = 0.0

    def faster_compute(self, factor: float) -> "DeviceRates":
        """The device with compute, but not RAM, faster by a factor."""
        return replace(
            self,
            gemv_flop_per_s=self.gemv_flop_per_s * factor,
            gemm_flop_per_s=self.gemm_flop_per_s * factor,
            op_overhead_s=self.op_overhead_s / factor,
            kernel_factor=self.kernel_factor / factor,
        )

    def limited(self, bytes_per_s: float, request_bytes: int) -> "DeviceRates":
        """
        The device behind a limiter of its read rate, which the runtime has as a stand-in for a slower drive.

        The real read runs within the time that the limiter gives it, so what sharing the machine costs the read is
        lost only where it exceeds that, and compute shares the machine for the part of the time in which bytes move.
        """
        own_s = self.storage.seconds_per_request(request_bytes)
        limited = self.storage.limited(bytes_per_s, self.timer_lag_s)
        limited_s = limited.seconds_per_request(request_bytes)
        busy_frac = min(1.0, own_s / limited_s)
        return replace(
            self,
            storage=limited,
            sequential_read_bytes_per_s=min(self.sequential_read_bytes_per_s, bytes_per_s),
            contended_read_frac=min(1.0, self.contended_read_frac / busy_frac),
            contended_compute_frac=1 - (1 - self.contended_compute_frac) * busy_frac,
        )


def contended_frac(overlap_efficiency_frac: float) -> float:
    """
    Common speed of compute and of reads while both run.

    With overlap efficiency e two jobs C and R together take C + R - e min(C, R); if both progress at the common
    speed v while both run, they take min / v + max - min; equating the two gives v = 1 / (2 - e).
    """
    return 1 / (2 - overlap_efficiency_frac)


def rates(
    profile: HardwareProfile,
    *,
    request_bytes: int | None = None,
    n_threads: int | None = None,
    idle_s: float | None = None,
) -> DeviceRates:
    """
    The central values of a profile.

    request_bytes: the size of the reads that matter, where measured bursts can tell their times; idle_s: how long the
    storage rests before them; n_threads: None takes the profile's.  Raises InputError for a number of threads that the
    profile has no figures for.
    """
    contention = profile.contention
    common = contended_frac(profile.overlap_efficiency.value)
    return DeviceRates(
        gemv_flop_per_s=profile.cpu.gemv_flop_per_s.value,
        gemm_flop_per_s=profile.cpu.gemm_flop_per_s.value,
        ram_bytes_per_s=profile.ram.gemv_bandwidth.value,
        op_overhead_s=profile.cpu.op_overhead.value,
        storage=_storage_model(profile, request_bytes, idle_s),
        sequential_read_bytes_per_s=profile.storage.sequential_read.value,
        contended_compute_frac=common if contention is None else contention.compute_speed.value,
        contended_read_frac=common if contention is None else contention.read_speed.value,
        kernels=_kernel_times(profile, profile.cpu.threads if n_threads is None else n_threads),
        timer_lag_s=0.0 if profile.cpu.timer_lag is None else profile.cpu.timer_lag.value,
    )


@lru_cache(maxsize=64)
def _storage_model(profile: HardwareProfile, request_bytes: int | None, idle_s: float | None) -> StorageModel:
    bursts = profile.storage.bursts
    if bursts is None or not request_bytes:
        return storage_model(profile.storage)
    return burst_model(bursts.rows, request_bytes, profile.storage.queue_depth, idle_s)


@lru_cache(maxsize=64)
def _kernel_times(profile: HardwareProfile, n_threads: int) -> KernelTimes | None:
    table = profile.cpu.kernels
    known = (profile.cpu.threads,) if table is None else table.threads()
    if n_threads not in known:
        must = f"must be {' or '.join(map(str, known))}, for which the figures of {profile.name} hold"
        advice = "leave it out, or measure other numbers with `moeplan hardware probe --threads`"
        raise InputError("--threads", must, n_threads, advice)
    return None if table is None else KernelTimes(table, n_threads)


def sample_rates(
    profile: HardwareProfile,
    rng: np.random.Generator,
    *,
    request_bytes: int | None = None,
    n_threads: int | None = None,
    idle_s: float | None = None,
) -> DeviceRates:
    """
    One draw from the profile's stated uncertainties; the same rng state gives the same draw.

    Rates and times are log-normal.  The storage's per-byte times share one draw (that of sequential_read, of the
    bursts where these were measured) and its per-request times another (that of random_4k_read); overlap efficiency
    and speeds while both run are normal, clipped to 0..1.
    """
    central = rates(profile, request_bytes=request_bytes, n_threads=n_threads, idle_s=idle_s)

    def factor(figure: Figure) -> float:
        return float(np.exp(figure.sigma * rng.standard_normal()))

    def clipped(figure: FracFigure) -> float:
        return float(np.clip(figure.value + figure.uncertainty / Z_80 * rng.standard_normal(), 0.0, 1.0))

    gemv, gemm = factor(profile.cpu.gemv_flop_per_s), factor(profile.cpu.gemm_flop_per_s)
    ram, overhead = factor(profile.ram.gemv_bandwidth), factor(profile.cpu.op_overhead)
    sequential, small = factor(profile.storage.sequential_read), factor(profile.storage.random_4k_read)
    compute_frac = read_frac = contended_frac(clipped(profile.overlap_efficiency))
    if profile.contention is not None:
        compute_frac = max(SLOWEST_FRAC, clipped(profile.contention.compute_speed))
        read_frac = max(SLOWEST_FRAC, clipped(profile.contention.read_speed))
    kernels = 1.0
    if profile.cpu.kernels is not None:
        kernels = float(np.exp(profile.cpu.kernels.sigma * rng.standard_normal()))
        ram = 1 / kernels  # one state of the machine: its caches, clock and neighbours
    if request_bytes and profile.storage.bursts is not None:
        sequential = small = float(np.exp(profile.storage.bursts.sigma * rng.standard_normal()))
    storage = central.storage
    return replace(
        central,
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
        contended_compute_frac=compute_frac,
        contended_read_frac=read_frac,
        kernel_factor=kernels,
        timer_lag_s=central.timer_lag_s * (1.0 if profile.cpu.timer_lag is None else factor(profile.cpu.timer_lag)),
    )
