"""The storage model: closed forms, an independent event simulation, the fit to tables."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from hardware_profiles.catalog import load_profile, profile_names, profile_path
from hardware_profiles.schema_storage import Storage, StorageRow
from hardware_profiles.storage import StorageModel
from hardware_profiles.storage_fit import fit_residuals, fit_table, from_few_figures, storage_model
from moeplan.errors import InputError

MODELS = st.builds(
    StorageModel,
    latency_s=st.floats(0, 1e-3),
    lane_s_per_byte=st.floats(0, 1e-8),
    request_overhead_s=st.floats(0, 1e-4),
    bus_s_per_byte=st.floats(1e-10, 1e-7),
    queue_depth=st.integers(1, 40),
)
SIZES = st.integers(512, 2**26)


def simulated_arrivals(storage: StorageModel, request_bytes: int, n_requests: int, in_flight: int) -> list[float]:
    """Arrival times when in_flight requests are kept up, by moving a list of requests from event to event."""
    lane_s, bus_s = storage.service_s(request_bytes)
    waiting, now, bus_free = n_requests, 0.0, 0.0
    in_lane: list[float] = []  # times at which a request is ready for the bus
    on_bus: list[float] = []  # times of arrival
    arrivals: list[float] = []
    while len(arrivals) < n_requests:
        while waiting and len(in_lane) + len(on_bus) < min(in_flight, storage.queue_depth):
            in_lane.append(now + lane_s)
            waiting -= 1
        now = min(in_lane + on_bus)
        for _ in range(in_lane.count(now)):
            in_lane.remove(now)
            bus_free = max(bus_free, now) + bus_s
            on_bus.append(bus_free)
        for _ in range(on_bus.count(now)):
            on_bus.remove(now)
            arrivals.append(now)
    return arrivals


@given(MODELS, st.integers(1, 90), SIZES)
@settings(deadline=None, max_examples=150)
def test_a_burst_takes_what_an_event_simulation_takes(storage: StorageModel, n: int, size: int) -> None:
    """Requests take a lane, then the bus; the lane is free when the data has arrived."""
    assert storage.burst_s(n, size) == pytest.approx(simulated_arrivals(storage, size, n, n)[-1], rel=1e-9)


@given(MODELS, SIZES, st.data())
def test_a_burst_within_the_depth_takes_a_plus_m_b(storage: StorageModel, size: int, data: st.DataObject) -> None:
    """One lane time, and the bus once for each request; nothing takes no time."""
    m = data.draw(st.integers(1, storage.queue_depth))
    lane_s, bus_s = storage.service_s(size)
    assert storage.burst_s(m, size) == pytest.approx(lane_s + m * bus_s, rel=1e-12)
    assert storage.burst_s(0, size) == 0


def test_a_burst_by_hand() -> None:
    """2 lanes, a = 10, b = 1: the bus is free at 11 and 12, the lanes' next requests arrive at 22 and 23."""
    storage = StorageModel(10.0, 0.0, 1.0, 0.0, 2)
    assert [storage.burst_s(n, 4096) for n in range(6)] == [0, 11, 12, 22, 23, 33]
    slow_bus = StorageModel(2.0, 0.0, 5.0, 0.0, 2)
    assert [slow_bus.burst_s(n, 4096) for n in range(5)] == [0, 7, 12, 17, 22]


@given(MODELS, SIZES, st.integers(1, 24))
@settings(deadline=None, max_examples=60)
def test_effective_bandwidth_is_what_a_closed_loop_reaches(storage: StorageModel, size: int, depth: int) -> None:
    """s min(q / (a + b), 1 / b), from the second half of 40 rounds of the event simulation."""
    lanes = min(depth, storage.queue_depth)
    arrivals = simulated_arrivals(storage, size, 40 * lanes, depth)
    measured = 20 * lanes * size / (arrivals[-1] - arrivals[20 * lanes - 1])
    assert storage.effective_bandwidth(size, depth) == pytest.approx(measured, rel=1e-6)


