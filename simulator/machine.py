"""
A device on SimPy's clock: compute and storage, and the contention between them.

While both run, each progresses at its contended fraction of its speed alone.  The compute threads do one operation at
a time; a read's piece goes from a lane to the bus by callbacks, which take half the time of a process each.
"""

from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any

import simpy

from simulator.scenario import Scenario

Process = Generator[simpy.Event, Any, None]


class WorkClock:
    """
    Counts the seconds of work that an activity has done; it runs at a speed that can change at any moment.

    Waiting for an amount of work survives every change of speed.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.speed = 1.0
        self._work_s = 0.0
        self._updated_s = 0.0
        self._due_s: dict[simpy.Event, float] = {}  # when each event fires at this speed

    def now(self) -> float:
        """Seconds of work done so far."""
        return self._work_s + (self.env.now - self._updated_s) * self.speed

    def after(self, work_s: float) -> simpy.Event:
        """An event that fires when so much more work is done."""
        delay_s = work_s / self.speed
        event = simpy.Timeout(self.env, delay_s)
        event.callbacks.append(self._due_s.__delitem__)
        self._due_s[event] = self.env.now + delay_s
        return event

    def set_speed(self, speed: float) -> None:
        """From now on the work progresses at this speed; who waits for an event is moved to a new one."""
        if speed == self.speed:
            return
        now_s, factor = self.env.now, self.speed / speed
        self._work_s, self._updated_s, self.speed = self.now(), now_s, speed
        for event, due_s in list(self._due_s.items()):
            del self._due_s[event]
            delay_s = (due_s - now_s) * factor
            moved = simpy.Timeout(self.env, delay_s)
            moved.callbacks, event.callbacks = event.callbacks, []
            self._due_s[moved] = now_s + delay_s


class Burst:
    """Reads that were issued at once: how many are on their way, the event that ends them, and when the last came."""

    __slots__ = ("arrived", "last_s", "n_left")

    def __init__(self, arrived: simpy.Event, n_reads: int) -> None:
        self.arrived, self.n_left, self.last_s = arrived, n_reads, 0.0


class Machine:
    """The two activities of a device, compute and storage, and the contention between them."""

    def __init__(self, env: simpy.Environment, scenario: Scenario) -> None:
        self.env = env
        self.compute_clock, self.storage_clock = WorkClock(env), WorkClock(env)
        rates, storage = scenario.rates, scenario.rates.storage
        self.contended = rates.contended_compute_frac, rates.contended_read_frac
        self.n_pieces, piece_bytes = storage.pieces(scenario.layout.request_bytes)
        self.lane_s, self.bus_s = storage.service_s(piece_bytes)
        self.lag_s = storage.lag_s(piece_bytes)
        self.read_busy_s = 0.0
        self._is_computing, self._n_reading, self._reading_since = False, 0, 0.0
        self._waiting: deque[Burst] = deque()  # one entry a piece that has no lane yet
        self._n_idle_lanes = storage.queue_depth
        self._bus_free_s = 0.0  # on the storage clock

    def compute(self, work_s: float) -> simpy.Event:
        """Occupy the compute threads with work that takes work_s alone; the event is its end."""
        self._is_computing = True
        if self._n_reading:
            self._share()
        done = self.compute_clock.after(work_s)
        done.callbacks.append(self._compute_ends)
        return done

    def read(self, n_requests: int, delay_s: float = 0.0, *, is_beside_compute: bool = False) -> Burst:
        """
        Requests of the scenario's size, issued at once; they start late by delay_s of the storage's time.

        is_beside_compute: compute goes on at this very moment, so both have their speeds before either has events.
        """
        self._is_computing |= is_beside_compute
        burst = Burst(self.env.event(), n_requests * self.n_pieces)
        if not self._n_reading:
            self._reading_since = self.env.now
        self._n_reading += burst.n_left
        if self._is_computing:
            self._share()
        if delay_s > 0:
            self.storage_clock.after(delay_s).callbacks.append(partial(self._submit, burst))
        else:
            self._submit(burst)
        return burst

    def _submit(self, burst: Burst, _: simpy.Event | None = None) -> None:
        """Each piece takes an idle lane or waits for one."""
        n_starting = min(burst.n_left, self._n_idle_lanes)
        self._n_idle_lanes -= n_starting
        self._waiting.extend([burst] * (burst.n_left - n_starting))
        if n_starting:
            self._enter_lanes(burst, n_starting)

    def _enter_lanes(self, burst: Burst, n_pieces: int) -> None:
        """Pieces that take lanes at once leave them at once: one event for all."""
        if self.lane_s > 0:
            self.storage_clock.after(self.lane_s).callbacks.append(partial(self._enter_bus, burst, n_pieces))
        else:
            self._enter_bus(burst, n_pieces)

    def _enter_bus(self, burst: Burst, n_pieces: int, _: simpy.Event | None = None) -> None:
        """The one bus serves in order of asking; a lane is taken until it has."""
        now_s = self.storage_clock.now()
        for _piece in range(n_pieces):
            self._bus_free_s = max(self._bus_free_s, now_s) + self.bus_s
            self.storage_clock.after(self._bus_free_s - now_s).callbacks.append(partial(self._leave, burst))

    def _leave(self, burst: Burst, _: simpy.Event) -> None:
        """The next piece takes the lane; this one has arrived, or does so late behind a limiter."""
        if self._waiting:
            self._enter_lanes(self._waiting.popleft(), 1)
        else:
            self._n_idle_lanes += 1
        if self.lag_s > 0:
            self.storage_clock.after(self.lag_s).callbacks.append(partial(self._arrive, burst))
        else:
            self._arrive(burst)

    def _arrive(self, burst: Burst, _: simpy.Event | None = None) -> None:
        burst.n_left -= 1
        self._n_reading -= 1
        if not self._n_reading:
            self.read_busy_s += self.env.now - self._reading_since
            if self._is_computing:
                self._share()
        if not burst.n_left:
            burst.last_s = self.env.now
            burst.arrived.succeed()

    def _compute_ends(self, _: simpy.Event) -> None:
        self._is_computing = False
        if self._n_reading:
            self._share()

    def _share(self) -> None:
        compute_speed, read_speed = self.contended if self._is_computing and self._n_reading else (1.0, 1.0)
        self.compute_clock.set_speed(compute_speed)
        self.storage_clock.set_speed(read_speed)
