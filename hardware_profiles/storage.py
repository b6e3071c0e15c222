"""
StorageModel: seconds of a read from request size and queue depth.

A request takes one of queue_depth lanes for

    a = latency_s + lane_s_per_byte * request_bytes

and then the one bus for

    b = request_overhead_s + bus_s_per_byte * request_bytes.

So a closed loop of depth q moves request_bytes * min(q / (a + b), 1 / b) bytes per second, a burst of m <= queue_depth
requests on an idle device takes a + m b, and a request alone a + b.  A request larger than max_request_bytes is
split, as kernels do, into equal pieces that take lanes of their own.  A limiter before the device gives each request
its own bus time and lets the device work meanwhile.  Left out: read-ahead, page cache, writes.
"""

import heapq
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class StorageModel:
    """
    Four service constants in seconds (per byte), the number of lanes that help, the largest piece (None: any).

    limit_bytes_per_s: rate of a limiter before the device, None without one; a request under it ends limit_lag_s late,
    which delays no other.
    """

    latency_s: float
    lane_s_per_byte: float
    request_overhead_s: float
    bus_s_per_byte: float
    queue_depth: int
    max_request_bytes: int | None = None
    limit_bytes_per_s: float | None = None
    limit_lag_s: float = 0.0

    def pieces(self, request_bytes: int) -> tuple[int, int]:
        """(number of pieces, bytes of one) that a request reaches the device as; the last one is rounded up."""
        if self.max_request_bytes is None or request_bytes <= self.max_request_bytes:
            return 1, request_bytes
        n_pieces = -(-request_bytes // self.max_request_bytes)
        return n_pieces, -(-request_bytes // n_pieces)

    def service_s(self, request_bytes: int) -> tuple[float, float]:
        """(seconds in a lane, seconds on the bus) of one request that is not split."""
        lane_s = self.latency_s + self.lane_s_per_byte * request_bytes
        bus_s = self.request_overhead_s + self.bus_s_per_byte * request_bytes
        if self.limit_bytes_per_s is None:
            return lane_s, bus_s
        limit_s = request_bytes / self.limit_bytes_per_s
        if limit_s <= bus_s:
            return lane_s, bus_s
        return max(0.0, lane_s + bus_s - limit_s), limit_s

    def lag_s(self, request_bytes: int) -> float:
        """How late a request under the limiter ends: 0 where the device itself takes longer than the limiter asks."""
        own_s = self.latency_s + self.request_overhead_s + (self.lane_s_per_byte + self.bus_s_per_byte) * request_bytes
        if self.limit_bytes_per_s is None or request_bytes / self.limit_bytes_per_s <= own_s:
            return 0.0
        return self.limit_lag_s

    def seconds_per_request(self, request_bytes: int) -> float:
        """Seconds between the arrivals of requests that are issued all at once."""
        n_pieces, piece_bytes = self.pieces(request_bytes)
        lane_s, bus_s = self.service_s(piece_bytes)
        return n_pieces * max(bus_s, (lane_s + bus_s) / self.queue_depth)

    def limited(self, bytes_per_s: float, lag_s: float = 0.0) -> "StorageModel":
        """The device behind a limiter."""
        return replace(self, limit_bytes_per_s=bytes_per_s, limit_lag_s=lag_s)

    def burst_s(self, n_requests: int, request_bytes: int) -> float:
        """Seconds from issuing n_requests at once on an idle device to the arrival of the last one."""
        if n_requests == 0:
            return 0.0
        return _arrivals_s(self, 1 << (n_requests - 1).bit_length(), request_bytes)[n_requests - 1]

    def effective_bandwidth(self, request_bytes: int, queue_depth: int) -> float:
        """Bytes per second of a closed loop that keeps queue_depth requests in flight."""
        n_pieces, piece_bytes = self.pieces(request_bytes)
        lane_s, bus_s = self.service_s(piece_bytes)
        lanes = min(queue_depth * n_pieces, self.queue_depth)
        return piece_bytes / max((lane_s + bus_s) / lanes, bus_s)

    def at_read_rate(self, sequential_bytes_per_s: float, current_bytes_per_s: float) -> "StorageModel":
        """The device whose sequential rate goes from current to another one; latency and request overhead stay."""
        factor = current_bytes_per_s / sequential_bytes_per_s
        return replace(self, lane_s_per_byte=self.lane_s_per_byte * factor, bus_s_per_byte=self.bus_s_per_byte * factor)


@lru_cache(maxsize=4096)
def _arrivals_s(storage: StorageModel, n_requests: int, request_bytes: int) -> tuple[float, ...]:
    """
    When each of n_requests that are issued at once has arrived: a request waits for none that was issued after it.

    Lanes are taken in order of issue, the bus in order of leaving the lanes (all requests are alike).
    """
    n_pieces, piece_bytes = storage.pieces(request_bytes)
    lane_s, bus_s = storage.service_s(piece_bytes)
    free_lanes = [0.0] * min(storage.queue_depth, n_requests * n_pieces)
    bus_free, lag_s, arrivals = 0.0, storage.lag_s(piece_bytes), []
    for _ in range(n_requests):
        for _ in range(n_pieces):
            at_bus = heapq.heappop(free_lanes) + lane_s
            bus_free = max(bus_free, at_bus) + bus_s
            heapq.heappush(free_lanes, bus_free)
        arrivals.append(bus_free + lag_s)
    return tuple(arrivals)