@given(MODELS, SIZES, SIZES, st.integers(1, 64), st.integers(1, 64))
def test_larger_and_deeper_is_never_slower(storage: StorageModel, s1: int, s2: int, q1: int, q2: int) -> None:
    """Effective bandwidth rises with request size and with depth, and stays below the bus."""
    small, large = sorted((s1, s2))
    shallow, deep = sorted((q1, q2))
    assert storage.effective_bandwidth(small, shallow) <= storage.effective_bandwidth(large, shallow) * (1 + 1e-12)
    assert storage.effective_bandwidth(small, shallow) <= storage.effective_bandwidth(small, deep) * (1 + 1e-12)
    assert storage.effective_bandwidth(large, deep) <= (1 + 1e-12) / storage.bus_s_per_byte


def test_another_read_rate_keeps_the_latencies() -> None:
    """At twice the rate the per-byte times halve; a large read runs at the new rate."""
    before = StorageModel(1e-4, 2e-10, 1e-6, 1e-9, 8)
    after = before.at_read_rate(2e9, 1e9)
    assert after == StorageModel(1e-4, 1e-10, 1e-6, 5e-10, 8)
    few = from_few_figures(419e6, 57e6, None, 8)
    assert few.at_read_rate(3e9, 419e6).effective_bandwidth(2**30, 8) == pytest.approx(3e9, rel=1e-3)
    assert few.at_read_rate(419e6, 419e6) == few


def test_few_figures_are_met_exactly() -> None:
    """4 KiB alone runs at the 4K rate, large reads at the sequential rate, with a latency or without."""
    model = from_few_figures(419e6, 57e6, None, 8)
    assert model.effective_bandwidth(4096, 1) == pytest.approx(57e6)
    assert model.effective_bandwidth(2**30, 1) == pytest.approx(419e6, rel=1e-3)
    split = from_few_figures(419e6, 57e6, 50e-6, 8)
    assert split.latency_s == 50e-6
    assert split.latency_s + split.request_overhead_s == pytest.approx(model.latency_s)
    assert split.effective_bandwidth(4096, 1) == pytest.approx(57e6)
    assert split.effective_bandwidth(4096, 8) < model.effective_bandwidth(4096, 8)  # the overhead does not overlap


def test_the_pi_reaches_its_link_with_many_small_reads() -> None:
    """57 MB/s of 4 KiB alone becomes the link's 419 MB/s at depth 8; 424 MB/s was measured with many in flight."""
    model = storage_model(load_profile("raspberry-pi-5-nvme").storage)
    assert model.effective_bandwidth(4096, 8) == pytest.approx(424.5e6, rel=0.02)


def table_of(model: StorageModel, sizes: tuple[int, ...], depths: tuple[int, ...]) -> list[StorageRow]:
    """The rates that a model predicts, as a table."""
    return [
        StorageRow(request=f"{s} B", queue_depth=q, rate=f"{model.effective_bandwidth(s, q)!r} B/s")  # type: ignore[arg-type]
        for s in sizes
        for q in depths
    ]


@pytest.mark.parametrize(
    "truth",
    [
        StorageModel(1e-4, 4e-10, 8e-6, 1.5e-10, 64),  # a fast SSD that needs depth
        StorageModel(3e-4, 5e-11, 2e-5, 4e-10, 32),  # a phone
        StorageModel(6e-5, 1e-10, 2e-6, 2.4e-9, 16),  # a slow link
    ],
)
def test_the_fit_recovers_known_constants(truth: StorageModel) -> None:
    """All four constants come back from rates that were made with them."""
    fitted = fit_table(table_of(truth, (4096, 65536, 2**20, 2**24), (1, 2, 8, 64)), truth.queue_depth)
    for name in ("latency_s", "lane_s_per_byte", "request_overhead_s", "bus_s_per_byte"):
        assert getattr(fitted, name) == pytest.approx(getattr(truth, name), rel=1e-3), name


