"""The noise within a run, and what verdicts could be told through it: by hand and on made-up rows of known noise."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from validation_cells import CONDITIONS, made_run
from validation_grids import add_run, slower, start_grid

from reports.validation_verdicts import boundary_table, verdict_findings
from simulator.validation.cell_result import Ceiling, CellComparison, Verdicts
from simulator.validation.compare import compare
from simulator.validation.grid_cells import read_grid
from simulator.validation.group_rows import boundary_rows
from simulator.validation.machine_state import MachineState
from simulator.validation.predict import predict
from simulator.validation.result import BoundaryRow
from simulator.validation.run_noise import CLEAR_Z, boundary_noise, standard_error_frac
from simulator.validation.tables import cell_comparison
from simulator.validation.validate import validate
from simulator.validation.verdict_ceiling import FEWEST_ALIKE, boundary_of, ceiling_of

normal = NormalDist().cdf

# The standard error of a run


def test_the_standard_error_by_hand() -> None:
    """Independent residuals: standard deviation over sqrt(n); what a token's misses explain is no noise."""
    rng = np.random.default_rng(0)
    misses = np.where(np.arange(4000) % 7 == 0, 3, 1)
    noise = 1 + 0.05 * rng.standard_normal(4000)
    assert standard_error_frac(0.5 + 0.2 * misses, misses) == pytest.approx(0, abs=1e-12)
    assert standard_error_frac(noise, np.ones(4000)) == pytest.approx(0.05 / math.sqrt(4000), rel=0.1)
    both = 1 + 0.5 * misses + 0.05 * rng.standard_normal(4000)
    assert standard_error_frac(both, misses) == pytest.approx(0.05 / math.sqrt(4000) / both.mean(), rel=0.1)


@pytest.mark.parametrize(("times", "misses"), [([1.0], [0]), ([1.0, 2.0], [1, 2]), ([2.0, 2.0, 2.0], [0, 0, 0])])
def test_too_few_tokens_and_none_that_differ_have_no_noise(times: list[float], misses: list[int]) -> None:
    """A token, two with a line through them, and a run without a miss whose tokens take equally long."""
    assert standard_error_frac(np.array(times), np.array(misses)) == 0


def test_slow_waves_make_a_mean_less_sure() -> None:
    """Token times in blocks of 20 alike tell as much as one time each: the standard error is that of the blocks."""
    rng = np.random.default_rng(1)
    single = 1 + 0.05 * rng.standard_normal(200)
    blocks = np.repeat(single, 20)
    once, waves = standard_error_frac(single, np.ones(200)), standard_error_frac(blocks, np.ones(4000))
    assert waves == pytest.approx(once, rel=0.25)


def test_a_wrong_prediction_is_no_noise(tmp_path: Path) -> None:
    """The same run beside a right prediction and beside one whose reads take six times as long: noise is the run's."""
    start_grid(tmp_path)
    run = add_run(tmp_path, change=slower("wait", 1.5))
    spec, profile = run.spec(tmp_path), read_grid(tmp_path).profile
    right, wrong = (
        compare(run, predict(run, spec, profile, n_samples=0, state=state))
        for state in (MachineState(), MachineState(read=6.0))
    )
    assert abs(wrong.error_frac - right.error_frac) > 0.2
    assert wrong.noise_frac == right.noise_frac > 0


# The noise of a verdict, and its ceiling


def made_rows(distances: dict[tuple[int, int], float], n: int, noise: float, seed: int = 0) -> pd.DataFrame:
    """
    n rows of each (layer, misses) with so much ln(t_prefetch / t_attention) in the median, each with luck of its own.

    noise: its standard deviation; three fifths of it are attention's, four fifths the reads'.
    """
    rng, tables = np.random.default_rng(seed), []
    for at, ((layer, misses), distance) in enumerate(distances.items()):
        attention, read = np.exp(noise * np.array([[0.6], [0.8]]) * rng.standard_normal((2, n)))
        index = pd.MultiIndex.from_product([range(at * n, at * n + n), [layer]], names=["token", "layer"])
        columns = {"attention": attention, "read": math.exp(distance) * read, "n_misses": misses}
        tables.append(pd.DataFrame(columns, index=index))
    return pd.concat(tables)


def test_the_margin_is_the_noise_of_its_own_rows() -> None:
    """Attention about its layer's median, reads about those with as many misses; between such groups nothing counts."""
    layers = made_rows({(0, 1): 0.0, (1, 2): 1.0, (2, 3): -2.0}, 2000, 0.05)
    assert boundary_noise(layers) == pytest.approx(0.05, rel=0.1)
    assert boundary_noise(layers.iloc[:1]) == 0
    assert boundary_noise(layers.assign(n_misses=0)) == 0


@pytest.mark.parametrize("noise", [0.02, 0.2, 0.6])
def test_the_ceiling_is_what_the_noise_leaves(noise: float) -> None:
    """
    A row whose median lies d from the boundary falls on its own side with the chance Phi(|d| / noise), and is clear
    with that of lying 1.645 noises from the boundary; the best agreement is the mean of the first.
    """
    distances = {(0, 1): -0.3, (1, 2): 0.1, (2, 3): 0.2}
    found = boundary_of(made_rows(distances, 4000, noise))
    assert found.noise == pytest.approx(noise, rel=0.05)
    every, clear_pairs = (ceiling_of([found], clear_only=clear) for clear in (False, True))
    right = [normal(abs(d) / noise) for d in distances.values()]
    assert every.n_pairs == 12_000
    assert every.agreement_frac == pytest.approx(sum(right) / 3, abs=0.015)
    clear = [normal(d / noise - CLEAR_Z) + normal(-d / noise - CLEAR_Z) for d in distances.values()]
    assert clear_pairs.n_pairs / 12_000 == pytest.approx(sum(clear) / 3, abs=0.02)
    clear_right = [normal(abs(d) / noise - CLEAR_Z) for d in distances.values()]
    assert clear_pairs.agreement_frac == pytest.approx(sum(clear_right) / sum(clear), abs=0.015)


