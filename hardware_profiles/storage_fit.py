"""
From a profile's storage figures to the constants of a StorageModel.

With a table of (request size, queue depth, rate) rows the four constants are fitted by least squares on the
logarithm of the rate, none of them negative.  Without one they follow from few figures, which are met exactly:

    bus_s_per_byte = 1 / sequential read
    latency_s + request_overhead_s = 4096 / random 4K read - 4096 / sequential read

of which all is latency, unless the profile says how much; the rest is then paid on the bus.  That is too fast for a
single large read on a drive that needs depth to reach its rate: 256 KiB at depth 1 on the Phison E27T would come out
as 1.7 times what was measured.  Give a table for such a drive.

Two forms were compared on the shipped tables, mean / largest absolute error of the rate over the rows:

    table                             n    this form: s min(q / (a + b), 1 / b)    1 / ((L/s + 1/B1)/q + c/s + 1/Bmax)
    i9-14900 (Phison E27T, NVMe)     12              14.5 % / 36.6 %                       8.7 % / 25.8 %
    oneplus-13 (UFS 4.x phone)        9               3.1 % /  5.4 %                       9.4 % / 16.1 %
    rk3566 (Rock64 eMMC, depth 1)     5               1.6 % /  3.7 %                       1.6 % /  3.7 %

This one is used though it is worse on the E27T, because its constants are times that an event simulation can wait
for.  On the E27T it is too fast by a third at depth 4 and too slow by a quarter at depth 1, where the drive seems to
read ahead.  `fit_residuals` prints the errors row by row.  A profile's max_request says how large a piece the kernel
hands to the device; larger requests run as several pieces in parallel lanes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles.schema_storage import RANDOM_READ_BYTES, BurstRow, Storage, StorageRow
from hardware_profiles.storage import StorageModel
from moeplan.errors import InputError
from moeplan.quantity import format_rate

LARGE_READ_BYTES = 2**22
SMALLEST, LARGEST = 1e-13, 1.0  # bounds of the constants, seconds or seconds per byte
LANE_SHARES = (0.05, 0.3, 2.0)  # starting points: time per byte in a lane over that on the bus


@dataclass(frozen=True)
class Residual:
    """One row of a table beside what the model says, rates in bytes/s; error_frac is model / measured - 1."""

    request_bytes: int
    queue_depth: int
    measured_bytes_per_s: float
    model_bytes_per_s: float

    @property
    def error_frac(self) -> float:
        """Relative error of the model."""
        return self.model_bytes_per_s / self.measured_bytes_per_s - 1


def storage_model(storage: Storage) -> StorageModel:
    """The model of a profile's storage."""
    if storage.table is not None:
        fitted = fit_table(storage.table.rows, storage.queue_depth)
        return replace(fitted, max_request_bytes=storage.max_request)
    latency_s = None if storage.latency is None else storage.latency.value
    rates = storage.sequential_read.value, storage.random_4k_read.value
    return replace(from_few_figures(*rates, latency_s, storage.queue_depth), max_request_bytes=storage.max_request)


def burst_model(
    rows: Sequence[BurstRow], request_bytes: int, queue_depth: int, idle_s: float | None = None
) -> StorageModel:
    """
    The constants for one request size, from measured bursts.

    Each burst's time is taken between the two nearest sizes, as a power of the size.  A burst of m requests takes
    a + m b; a and b have the least squared relative error over the numbers of requests, neither is negative.
    idle_s: how long the device has nothing to do before a burst; None, or rows that do not say theirs: any.
    """
    rows = _after_idle(rows, idle_s)
    from scipy.optimize import nnls  # half a second, which only a measured device needs

    times = {}
    for n_requests in sorted({row.n_requests for row in rows}):
        own = sorted((row for row in rows if row.n_requests == n_requests), key=lambda row: row.request)
        logs = np.log([row.request for row in own]), np.log([row.time for row in own])
        times[n_requests] = _power_law(*logs, float(np.log(request_bytes)))
    counts, seconds = np.array(list(times), float), np.array(list(times.values()))
    weighted = np.stack([1 / seconds, counts / seconds], axis=1)
    a, b = nnls(weighted, np.ones(len(counts)))[0]
    if b == 0:
        b = float((seconds / counts).min())
        a = max(0.0, float(seconds[0] - b))
    return StorageModel(float(a), 0.0, 0.0, float(b) / request_bytes, queue_depth)