def test_the_fit_at_depth_one_recovers_the_sums() -> None:
    """Without a second depth lane and bus cannot be told apart, their sums can."""
    fitted = fit_table(table_of(StorageModel(2e-4, 0.0, 5e-5, 8e-9, 1), (4096, 16384, 2**20, 2**24), (1,)), 1)
    assert fitted.latency_s + fitted.request_overhead_s == pytest.approx(2.5e-4, rel=1e-3)
    assert fitted.lane_s_per_byte + fitted.bus_s_per_byte == pytest.approx(8e-9, rel=1e-3)


# table -> mean and largest absolute error of the closed loop and of the smooth form, as storage_fit.py states them
STATED = {
    "i9-14900": ((0.145, 0.366), (0.087, 0.258)),
    "ryzen-7840u": ((0.145, 0.366), (0.087, 0.258)),
    **dict.fromkeys(("epyc-4344p", "ryzen-9-7950x", "ryzen-ai-9-hx-370"), ((0.145, 0.366), (0.087, 0.258))),
    "oneplus-13": ((0.031, 0.054), (0.094, 0.161)),
    "rk3566": ((0.016, 0.037), (0.016, 0.037)),
}


def test_every_shipped_table_has_its_errors_stated() -> None:
    """A new table must come with its errors."""
    assert {name for name in profile_names() if load_profile(name).storage.table} == set(STATED)


@pytest.mark.parametrize("name", STATED)
def test_the_errors_of_the_shipped_fits_are_as_stated(name: str) -> None:
    """Mean and largest, to a tenth of a per cent."""
    errors = [abs(row.error_frac) for row in fit_residuals(load_profile(name).storage)]
    assert (float(np.mean(errors)), max(errors)) == pytest.approx(STATED[name][0], abs=6e-4)


def smooth_errors(storage: Storage) -> np.ndarray:
    """Errors of 1 / ((L/s + 1/B1)/q + c/s + 1/Bmax), fitted to the same rows in the same norm."""
    assert storage.table is not None
    size, depth, rate = np.array([(row.request, row.queue_depth, row.rate) for row in storage.table.rows]).T

    def errors(logs: np.ndarray) -> np.ndarray:
        latency, first, overhead, most = np.exp(logs)
        return -np.log((latency / size + first) / depth + overhead / size + most) - np.log(rate)

    starts = np.log([[lat, share / rate.max(), 1e-6, 1 / rate.max()] for lat in (1e-5, 1e-4) for share in (0.01, 1)])
    fits = [least_squares(errors, start, bounds=(np.log(1e-13), 0.0), max_nfev=3000) for start in starts]
    return np.abs(np.expm1(min(fits, key=lambda fit: float(fit.cost)).fun))


@pytest.mark.parametrize("name", STATED)
def test_the_errors_of_the_smooth_form_are_as_stated(name: str) -> None:
    """The comparison in storage_fit.py can be repeated."""
    errors = smooth_errors(load_profile(name).storage)
    assert (float(errors.mean()), float(errors.max())) == pytest.approx(STATED[name][1], abs=6e-4)


def test_the_stated_errors_stand_in_the_docstring() -> None:
    """What the test holds is what a person reads."""
    from hardware_profiles import storage_fit

    text = " ".join((storage_fit.__doc__ or "").split())
    for pairs in STATED.values():
        for mean, largest in pairs:
            assert f"{mean:.1%} / {largest:.1%}".replace("%", " %") in text


def test_a_profile_without_a_table_has_no_residuals() -> None:
    """Nothing was fitted, so there is nothing to compare."""
    assert fit_residuals(load_profile("raspberry-pi-5-nvme").storage) == []
    assert math.isfinite(storage_model(load_profile("raspberry-pi-5-sd").storage).latency_s)


def test_a_figure_edited_beside_a_table_is_refused(tmp_path: Path) -> None:
    """The table is what counts: a slower sequential_read alone would change nothing, so it is a contradiction."""
    text = profile_path("ryzen-7840u").read_text(encoding="utf-8")
    file = tmp_path / "mini-pc.yaml"
    file.write_text(re.sub(r"(sequential_read:\n    value: )6.4 GB/s", r"\g<1>540 MB/s", text), encoding="utf-8")
    with pytest.raises(InputError, match=r"mini-pc.yaml: storage.sequential_read: must agree with storage.table"):
        load_profile(str(file))
