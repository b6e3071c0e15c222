"""Measured bursts and the limiter, as the storage model has them."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema_storage import BurstRow, StorageBursts
from hardware_profiles.storage_fit import burst_model
from simulator.model.catalog import load_model_spec
from simulator.question import Question
from simulator.question import device_rates as device_rates_of
from tests.conftest import device_rates, storage_model

SIZE = 2**21


def bursts(a_s: float, b_s: float, size: int = SIZE) -> list[BurstRow]:
    """Rows of a device that takes a + m b for m requests."""
    rows = [{"request": f"{size} B", "n_requests": n, "time": f"{a_s + n * b_s} s"} for n in (1, 2, 4)]
    return [BurstRow.model_validate(row) for row in rows]


def test_the_constants_of_a_device_come_back() -> None:
    """A device that obeys a + m b is described exactly."""
    model = burst_model(bursts(3e-4, 1e-3), SIZE, 8)
    for n in (1, 2, 3, 8):
        assert model.burst_s(n, SIZE) == pytest.approx(3e-4 + n * 1e-3)


def test_between_two_sizes_times_follow_a_power() -> None:
    """Four times the bytes took twice the time, so twice the bytes take the square root of that."""
    rows = bursts(0.0, 1e-3, SIZE) + bursts(0.0, 2e-3, 4 * SIZE)
    assert burst_model(rows, 2 * SIZE, 4).burst_s(1, 2 * SIZE) == pytest.approx(2**0.5 * 1e-3)


def test_times_that_do_not_grow_are_no_free_reads() -> None:
    """Requests that all end together still take their time on the bus."""
    rows = [BurstRow.model_validate({"request": f"{SIZE} B", "n_requests": n, "time": "1 ms"}) for n in (1, 2)]
    model = burst_model(rows, SIZE, 4)
    assert model.burst_s(1, SIZE) == pytest.approx(1e-3, rel=0.3)
    assert model.burst_s(4, SIZE) > model.burst_s(1, SIZE)


def test_a_limiter_sets_the_time_between_arrivals() -> None:
    """A limit of a quarter of the bus: each request takes its share of the limit, the device works within it."""
    fast = storage_model(latency_s=1e-4, bus_s_per_byte=1e-9)
    slow = fast.limited(2.5e8, lag_s=1e-5)
    assert slow.burst_s(1, 10**6) == pytest.approx(10**6 / 2.5e8 + 1e-5)
    assert slow.burst_s(3, 10**6) == pytest.approx(3 * 10**6 / 2.5e8 + 1e-5)


def test_a_limit_above_the_device_changes_nothing() -> None:
    """The device itself is slower, so nobody sleeps and wakes late."""
    fast = storage_model(latency_s=1e-4, bus_s_per_byte=1e-9)
    assert fast.limited(1e12, lag_s=1e-5).burst_s(2, 10**6) == fast.burst_s(2, 10**6)


def test_reads_behind_a_limiter_disturb_compute_less() -> None:
    """Bytes move for a quarter of the time, so compute loses a quarter of what unlimited reads cost it."""
    rates = device_rates(
        storage_model(latency_s=0.0, bus_s_per_byte=1e-9), contended_compute_frac=0.8, contended_read_frac=0.5
    )
    limited = rates.limited(2.5e8, 10**6)
    assert limited.contended_compute_frac == pytest.approx(0.95)
    assert limited.contended_read_frac == 1.0
    barely = rates.limited(0.9e9, 10**6)
    assert barely.contended_read_frac == pytest.approx(0.5 / 0.9)


def idle_bursts(short_ms: float = 1) -> list[BurstRow]:
    """A device that takes 1 ms a request after a short rest and 3 ms after 9 ms."""
    return [
        BurstRow.model_validate(
            {"request": f"{SIZE} B", "n_requests": n, "time": f"{n * seconds} s", "idle": f"{idle} ms"}
        )
        for n in (1, 2, 4)
        for idle, seconds in ((short_ms, 1e-3), (9, 3e-3))
    ]


@pytest.mark.parametrize(
    ("idle_s", "seconds"), [(1e-4, 1e-3), (1e-3, 1e-3), (3e-3, 2e-3), (9e-3, 3e-3), (1.0, 3e-3), (None, 3e-3)]
)
def test_a_device_that_rested_reads_slower(idle_s: float | None, seconds: float) -> None:
    """Between two idle times by the logarithm, beyond them the end's own time; untold: the middle of those measured."""
    model = burst_model(idle_bursts(), SIZE, 8, idle_s)
    assert model.burst_s(1, SIZE) == pytest.approx(seconds)
    assert model.burst_s(4, SIZE) == pytest.approx(4 * seconds)


def test_idle_stands_in_every_row_or_in_none() -> None:
    """Rows of both kinds could not be told apart."""
    rows = [row.model_dump(exclude_none=True) for row in (*idle_bursts(), *bursts(0.0, 1e-3, 2 * SIZE))]
    for row in rows:
        row |= {"request": f"{row['request']} B", "time": f"{row['time']} s"}
        row |= {"idle": f"{row['idle']} s"} if "idle" in row else {}
    with pytest.raises(ValidationError, match="must say idle in every row or in none"):
        StorageBursts.model_validate({"kind": "measured", "source": "a test", "uncertainty": 0.1, "rows": rows})


def test_the_rest_of_the_storage_is_a_layers_compute() -> None:
    """A longer context computes longer between two reads, so the storage rests longer and reads slower."""
    profile = load_profile("raspberry-pi-5-nvme")
    source = {"kind": "measured", "source": "a test", "uncertainty": 0.1}
    bursts = StorageBursts.model_construct(**source, rows=tuple(idle_bursts(0.1)))
    profile = profile.model_copy(update={"storage": profile.storage.model_copy(update={"bursts": bursts})})
    question = Question(load_model_spec("smallthinker-4b-a0.6b"), profile, None, context=16)
    reads_s = [
        device_rates_of(replace(question, context=context)).storage.burst_s(1, SIZE) for context in (16, 2048, 8192)
    ]
    assert reads_s[0] < reads_s[1] < reads_s[2]