def _after_idle(rows: Sequence[BurstRow], idle_s: float | None) -> Sequence[BurstRow]:
    """
    One row for each size and number of requests: between the two nearest idle times its time is linear in the
    logarithm of the idle time, beyond them it is constant; in the middle of them all without an idle time.
    """
    logs = sorted({math.log(row.idle) for row in rows if row.idle})
    if not logs:
        return rows
    at = math.log(idle_s) if idle_s else logs[len(logs) // 2]
    curves: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row in rows:
        assert row.idle  # in every row or in none, says the schema
        curves.setdefault((row.request, row.n_requests), []).append((math.log(row.idle), row.time))
    result = []
    for (request_bytes, n_requests), points in sorted(curves.items()):
        log_idle, seconds = zip(*sorted(points), strict=True)
        time_s = float(np.interp(at, log_idle, seconds))
        result.append(BurstRow.model_construct(request=request_bytes, n_requests=n_requests, time=time_s))
    return result


def _power_law(log_x: np.ndarray, log_y: np.ndarray, at: float) -> float:
    """Linear in logarithms between the points; beyond them in proportion to x, or constant below."""
    if at >= log_x[-1]:
        return float(np.exp(log_y[-1] + at - log_x[-1]))
    return float(np.exp(np.interp(at, log_x, log_y)))


def check_table(storage: Storage, where: str) -> None:
    """
    Raises InputError where the table says something else than the figures beside it.

    The table is what counts, so a sequential_read or random_4k_read that was edited alone would change nothing.
    """
    if storage.table is None:
        return
    model = storage_model(storage)
    large = model.effective_bandwidth(LARGE_READ_BYTES, storage.queue_depth)
    small = model.effective_bandwidth(RANDOM_READ_BYTES, 1)
    for key, from_table, stated, most in (
        ("sequential_read", large, storage.sequential_read.value, 1.35),
        ("random_4k_read", small, storage.random_4k_read.value, 2.0),
    ):
        if not 1 / most <= from_table / stated <= most:
            raise InputError(
                f"{where}: storage.{key}",
                f"must agree with storage.table, which says about {format_rate(from_table)}",
                format_rate(stated),
                "change the table too, or remove it and storage.max_request",
            )


def from_few_figures(
    sequential_bytes_per_s: float, random_4k_bytes_per_s: float, latency_s: float | None, queue_depth: int
) -> StorageModel:
    """
    Constants from a sequential and a 4 KiB random rate at queue depth 1, and from the part of a request's fixed time
    that requests in flight spend side by side, where it is known (None: all of it).
    """
    fixed_s = max(0.0, RANDOM_READ_BYTES / random_4k_bytes_per_s - RANDOM_READ_BYTES / sequential_bytes_per_s)
    parallel_s = fixed_s if latency_s is None else min(latency_s, fixed_s)
    return StorageModel(parallel_s, 0.0, fixed_s - parallel_s, 1 / sequential_bytes_per_s, queue_depth)


def fit_table(rows: Sequence[StorageRow], queue_depth: int) -> StorageModel:
    """
    The constants with the least squared error of log(rate), found in their logarithms, so that all stay positive.

    Rows deeper than queue_depth count as queue_depth.  Where all rows have depth 1 only the sums latency_s +
    request_overhead_s and lane_s_per_byte + bus_s_per_byte are determined; their split is that of the starting point.
    """
    from scipy.optimize import least_squares  # half a second, which only a device with a table needs

    sizes = np.array([row.request for row in rows], dtype=float)
    depths = np.array([min(row.queue_depth, queue_depth) for row in rows], dtype=float)
    rates = np.array([row.rate for row in rows])

    def errors(logs: np.ndarray) -> np.ndarray:
        latency, lane, overhead, bus = np.exp(logs)
        lane_s, bus_s = latency + lane * sizes, overhead + bus * sizes
        return np.log(sizes / np.maximum((lane_s + bus_s) / depths, bus_s)) - np.log(rates)

    bounds = (np.log(SMALLEST), np.log(LARGEST))
    starts = np.log([[1e-4, share / rates.max(), 1e-6, 0.9 / rates.max()] for share in LANE_SHARES])
    fits = [least_squares(errors, start, bounds=bounds, max_nfev=2000) for start in starts]
    latency, lane, overhead, bus = np.exp(min(fits, key=lambda fit: float(fit.cost)).x)
    return StorageModel(float(latency), float(lane), float(overhead), float(bus), queue_depth)


def fit_residuals(storage: Storage) -> list[Residual]:
    """Every row of the profile's table beside the fitted model; empty without a table."""
    model = storage_model(storage)
    return [
        Residual(row.request, row.queue_depth, row.rate, model.effective_bandwidth(row.request, row.queue_depth))
        for row in (storage.table.rows if storage.table is not None else ())
    ]
