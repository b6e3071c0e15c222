"""A slower storage device than the machine has: requests wait for a lane and then for the one bus."""

import threading
from time import perf_counter

from moeplan.errors import InputError

LONGEST_WAIT_S = 2.0**30  # 34 years; the system's clocks take no more than some 2^63 ns


class StorageLimiter:
    """
    The device of the simulator's storage model with latency and rate alone.

        at_bus = max(issued, lane free) + latency_s
        due    = max(at_bus, bus free) + n_bytes / bytes_per_s

    A lane is a reader thread.  The real read happens before `due` and the rest is slept.  Times are kept on paper:
    a sleep that ends late delays the one request and not those behind it, so the rate holds over a run.  A device
    that is slower than `due` keeps its lane until it is done.
    """

    def __init__(self, bytes_per_s: float | None = None, latency_s: float = 0.0) -> None:
        """bytes_per_s: rate of the bus, None for no limit. Raises InputError."""
        if bytes_per_s is not None and not 0 < bytes_per_s < float("inf"):
            raise InputError("storage limiter", "must have a finite rate above 0 bytes/s", bytes_per_s)
        if not 0 <= latency_s < float("inf"):
            raise InputError("storage limiter", "must have a finite latency of 0 s or more", latency_s)
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self._lock = threading.Lock()
        self._lane_free_s: dict[int, float] = {}
        self._bus_free_s = 0.0

    def due_s(self, lane: int, issued_s: float, n_bytes: int) -> float:
        """When a request that was issued then is done at the earliest, in seconds of time.perf_counter."""
        with self._lock:
            at_bus = max(issued_s, self._lane_free_s.get(lane, 0.0)) + self.latency_s
            if self.bytes_per_s is None:
                return at_bus
            self._bus_free_s = max(at_bus, self._bus_free_s) + n_bytes / self.bytes_per_s
            return self._bus_free_s

    def finish(self, lane: int, due_s: float, closing: threading.Event) -> None:
        """Sleep until a request is due and free its lane; returns at once when `closing` is set."""
        now = perf_counter()
        self._lane_free_s[lane] = max(now, due_s)
        if now < due_s:
            closing.wait(min(due_s - now, LONGEST_WAIT_S))