def test_who_leans_to_the_rarer_verdict_has_the_best_balanced_accuracy() -> None:
    """
    Two kinds that mostly wait, at 0.5 and 2 noises: saying "waits" of all agrees most; saying "hidden" of the nearer
    kind finds Phi(-0.5) of its rows hidden against Phi(-2) of the other's, which balanced accuracy rewards.
    """
    found = ceiling_of([boundary_of(made_rows({(0, 1): 0.1, (1, 2): 0.4}, 20_000, 0.2))], clear_only=False)
    near, far = normal(-0.5), normal(-2.0)
    assert found.agreement_frac == pytest.approx(1 - (near + far) / 2, abs=0.01)
    hidden_found, waits_found = near / (near + far), (1 - far) / (2 - near - far)
    assert found.balanced_frac == pytest.approx((hidden_found + waits_found) / 2, abs=0.01)


def test_where_all_is_luck_the_ceiling_is_a_coin() -> None:
    """Every row's median on the boundary: half of the rows, whoever says what."""
    found = boundary_of(made_rows({(layer, 1): 0.0 for layer in range(8)}, 1000, 0.3))
    ceiling = ceiling_of([found], clear_only=False)
    assert (ceiling.agreement_frac, ceiling.balanced_frac) == (pytest.approx(0.5, abs=0.03),) * 2
    assert found.distance == pytest.approx(0.3 * 0.6745, rel=0.05)  # median of |z|


def test_layer_and_misses_are_both_known() -> None:
    """Attention that takes longer in one layer and with more misses is no luck: without noise all verdicts are told."""
    distances = {(layer, misses): 0.4 * layer - 0.3 * misses + 0.01 for layer in range(3) for misses in (1, 2, 3)}
    assert {d > 0 for d in distances.values()} == {True, False}
    for noise in (1e-6, 0.0):
        found = ceiling_of([boundary_of(made_rows(distances, 20, noise))], clear_only=False)
        assert found == Ceiling(180, 1.0, 1.0)


def test_rows_with_few_alike_have_no_ceiling() -> None:
    """Their median knows each of them: FEWEST_ALIKE of a layer count, one fewer does not; no miss, no row."""
    few, enough = (made_rows({(0, 1): 0.1}, n, 0.5) for n in (FEWEST_ALIKE - 1, FEWEST_ALIKE))
    assert ceiling_of([boundary_of(few)], clear_only=False) == Ceiling(0, None, None)
    assert ceiling_of([boundary_of(enough)], clear_only=False).n_pairs == FEWEST_ALIKE
    assert boundary_of(few).distance is not None
    none = boundary_of(few.assign(n_misses=0))
    assert (none.distance, none.noise, none.pairs.sum()) == (None, 0.0, 0)


# The table


def boundary_cell(wait_s: float, distance: float, verdicts: Verdicts, clear: Verdicts) -> CellComparison:
    """A cell of one run with these verdicts, whose rows lie so far from the boundary, without noise."""
    boundary = boundary_of(made_rows({(0, 1): distance}, 10, 0.0))
    run = made_run(wait_s=wait_s, verdicts=verdicts, clear_verdicts=clear, boundary=boundary, read_ratio=1.0)
    return cell_comparison("a", replace(CONDITIONS, prefetch="pre-attention"), [run])


def test_groups_by_hand() -> None:
    """Pairs add up over a group, noise and distance are medians; a group without a pair has no row."""
    storage = boundary_cell(0.05, 0.3, Verdicts(5, 3, 1, 1), Verdicts(2, 0, 0, 0))
    compute = boundary_cell(0.0, -0.1, Verdicts(0, 0, 2, 8), Verdicts(0, 0, 0, 9))
    rows = {row.group: row for row in boundary_rows([storage, compute])}
    assert list(rows) == ["all", "compute-bound", "storage-bound", "near the boundary"]
    assert rows["all"].ceiling == Ceiling(20, 1.0, 1.0)
    assert rows["storage-bound"].ceiling == Ceiling(10, None, 1.0)
    assert rows["all"].within_noise_frac == pytest.approx(9 / 20)
    assert rows["storage-bound"].within_noise_frac == pytest.approx(8 / 10)
    assert (rows["all"].noise_frac, rows["all"].distance_frac) == (0.0, pytest.approx(0.2))
    assert boundary_rows([]) == ()
    assert rows["all"].as_json()["ceiling"]["n_pairs"] == 20


def test_the_table_stands_beside_what_was_reached(tmp_path: Path) -> None:
    """A machine that does what the simulator says: ceiling and forecast agree with every row that has its like."""
    start_grid(tmp_path)
    add_run(tmp_path)
    result = validate(read_grid(tmp_path), n_samples=0)
    row = result.forecast.boundary[0]
    assert isinstance(row, BoundaryRow)
    assert row.verdicts.n_pairs >= row.ceiling.n_pairs > 0
    assert row.verdicts.agreement_frac == 1.0
    table = boundary_table(result)
    assert table.columns[-2:] == ("clear: ceiling", "clear: forecast")
    assert table.rows[0][0] == "all"
    assert table.rows[0][2] == f"{row.verdicts.n_pairs}"
    assert any(line.startswith("Ceiling, from the measured rows alone") for line in verdict_findings(result))
