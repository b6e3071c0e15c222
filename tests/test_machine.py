"""The machine of the SimPy engine: its lanes and bus against plain SimPy resources, its clocks by hand."""

from collections.abc import Generator

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.storage import StorageModel
from simulator.expert_layout import ExpertLayout
from simulator.machine import Machine, WorkClock
from simulator.scenario import Scenario
from tests.conftest import device_rates, storage_model, tiny_model
from tests.random_scenarios import STORAGE

REQUEST_BYTES = 8192
Processes = Generator[simpy.Event, object, None]


def machine_on(env: simpy.Environment, storage: StorageModel, contended: float = 1.0) -> Machine:
    """A machine whose compute and reads slow each other down to one speed."""
    rates = device_rates(storage, contended_compute_frac=contended, contended_read_frac=contended)
    return Machine(env, Scenario(tiny_model(), rates, (), 0, layout=ExpertLayout("bundle", 1, REQUEST_BYTES)))


def arrivals_by_resources(storage: StorageModel, bursts: list[tuple[float, int]]) -> list[float]:
    """When the last read of each burst (moment of issue, requests) arrives: a process a piece, SimPy's own queues."""
    env = simpy.Environment()
    lanes, bus = simpy.Resource(env, storage.queue_depth), simpy.Resource(env, 1)
    n_pieces, piece_bytes = storage.pieces(REQUEST_BYTES)
    lane_s, bus_s = storage.service_s(piece_bytes)
    last_s = [0.0] * len(bursts)

    def piece(index: int) -> Processes:
        with lanes.request() as lane:
            yield lane
            yield env.timeout(lane_s)
            with bus.request() as turn:
                yield turn
                yield env.timeout(bus_s)
        yield env.timeout(storage.lag_s(piece_bytes))
        last_s[index] = env.now

    def issue(index: int, moment: float, n: int) -> Processes:
        yield env.timeout(moment)
        for _ in range(n * n_pieces):
            env.process(piece(index))

    for index, (moment, n) in enumerate(bursts):
        env.process(issue(index, moment, n))
    env.run()
    return last_s


@settings(max_examples=150, deadline=None)
@given(
    storage=STORAGE,
    bursts=st.lists(st.tuples(st.floats(0, 2e-3), st.integers(1, 7)), min_size=1, max_size=4),
)
def test_lanes_and_bus_queue_as_plain_resources_do(storage: StorageModel, bursts: list[tuple[float, int]]) -> None:
    """Bursts that overlap one another too: every last read arrives at the same moment, to 1e-9 s."""
    env, found = simpy.Environment(), []

    def issue(moment: float, n: int) -> Processes:
        yield env.timeout(moment)
        burst = machine.read(n)
        found.append(burst)
        yield burst.arrived

    machine = machine_on(env, storage)
    ordered = sorted(bursts)
    for moment, n in ordered:
        env.process(issue(moment, n))
    env.run()
    assert [burst.last_s for burst in found] == pytest.approx(arrivals_by_resources(storage, ordered), abs=1e-9)


def test_waiting_survives_changes_of_speed() -> None:
    """10 s of work: 4 s at full speed and 4 s at a half do 6, the rest takes 16 s at a quarter."""
    env = simpy.Environment()
    clock = WorkClock(env)
    rung: list[float] = []
    clock.after(10.0).callbacks.append(lambda _: rung.append(env.now))
    for moment, speed in ((4.0, 0.5), (8.0, 0.25)):
        env.timeout(moment).callbacks.append(lambda _, speed=speed: clock.set_speed(speed))
    env.run()
    assert rung == [24.0]
    assert clock.now() == pytest.approx(10.0)


@pytest.mark.parametrize("told", [False, True])
def test_reads_and_compute_slow_each_other_down(told: bool) -> None:
    """
    Both at half speed: a read of 1 ms alone and compute of 3 ms alone, begun together: the read ends at 2 ms, compute
    has then done 1 ms and ends at 4 ms.  Whether read() is told that compute goes on changes no time.
    """
    env = simpy.Environment()
    machine = machine_on(env, storage_model(latency_s=0.0, bus_s_per_byte=1e-3 / REQUEST_BYTES), contended=0.5)
    burst = machine.read(1, is_beside_compute=told)
    ended: list[float] = []
    machine.compute(3e-3).callbacks.append(lambda _: ended.append(env.now))
    env.run()
    assert burst.last_s == pytest.approx(2e-3)
    assert ended == [pytest.approx(4e-3)]
    assert machine.read_busy_s == pytest.approx(2e-3)


def test_a_read_that_starts_late_counts_from_its_issue() -> None:
    """1 ms of delay and 1 ms on the bus; storage is busy for both."""
    env = simpy.Environment()
    machine = machine_on(env, storage_model(latency_s=0.0, bus_s_per_byte=1e-3 / REQUEST_BYTES))
    burst = machine.read(1, 1e-3)
    env.run()
    assert burst.last_s == pytest.approx(2e-3)
    assert machine.read_busy_s == pytest.approx(2e-3)
