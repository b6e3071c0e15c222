"""Compute beside reads, each as a fraction of its speed alone; and how late a sleeping reader wakes."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter, sleep
from typing import NamedTuple

import numpy as np

from reference_runtime.probe.plan import MIB
from reference_runtime.probe.sampling import Samples
from reference_runtime.probe.storage import ProbeFile
from reference_runtime.streaming.direct_reads import N_READERS, Read, Readers, page_aligned, page_aligned_targets
from reference_runtime.streaming.storage_limiter import StorageLimiter

REQUEST_BYTES = 2 * MIB  # about one expert
N_QUEUED = 2 * N_READERS  # so that no reader ever waits for the next request
WINDOW_S = 0.12
WAITS_S = (0.001, 0.002, 0.005, 0.01, 0.02)


class SharedKey(NamedTuple):
    """Speed of "compute" or "read" while both run, as a fraction of its speed alone; noise can take it above 1."""

    of: str


class LagKey(NamedTuple):
    """Seconds by which a wait of so long ends late, the hand-over to the asker included."""

    wait_s: float


class Reads:
    """Reads at full rate for as long as they are on: each that ends issues the next."""

    def __init__(self, file: ProbeFile) -> None:
        self.file, self._readers, self._is_on, self.n_done, self._n_issued = file, Readers(), False, 0, 0
        self._lock = threading.Lock()  # reader threads issue too
        self.request_bytes = min(REQUEST_BYTES, file.n_bytes)
        self._targets = page_aligned_targets(self.request_bytes, N_QUEUED)
        self._offsets: Iterator[int] = file.offsets(self.request_bytes, np.random.default_rng(2))

    def start(self) -> None:
        """Begin."""
        self._is_on = True
        for tag in range(N_QUEUED):
            self._issue(tag)

    def stop(self) -> None:
        """Issue no more and wait for those on their way. Raises InputError when a read failed."""
        self._is_on = False
        while self._n_waiting():
            done = self._readers.next_done()
            with self._lock:
                self._n_issued -= 1
            if done.failure is not None:
                raise done.failure

    def close(self) -> None:
        """Join the readers."""
        self._readers.close()

    def _issue(self, tag: int) -> None:
        with self._lock:
            self._n_issued += 1
            offset = next(self._offsets)
        n, then = self.request_bytes, partial(self._arrived, tag)
        read = Read(tag, self.file.direct, offset, n, n, self._targets[tag], then, perf_counter())
        self._readers.issue(read)

    def _n_waiting(self) -> int:
        with self._lock:
            return self._n_issued

    def _arrived(self, tag: int, target: np.ndarray) -> None:
        with self._lock:
            self.n_done += 1
        if self._is_on:
            self._issue(tag)


def share(reads: Reads, compute: Callable[[], object], samples: Samples, window_s: float = WINDOW_S) -> None:
    """One sample of both speeds: compute alone, reads alone, both, each for a window."""
    compute_alone = _calls_per_s(compute, window_s)
    reads.start()
    read_alone = _reads_per_s(reads, lambda: _sleep(window_s))[1]
    compute_both, read_both = _reads_per_s(reads, lambda: _calls_per_s(compute, 2 * window_s))
    reads.stop()
    samples.add(SharedKey("compute"), compute_both / compute_alone)
    samples.add(SharedKey("read"), read_both / read_alone)


def _calls_per_s(compute: Callable[[], object], seconds: float) -> float:
    began, n = perf_counter(), 0
    while (now := perf_counter()) < began + seconds or not n:
        compute()
        n += 1
    return n / (now - began)


def _reads_per_s(reads: Reads, meanwhile: Callable[[], float]) -> tuple[float, float]:
    """What `meanwhile` gives, and the reads that ended while it ran."""
    n, began = reads.n_done, perf_counter()
    result = meanwhile()
    return result, max(1, reads.n_done - n) / (perf_counter() - began)


def _sleep(seconds: float) -> float:
    sleep(seconds)
    return seconds


def wake(file: ProbeFile, wait_s: float, samples: Samples) -> None:
    """One sample of how late a reader is that slept until its read was due."""
    readers = Readers(1, 0, StorageLimiter(None, wait_s))
    try:
        target = page_aligned(4096)
        for _ in range(2):  # the first wakes a fresh thread
            issued_s = perf_counter()
            readers.issue(Read(0, file.direct, 0, 4096, 4096, target, None, issued_s))
            done = readers.next_done()
            lag_s = perf_counter() - issued_s - wait_s
            if done.failure is not None:
                raise done.failure
    finally:
        readers.close()
    samples.add(LagKey(wait_s), max(1e-9, lag_s))
