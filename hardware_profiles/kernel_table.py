"""
KernelTable: what an engine's own kernels were measured to take on a machine, and the times between its points.

A roofline knows neither the cost of a call nor that a 1536 x 768 matrix is not a 16k one.  Where a profile has this
table the cost equations take their times from it; the roofline stays for what the table does not have.

    op               size                                     count          what is timed
    gemv             bytes of the matrix                      1              a matrix times one token
    gemm             bytes of the matrix                      tokens         a matrix times a chunk
    experts          bytes of one expert                      experts        a row of experts for one token
    experts_chunk    bytes of one expert                      tokens         one expert of a chunk, for those of its
                                                                             tokens that chose it
    attend           heads x head size x pairs                heads a key    scores and mix of one token; pair: a query
                                                                             and a key that it sees; the more heads have
                                                                             a key in common, the fewer bytes are read
    attend_chunk     heads x head size x pairs                tokens         the same for a chunk
    attention_rest   hidden size                              tokens         norms, RoPE, appending keys and values,
                                                                             sums, asking the cache for a row it has
    router           experts x hidden size                    tokens         scores, top-k and weights
    issue            bytes of one expert, as read             misses         what a row's reads cost the thread that
                                                                             computes meanwhile
    delay            bytes of one expert, as read             misses         what a row's reads take longer while their
                                                                             asker computes
    wake             bytes of one expert, as read             us of reads    what expert FFN and next router take longer
                                                                             after the thread slept until reads of so
                                                                             many microseconds arrived
    wake_on_demand   bytes of one expert, as read             us of reads    the same with the next attention, where
                                                                             reads begin after attention
    wake_attention   bytes of one expert, as read             us of reads    what attention beside reads takes longer
                                                                             where every row has waited for such reads
    row              1                                        1              what a row's FFN costs beside its products
    row_wait         1                                        1              taking a row that is there from the cache;
                                                                             0 where a table does not have it
    step             hidden size                              tokens         what a step costs beside its layers

working_set: bytes that are touched before the same bytes come again; small ones live in a processor's cache.
zero_frac: share of an expert's neurons whose gate is zero; its up row and down column are skipped.
"""

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from hardware_profiles.schema_base import ByteRate, ByteSize, Count, Frozen, ProfileError, Provenance, quantity

KernelOp = Literal[
    "gemv", "gemm", "experts", "experts_chunk", "attend", "attend_chunk", "attention_rest", "router",
    "issue", "delay", "wake", "wake_on_demand", "wake_attention", "row", "row_wait", "step",
]  # fmt: skip
KERNEL_OPS: tuple[KernelOp, ...] = get_args(KernelOp)
FREE_WHERE_UNKNOWN: tuple[KernelOp, ...] = ("row_wait",)  # some tables have it in another row
FORMER_OPS = ("experts_rest",)  # of older probes; experts_chunk holds what it had
PROBE_AGAIN = "probe the machine again"

Beyond = Literal["slope", "proportion", "end"]  # how a time goes on above the largest point that was measured
OF_READS: tuple[KernelOp, ...] = ("issue", "delay", "wake", "wake_on_demand", "wake_attention")
BEYOND_SIZE: dict[KernelOp, Beyond] = {
    **dict.fromkeys(OF_READS, "end"),  # waits, not work; two sizes tell nothing of a third
    **dict.fromkeys(("attention_rest", "step"), "proportion"),  # what is left of a difference has no slope to trust
}
BEYOND_COUNT: dict[KernelOp, Beyond] = {**dict.fromkeys(OF_READS, "end"), "attend": "end"}  # attend: no amount of work

Seconds = Annotated[float, quantity("second"), Field(gt=0)]
Curve = tuple[tuple[float, ...], tuple[float, ...]]  # x ascending, seconds


class KernelRow(Frozen):
    """One measured time; see the top of this file. type: tensor type of the matrix, f32 where there is none."""

    op: KernelOp
    type: str
    size: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    count: Annotated[int, Field(strict=True, ge=1, le=2**20)] = 1
    zero_frac: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    working_set: ByteSize
    threads: Count
    time: Seconds

    @field_validator("op", mode="before")
    @classmethod
    def _is_known(cls, raw: object) -> object:
        if raw in FORMER_OPS:
            must = "must be an operation that this version times"
            raise ProfileError("op", must, f"{raw}, as older probes wrote it", PROBE_AGAIN)
        return raw


