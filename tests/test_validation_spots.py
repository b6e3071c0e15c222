"""From spot checks to the machine's state: by hand and on made-up series."""

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
    MachineState,
    SpotPair,
    check_names,
    drift_of,
    grid_states,
)
from simulator.validation.spot_series import states
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


def test_the_state_by_hand(profile: HardwareProfile) -> None:
    """Geometric mean of before and after over the probe's; half the difference of the logarithms is the spread."""
    before = {name: 1.2 * seconds for name, seconds in SPOTS.items()}
    after = {name: 2.7 * seconds for name, seconds in SPOTS.items()}
    around = SpotPair(before, after)
    state = grid_states([around], profile).around(around, NAMES)
    assert state is not None
    assert (state.compute, state.read) == (pytest.approx(1.8), pytest.approx(1.8))
    assert state.compute_sigma == pytest.approx(math.log(2.7 / 1.2) / 2)
    assert grid_states([around], profile).around(around, NAMES | {READ: "burst_2MiB"}) is None
    without = SpotPair(before, {"small_token_t1": 1.0})
    assert grid_states([without], profile).around(without, NAMES) is None


def test_a_check_between_two_runs_is_one_take(profile: HardwareProfile) -> None:
    """After a run and before the next is the same take; where a grid was stopped in between there are two."""
    first, second, third, fourth = ({name: float(i) for name in SPOTS} for i in range(1, 5))
    pairs = [SpotPair(first, second), SpotPair(second, third), SpotPair(fourth, first)]
    found = grid_states(pairs, profile)
    assert found.takes == (first, second, third, fourth, first)
    states = [found.around(pair, NAMES) for pair in pairs]
    factors = [state.compute * SPOTS["small_token_t1"] for state in states if state is not None]
    assert factors == pytest.approx([math.sqrt(2), math.sqrt(6), math.sqrt(4)])


def test_drift_is_the_distance_from_the_probe(profile: HardwareProfile) -> None:
    """Always 10 % slower counts as much as to and fro by 10 %: the forecast knows of neither."""

    def drift(factors: list[float]) -> dict[str, float]:
        takes = [{name: seconds * factor for name, seconds in SPOTS.items()} for factor in factors]
        return grid_states([SpotPair(*pair) for pair in pairwise(takes)], profile).drift

    steady = drift([1.1] * 4)
    assert steady == pytest.approx(dict.fromkeys(SPOTS, math.log(1.1)))
    assert drift([1.1, 1 / 1.1, 1.1, 1 / 1.1]) == pytest.approx(steady)
    sigma = pytest.approx(math.log(1.1))
    assert drift_of(steady, NAMES) == MachineState(compute_sigma=sigma, read_sigma=sigma)


@pytest.mark.parametrize("walk", [0.0, 0.002, 0.03])
def test_noise_of_the_checks_is_told_from_the_machine(walk: float) -> None:
    """
    A machine that walks, under checks that scatter by 4 %: the states found are nearer to the truth than the means of
    two takes, much so where the machine is steady; their standard deviation is that of their error.
    """
    rng = np.random.default_rng(3)
    truth = np.cumsum(walk * rng.standard_normal(160))
    takes = truth + 0.04 * rng.standard_normal(160)
    found, between = states(takes), (truth[1:] + truth[:-1]) / 2
    error, naive = (float(np.sqrt(np.mean(np.square(x - between)))) for x in (found.mean, (takes[1:] + takes[:-1]) / 2))
    assert error < (0.3 if walk < 0.01 else 0.95) * naive
    assert 0.5 < error / float(np.sqrt(np.mean(np.square(found.sigma)))) < 2


def test_without_noise_a_state_is_the_mean_of_its_two_takes() -> None:
    """A machine that walks far between checks which do not scatter: nothing is smoothed away."""
    takes = np.cumsum(np.random.default_rng(4).standard_normal(120))
    assert states(takes).mean == pytest.approx((takes[1:] + takes[:-1]) / 2, abs=0.05)


def test_a_spoiled_check_moves_no_state() -> None:
    """One take of three times the others is left out and counted; a step that stays is followed."""
    takes = 0.02 * np.random.default_rng(5).standard_normal(80)
    spoiled = takes.copy()
    spoiled[40] += math.log(3)
    assert states(spoiled).mean == pytest.approx(states(takes).mean, abs=0.01)
    assert (states(spoiled).n_outliers, states(takes).n_outliers) == (1, 0)
    step = takes + np.where(np.arange(80) < 40, 0.0, 0.5)
    assert states(step).mean[[35, 45]] == pytest.approx([0.0, 0.5], abs=0.1)


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
