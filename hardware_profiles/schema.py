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
    ByteRate,
    ByteSize,
    Count,
    Frozen,
    ProfileError,
    Provenance,
    SourceText,
    quantity,
)
from moeplan.quantity import format_bytes, format_rate, format_seconds

RANDOM_READ_BYTES = 4096  # the request size of random_4k_read


class Figure(Provenance):
    """A number in SI units and how far it can be trusted."""

    value: float


class RateFigure(Figure):
    """A Figure in bytes/s, written like '3.5 GB/s'."""

    value: ByteRate


class FlopFigure(Figure):
    """A Figure in flop/s, written like '1.2 TFLOP/s'."""

    value: Annotated[float, quantity("flop/second")]


class TimeFigure(Figure):
    """A Figure in seconds, written like '80 us'; it may be zero."""

    value: Annotated[float, quantity("second")]


class WattFigure(Figure):
    """A Figure in watts, written like '6.5 W'."""

    value: Annotated[float, quantity("watt")]


class SizeFigure(Figure):
    """A Figure in bytes, written like '16 GiB' or '64 GB'."""

    value: Annotated[float, quantity("byte")]


class FracFigure(Figure):
    """A Figure between 0 and 1 without a unit; its uncertainty is an absolute half-width."""

    value: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


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


class StorageRow(Frozen):
    """One rate in bytes/s: random reads of this request size with this many in flight."""

    request: ByteSize
    queue_depth: Count
    rate: ByteRate


class StorageTable(Provenance):
    """Rates of one measurement campaign; the provenance holds for every row."""

    rows: Annotated[tuple[StorageRow, ...], Field(min_length=1)]


class BurstRow(Frozen):
    """Seconds from issuing n_requests at once on an idle device to the arrival of the last one."""

    request: ByteSize
    n_requests: Count
    time: Annotated[float, quantity("second"), Field(gt=0)]


class StorageBursts(Provenance):
    """Measured bursts; the provenance holds for every row."""

    rows: Annotated[tuple[BurstRow, ...], Field(min_length=2)]


class Storage(Frozen):
    """
    Read behaviour: sequential_read and random_4k_read (one request at a time), the latency of a small request where
    it is known apart, queue_depth: how many requests in flight still help, max_request: the largest piece that the
    kernel hands to the device (None: it splits nothing).

    table: rates over request size and queue depth; where it is given, the four constants of StorageModel are fitted
    to it.  bursts: measured times of requests issued at once, which is how a row of experts is read; the constants
    for a request size come from them where they are given.  direct_io: whether reads can pass the page cache by;
    read_ahead: what a buffered read draws in beyond.
    """

    kind: str
    capacity: SizeFigure
    free_space: SizeFigure
    sequential_read: RateFigure
    random_4k_read: RateFigure
    latency: TimeFigure | None = None
    queue_depth: Count
    queue_depth_source: SourceText
    max_request: ByteSize | None = None
    max_request_source: SourceText | None = None
    table: StorageTable | None = None
    bursts: StorageBursts | None = None
    direct_io: Annotated[bool, Field(strict=True)]
    read_ahead: SizeFigure
    page_cache: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        small, large = self.random_4k_read.value, self.sequential_read.value
        if small > large:
            got = f"{format_rate(small)} > {format_rate(large)}"
            raise ProfileError("random_4k_read", "random_4k_read must be at most sequential_read", got, "swapped?")
        if (self.max_request is None) != (self.max_request_source is None):
            raise ProfileError("max_request", "max_request and max_request_source must stand together", "one of them")
        if self.free_space.value > self.capacity.value:
            got = f"{format_bytes(self.free_space.value)} > {format_bytes(self.capacity.value)}"
            raise ProfileError("free_space", "free_space must be at most capacity", got)
        alone_s = RANDOM_READ_BYTES / small
        if self.table is None and self.latency is not None and self.latency.value > alone_s:
            got = f"{format_seconds(self.latency.value)} > {format_seconds(alone_s)}"
            advice = "correct one of the two"
            raise ProfileError("latency", "latency must be at most 4 KiB / random_4k_read", got, advice)
        return self

    @property
    def free_bytes(self) -> float:
        """Bytes that a model file may take."""
        return self.free_space.value

    @property
    def capacity_bytes(self) -> float:
        """Size of the device."""
        return self.capacity.value


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
