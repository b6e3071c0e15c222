"""
HardwareProfile: what a device is, as a person writes it in YAML.

Every number is a Figure: a value with its unit, its kind, its source and its uncertainty.
Units are those of moeplan/units.txt: GB is 10^9 bytes, GiB is 2^30 bytes.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from hardware_profiles.kernel_table import KernelTable
from hardware_profiles.schema_base import (
    MOST_UNCERTAINTY,
    ByteSize,
    Count,
    Frozen,
    ProfileError,
    SourceText,
    quantity,
)
from hardware_profiles.schema_figures import (
    Figure,
    FlopFigure,
    FracFigure,
    RateFigure,
    SizeFigure,
    TimeFigure,
    WattFigure,
)
from hardware_profiles.schema_storage import Storage
from moeplan.quantity import format_bytes, format_rate


class Cpu(Frozen):
    """
    gemm_flop_per_s: what a prefill product reaches on the used threads; gemv_flop_per_s: what decode products on
    4-bit and 8-bit weights reach when memory is no limit; op_overhead: dispatch and barrier of one kernel.
    All rates hold for so many threads; cores_source says where both counts come from.

    kernels: measured times of an engine's own kernels; the cost equations prefer them to the rates.  timer_lag: how
    late a thread that slept until a moment is back.
    """

    name: str
    cores: Count
    threads: Count
    cores_source: SourceText
    peak_flop_per_s: FlopFigure
    gemm_flop_per_s: FlopFigure
    gemv_flop_per_s: FlopFigure
    op_overhead: TimeFigure
    timer_lag: TimeFigure | None = None
    kernels: KernelTable | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.threads > 2 * self.cores:
            raise ProfileError("threads", "threads must be at most two for each core", self.threads)
        if self.gemv_flop_per_s.value > self.peak_flop_per_s.value:
            got = f"{self.gemv_flop_per_s.value:.3g} > {self.peak_flop_per_s.value:.3g} flop/s"
            raise ProfileError("gemv_flop_per_s", "gemv_flop_per_s must be at most peak_flop_per_s", got)
        if self.gemm_flop_per_s.value > self.peak_flop_per_s.value:
            got = f"{self.gemm_flop_per_s.value:.3g} > {self.peak_flop_per_s.value:.3g} flop/s"
            raise ProfileError("gemm_flop_per_s", "gemm_flop_per_s must be at most peak_flop_per_s", got)
        if self.kernels is not None and self.threads not in self.kernels.threads():
            must = f"threads must be one of those that kernels has: {', '.join(map(str, self.kernels.threads()))}"
            raise ProfileError("threads", must, self.threads)
        return self


class Ram(Frozen):
    """
    size; what the operating system and other programs keep of it; an app's own limit where there is one;
    peak_bandwidth of the bus and gemv_bandwidth, what many-threaded reads of weights sustain.
    """

    size: ByteSize
    size_source: SourceText
    os_reserved: SizeFigure
    app_memory_limit: SizeFigure | None = None
    peak_bandwidth: RateFigure
    gemv_bandwidth: RateFigure

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.os_reserved.value >= self.size:
            got = f"{format_bytes(self.os_reserved.value)} of {format_bytes(self.size)}"
            raise ProfileError("os_reserved", "os_reserved must be less than the RAM's size", got)
        if self.gemv_bandwidth.value > self.peak_bandwidth.value:
            got = f"{format_rate(self.gemv_bandwidth.value)} > {format_rate(self.peak_bandwidth.value)}"
            raise ProfileError("gemv_bandwidth", "gemv_bandwidth must be at most peak_bandwidth", got)
        return self

    @property
    def size_bytes(self) -> int:
        """RAM of the device."""
        return self.size

    @property
    def os_reserved_bytes(self) -> float:
        """What the operating system and other programs keep."""
        return self.os_reserved.value

    @property
    def app_memory_limit_bytes(self) -> float | None:
        """The most that one program may use, None without such a limit."""
        return None if self.app_memory_limit is None else self.app_memory_limit.value


class Power(Frozen):
    """Whole-device power: idle, and what busy compute and busy storage add to it."""

    idle: WattFigure
    compute: WattFigure
    storage: WattFigure

    @property
    def idle_w(self) -> float:
        """Watt while nothing runs."""
        return self.idle.value

    @property
    def compute_w(self) -> float:
        """Watt that busy compute adds."""
        return self.compute.value

    @property
    def storage_w(self) -> float:
        """Watt that busy storage adds."""
        return self.storage.value


class Contention(Frozen):
    """
    What compute and reads take from each other while both run at full rate, as measured.

    compute_speed: speed of compute, 1 is its speed alone; read_speed: the same of reads.
    """

    compute_speed: FracFigure
    read_speed: FracFigure

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("compute_speed", "read_speed"):
            if getattr(self, name).value <= 0:
                raise ProfileError(name, f"{name} must be above zero", 0)
        return self


class SpotCheck(Frozen):
    """
    A short measurement that tells the machine's state: the same one made again later, beside this time, says how much
    slower or faster the machine has become.

    name: what was timed; spread: standard deviation of its logarithm over the probe's rounds.
    """

    name: str
    time: Annotated[float, quantity("second"), Field(gt=0)]
    spread: Annotated[float, Field(ge=0, le=MOST_UNCERTAINTY, allow_inf_nan=False)]


class HardwareProfile(Frozen):
    """
    A device.

    overlap_efficiency: share of the shorter of compute and reads that running both at once hides; contention, where it
    was measured, says it for each of the two and is what counts.
    """

    schema_version: Literal[1]
    name: str
    title: str
    notes: str = ""
    cpu: Cpu
    ram: Ram
    storage: Storage
    overlap_efficiency: FracFigure
    contention: Contention | None = None
    power: Power | None = None
    spot_checks: tuple[SpotCheck, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        read, ram = self.storage.sequential_read.value, self.ram.peak_bandwidth.value
        if read > ram:
            must = "storage.sequential_read must be at most ram.peak_bandwidth, which it is read into"
            raise ProfileError("storage", must, f"{format_rate(read)} > {format_rate(ram)}")
        return self


def figures(profile: HardwareProfile) -> Iterator[tuple[str, Figure]]:
    """Every Figure of a profile with its dotted key, in the order of the schema; table rows are no Figures."""
    yield from _figures_below(profile, "")


def _figures_below(part: BaseModel, prefix: str) -> Iterator[tuple[str, Figure]]:
    for name in type(part).model_fields:
        value, key = getattr(part, name), f"{prefix}{name}"
        if isinstance(value, Figure):
            yield key, value
        elif isinstance(value, BaseModel):
            yield from _figures_below(value, f"{key}.")
