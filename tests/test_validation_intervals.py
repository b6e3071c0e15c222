"""The interval of a prediction is that of its draws."""

from pathlib import Path

import numpy as np
import pytest
from validation_grids import (
    add_run,
    start_grid,
    without_spreads,
)

from hardware_profiles.schema_base import Z_80
from simulator.engine_fast import FastEngine
from simulator.question import draw_gate_sparsity, question_rates
from simulator.simulate import tokens_per_s
from simulator.validation.grid_cells import read_grid
from simulator.validation.machine_state import MachineDrift
from simulator.validation.predict import predict, run_question


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A folder with profile and model, and no run yet."""
    start_grid(tmp_path)
    return tmp_path


def test_the_interval_is_that_of_the_draws(grid: Path) -> None:
    """Its ends are the 10th and 90th percentile of simulate's own draws on the same question, for the same seed."""
    run = add_run(grid)
    profile = read_grid(grid).profile
    prediction = predict(run, run.spec(grid), profile, n_samples=40)
    question, rng = run_question(run, run.spec(grid), profile), np.random.default_rng(0)
    fast = FastEngine(prediction.scenario, prediction.decisions)
    speeds = []
    for _ in range(40):
        drawn, sparsity = question_rates(question, rng), draw_gate_sparsity(question, rng)
        speeds.append(tokens_per_s(fast.timeline(drawn, sparsity), prediction.scenario.is_counted))
    assert (prediction.speed.low, prediction.speed.high) == pytest.approx(tuple(np.quantile(speeds, [0.1, 0.9])))
    assert prediction.speed.high > 1.02 * prediction.speed.low


def test_an_interval_without_spreads_is_a_point(grid: Path) -> None:
    """Nothing else than the stated spreads widens it; how far a machine drifts widens the other one alone."""
    run = add_run(grid)
    exact = without_spreads(read_grid(grid).profile)
    prediction = predict(run, run.spec(grid), exact, n_samples=20)
    assert prediction.speed.low == pytest.approx(prediction.speed.high)
    widened = predict(run, run.spec(grid), exact, n_samples=200, drift=MachineDrift(0.1, 0.1))
    assert widened.speed.low == pytest.approx(widened.speed.high)
    half_width = np.log(widened.wide_speed.high / widened.wide_speed.low) / 2
    assert half_width == pytest.approx(Z_80 * 0.1, rel=0.3)  # at most all of the time has both spreads