class KernelTable(Provenance):
    """
    Times of one engine's kernels; the provenance, and so the uncertainty, holds for every row.

    ram_bandwidth: what the same kernels reach on a matrix far larger than every cache; the part of a time that these
    bytes explain follows RAM in a what-if, the rest follows the processor.
    """

    engine: str
    ram_bandwidth: ByteRate
    rows: Annotated[tuple[KernelRow, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _no_row_twice(self) -> Self:
        seen = set()
        for row in self.rows:
            key = (row.op, row.type, row.size, row.count, row.zero_frac, row.working_set, row.threads)
            if key in seen:
                raise ProfileError("kernels", "must have each row once", f"{row.op} {row.type} {row.size:g} twice")
            seen.add(key)
        return self

    @model_validator(mode="after")
    def _waits_by_time(self) -> Self:
        ops = {row.op for row in self.rows}
        if "wake" in ops and "wake_on_demand" not in ops:
            must = "must have wake and wake_on_demand over microseconds of reads"
            raise ProfileError("kernels", must, "wake alone, as older probes wrote it", PROBE_AGAIN)
        return self

    @model_validator(mode="after")
    def _chunks_are_whole(self) -> Self:
        found = {(row.op, row.type, row.threads) for row in self.rows}
        with_chunks = {row.threads for row in self.rows if row.op == "gemm"}
        for op, tensor_type, threads in sorted(found):
            is_timed = ("experts_chunk", tensor_type, threads) in found
            if op == "experts" and threads in with_chunks and not is_timed:
                must = "must time the experts of a chunk (experts_chunk) where they time its matrices (gemm)"
                got = f"none of {tensor_type} on {threads} thread{'s' * (threads > 1)}"
                raise ProfileError("kernels", must, got, PROBE_AGAIN)
        return self

    def threads(self) -> tuple[int, ...]:
        """The numbers of threads that were measured, ascending."""
        return tuple(sorted({row.threads for row in self.rows}))


@dataclass(frozen=True)
class Call:
    """A kernel call whose time is wanted, in the units of the table; times: how often it is made."""

    op: KernelOp
    type: str
    size: float
    count: int = 1
    zero_frac: float = 0.0
    working_set: float = math.inf
    times: int = 1


class KernelTimes:
    """
    The times of one number of threads, and what lies between them.

    Between two measured points the time is linear in size and in count, linear in zero_frac through the lowest and the
    highest that were measured, and linear in the logarithm of the working set; beyond the ends of working set, and
    below the smallest size or count, the end's own time holds.  Above the largest size or count the last slope goes
    on, in proportion where there is one point only; but see BEYOND_SIZE and BEYOND_COUNT.
    """

    def __init__(self, table: KernelTable, n_threads: int) -> None:
        """n_threads must be one of table.threads()."""
        self.ram_bytes_per_s = table.ram_bandwidth
        self._points: dict[tuple[str, str], dict[float, dict[float, dict[int, Curve]]]] = {}
        rows = [row for row in table.rows if row.threads == n_threads]
        for key in {(row.op, row.type) for row in rows}:
            own = [row for row in rows if (row.op, row.type) == key]
            self._points[key] = _nested(own)
        self.seconds: Callable[[Call], float] = lru_cache(maxsize=65536)(self._seconds)

    def largest_product_bytes_per_s(self) -> float | None:
        """Bytes per second of the largest product of one token that was measured, None without one."""
        rates = [
            (size, size / curve[1][-1])
            for (op, _), by_set in self._points.items()
            if op == "gemv"
            for curve in by_set[max(by_set)][0.0].values()
            for size in curve[0][-1:]
        ]
        return max(rates)[1] if rates else None

    def counts(self, op: KernelOp, tensor_type: str) -> tuple[int, ...]:
        """The counts that an op was measured at, ascending, () where it was not."""
        by_set = self._points.get((op, tensor_type), {})
        return tuple(sorted({count for by_zero in by_set.values() for curves in by_zero.values() for count in curves}))

    def has(self, call: Call) -> bool:
        """Whether the table has times of this op on this type."""
        return (call.op, call.type) in self._points or call.op in FREE_WHERE_UNKNOWN

    def _seconds(self, call: Call) -> float:
        """Seconds of a call that the table `has`."""
        by_set = self._points.get((call.op, call.type))
        if by_set is None:
            return 0.0
        sets = {math.log(n_bytes): _by_zero_frac(points, call) for n_bytes, points in by_set.items()}
        return call.times * max(0.0, _between(sets, math.log(max(1.0, call.working_set)), "end"))


def _nested(rows: list[KernelRow]) -> dict[float, dict[float, dict[int, Curve]]]:
    """working set -> zero_frac -> count -> curve over size."""
    result: dict[float, dict[float, dict[int, Curve]]] = {}
    for row in sorted(rows, key=lambda row: row.size):
        curves = result.setdefault(row.working_set, {}).setdefault(row.zero_frac, {})
        sizes, seconds = curves.get(row.count, ((), ()))
        curves[row.count] = ((*sizes, row.size), (*seconds, row.time))
    return result


def _by_zero_frac(points: Mapping[float, Mapping[int, Curve]], call: Call) -> float:
    low, high = min(points), max(points)
    at_low = _by_count(points[low], call)
    if low == high:
        return at_low
    slope = (_by_count(points[high], call) - at_low) / (high - low)
    return max(0.0, at_low + slope * (call.zero_frac - low))


def _by_count(points: Mapping[int, Curve], call: Call) -> float:
    beyond = BEYOND_SIZE.get(call.op, "slope")
    of_counts = {float(count): _on_curve(curve, call.size, beyond) for count, curve in points.items()}
    return _between(of_counts, call.count, BEYOND_COUNT.get(call.op, "slope"))


def _on_curve(curve: Curve, size: float, beyond: Beyond) -> float:
    sizes, seconds = curve
    return _between(dict(zip(sizes, seconds, strict=True)), size, beyond)


def _between(points: Mapping[float, float], x: float, beyond: Beyond) -> float:
    """Piecewise linear; below the first point its value, above the last one see Beyond: no slope for one point."""
    xs = sorted(points)
    if x <= xs[0]:
        return points[xs[0]]
    if x >= xs[-1] and beyond == "end":
        return points[xs[-1]]
    if x >= xs[-1] and (beyond == "proportion" or len(xs) == 1):
        return points[xs[-1]] * x / xs[-1]
    upper = min(bisect.bisect_left(xs, x), len(xs) - 1)
    low, high = xs[upper - 1], xs[upper]
    slope = (points[high] - points[low]) / (high - low)
    if x > high:  # more work never takes less time
        return points[high] + max(0.0, slope) * (x - high)
    return points[low] + slope * (x - low)
