"""From spot checks to how far the machine drifted, by hand; medians and intervals."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import device_rates
from validation_grids import SPOTS, start_grid

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema import HardwareProfile
from simulator.result import Interval
from simulator.validation.machine_state import (
    COMPUTE,
    READ,
    MachineDrift,
    MachineState,
    SpotPair,
    check_names,
    drift_of,
    grid_drift,
)
from simulator.validation.tables import log_median, widened

NAMES = {COMPUTE: "small_token_t1", READ: "burst_64KiB"}
SLOW = MachineState(compute=1.4, read=1.7)


@pytest.fixture
def profile(tmp_path: Path) -> HardwareProfile:
    """A profile with spot checks."""
    start_grid(tmp_path)
    return load_profile(str(tmp_path / "profile.yaml"))


# The state


def test_a_state_multiplies_every_time_and_no_limit() -> None:
    """Compute and RAM by one factor, all of the storage's own times by the other; a share of speed stays."""
    rates = device_rates(kernel_factor=1.5)
    slow = SLOW.on(rates)
    assert slow.kernel_factor == pytest.approx(1.5 * 1.4)
    for name in ("gemv_flop_per_s", "gemm_flop_per_s", "ram_bytes_per_s"):
        assert getattr(slow, name) == pytest.approx(getattr(rates, name) / 1.4)
    assert slow.op_overhead_s == pytest.approx(rates.op_overhead_s * 1.4)
    assert slow.sequential_read_bytes_per_s == pytest.approx(rates.sequential_read_bytes_per_s / 1.7)
    for n in (1, 3):
        assert slow.storage.burst_s(n, 65536) == pytest.approx(1.7 * rates.storage.burst_s(n, 65536))
    assert slow.contended_compute_frac == rates.contended_compute_frac


@pytest.mark.parametrize(
    ("n_bytes", "threads", "token", "burst"),
    [
        (20_480, 1, "small_token_t1", "burst_64KiB"),
        (1_990_656, 2, "large_token_t2", "burst_2MiB"),
        (362_000, 1, "small_token_t1", "burst_64KiB"),
        (363_000, 1, "large_token_t1", "burst_2MiB"),
    ],
)
def test_a_model_takes_the_checks_of_its_size(n_bytes: int, threads: int, token: str, burst: str) -> None:
    """Experts of some KB are small, of some MB large; the token is that of the run's threads."""
    assert check_names(n_bytes, threads) == {COMPUTE: token, READ: burst}


def test_a_check_between_two_runs_is_one_take(profile: HardwareProfile) -> None:
    """After a run and before the next is the same take; where a grid was stopped in between there are two."""
    first, second, third = ({name: factor * seconds for name, seconds in SPOTS.items()} for factor in (1.0, 2.0, 4.0))
    whole = [SpotPair(first, second), SpotPair(second, third)]
    stopped = [SpotPair(first, second), SpotPair(third, first)]
    squares = {name: math.log(2) ** 2 * np.array([0, 1, 4]) for name in SPOTS}
    assert grid_drift(whole, profile) == {name: pytest.approx(math.sqrt(x.mean())) for name, x in squares.items()}
    four = math.log(2) * math.sqrt((0 + 1 + 4 + 0) / 4)
    assert grid_drift(stopped, profile) == {name: pytest.approx(four) for name in SPOTS}
    assert grid_drift([], profile) == {}


def test_drift_is_the_distance_from_the_probe(profile: HardwareProfile) -> None:
    """Always 10 % slower counts as much as to and fro by 10 %: the prediction knows of neither."""

    def drift(factors: list[float]) -> dict[str, float]:
        takes = [{name: seconds * factor for name, seconds in SPOTS.items()} for factor in factors]
        return grid_drift([SpotPair(*pair) for pair in pairwise(takes)], profile)

    steady = drift([1.1] * 4)
    assert steady == pytest.approx(dict.fromkeys(SPOTS, math.log(1.1)))
    assert drift([1.1, 1 / 1.1, 1.1, 1 / 1.1]) == pytest.approx(steady)
    sigma = pytest.approx(math.log(1.1))
    assert drift_of(steady, NAMES) == MachineDrift(sigma, sigma)
    assert drift_of(steady, NAMES | {READ: "burst_2MiB"}) == MachineDrift(sigma, 0.0)


def test_a_drawn_state_has_the_drifts_spread() -> None:
    """Logarithms of compute and reads, each with its own standard deviation; a steady machine stays as probed."""
    rng = np.random.default_rng(0)
    drawn = [MachineDrift(0.2, 0.05).drawn(rng) for _ in range(4000)]
    spreads = [float(np.std(np.log([getattr(state, name) for state in drawn]))) for name in ("compute", "read")]
    assert spreads == [pytest.approx(0.2, rel=0.05), pytest.approx(0.05, rel=0.05)]
    assert MachineDrift().drawn(rng) == MachineState()


# Medians and intervals


def test_an_interval_is_widened_in_quadrature() -> None:
    """3 and 4 give 5, on a logarithmic scale; without noise it is what it was."""
    interval = Interval(10.0, 10.0 / math.exp(0.3), 10.0 * math.exp(0.3))
    wider = widened(interval, 0.4 / 1.2815515655446004)
    assert (wider.low, wider.high) == (pytest.approx(10 / math.exp(0.5)), pytest.approx(10 * math.exp(0.5)))
    assert widened(interval, 0.0) == Interval(10.0, pytest.approx(interval.low), pytest.approx(interval.high))


def test_a_median_of_ratios_is_the_ratio_of_medians() -> None:
    """Of an even number too, so that a prediction that is the same for each run is shown as it is."""
    values = [3.0, 8.0, 4.0, 16.0]
    assert log_median(values) == pytest.approx(math.sqrt(32))
    assert log_median(12 / value for value in values) == pytest.approx(12 / log_median(values))
    assert log_median([5.0, 5.0]) == 5.0
