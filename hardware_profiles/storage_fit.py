"""
From a profile's storage figures to the constants of a StorageModel.

With a table of (request size, queue depth, rate) rows the four constants are fitted by least squares on the
logarithm of the rate, none of them negative.  Without one they follow from few figures:

    bus_s_per_byte = 1 / sequential read          latency_s = 4096 / random 4K read - 4096 / sequential read

Two forms were compared on the public rows of two devices that have both sizes and depths; `fit_residuals` prints
the errors of the one that is used.  See CONTRIBUTING.md, "Storage".
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from hardware_profiles.schema import Storage
from hardware_profiles.storage import StorageModel

RANDOM_READ_BYTES = 4096


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
        return fit_table(storage.table.rows, storage.queue_depth)
    return from_few_figures(
        storage.sequential_read.value,
        storage.random_4k_read.value,
        None if storage.latency is None else storage.latency.value,
        storage.queue_depth,
    )


def from_few_figures(
    sequential_bytes_per_s: float, random_4k_bytes_per_s: float, latency_s: float | None, queue_depth: int
) -> StorageModel:
    """Constants from a sequential rate and a 4 KiB random rate, both at queue depth 1, or a latency instead of the latter."""
    transfer_s = RANDOM_READ_BYTES / sequential_bytes_per_s
    if latency_s is None:
        latency_s = max(0.0, RANDOM_READ_BYTES / random_4k_bytes_per_s - transfer_s)
    return StorageModel(latency_s, 0.0, 0.0, 1 / sequential_bytes_per_s, queue_depth)


def _fitted(storage: Storage) -> StorageModel:
    """Least squares on log(rate), in the logarithm of the constants, so that all stay positive."""
    sizes = np.array([row.request for row in storage.table], dtype=float)
    depths = np.array([min(row.queue_depth, storage.queue_depth) for row in storage.table], dtype=float)
    rates = np.array([row.rate.value for row in rows])

    def errors(logs: np.ndarray) -> np.ndarray:
        latency, lane, overhead, bus = np.exp(logs)
        lane_s, bus_s = latency + lane * sizes, overhead + bus * sizes
        return np.log(sizes / np.maximum((lane_s + bus_s) / depths, bus_s)) - np.log(rates)

    start = np.log([1e-4, 0.3 / rates.max(), 1e-6, 0.9 / rates.max()])
    best = least_squares(errors, start, bounds=(np.log(1e-13), np.log(1.0)), x_scale=1.0, max_nfev=2000)
    latency, lane, overhead, bus = np.exp(best.x)
    return StorageModel(float(latency), float(lane), float(overhead), float(bus), storage.queue_depth)


def fit_residuals(storage: Storage) -> list[Residual]:
    """Every row of the profile's table beside the fitted model; empty without a table."""
    model = storage_model(storage)
    return [
        Residual(row.request, row.queue_depth, row.rate.value, model.effective_bandwidth(row.request, row.queue_depth))
        for row in storage.table
    ]
