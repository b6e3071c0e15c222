"""Storage: how a device's drive reads, as a person or a probe writes it."""

from typing import Annotated, Self

from pydantic import Field, model_validator

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
from hardware_profiles.schema_figures import RateFigure, SizeFigure, TimeFigure
from moeplan.quantity import format_bytes, format_rate, format_seconds

RANDOM_READ_BYTES = 4096  # the request size of random_4k_read


class StorageRow(Frozen):
    """One rate in bytes/s: random reads of this request size with this many in flight."""

    request: ByteSize
    queue_depth: Count
    rate: ByteRate


class StorageTable(Provenance):
    """Rates of one measurement campaign; the provenance holds for every row."""

    rows: Annotated[tuple[StorageRow, ...], Field(min_length=1)]


class BurstRow(Frozen):
    """
    Seconds from issuing n_requests at once on an idle device to the arrival of the last one.

    idle: how long the device had nothing to do before, while products ran; None: not told.  Some machines take longer
    for the first read after a pause.
    """

    request: ByteSize
    n_requests: Count
    time: Annotated[float, quantity("second"), Field(gt=0)]
    idle: Annotated[float, quantity("second"), Field(gt=0)] | None = None


class StorageBursts(Provenance):
    """Measured bursts; the provenance holds for every row."""

    rows: Annotated[tuple[BurstRow, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _idle_in_all_or_none(self) -> Self:
        told = {row.idle is not None for row in self.rows}
        if len(told) > 1:
            raise ProfileError("bursts", "must say idle in every row or in none", "rows with and without it")
        return self


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
