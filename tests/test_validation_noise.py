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

from hardware_profiles.catalog import load_profile
from reports.validation_findings import verdict_findings
from reports.validation_verdicts import verdict_table
from simulator.validation.cell_result import Boundary, CellComparison, Hindsight, Verdicts
from simulator.validation.compare import compare
from simulator.validation.grid_cells import read_grid
from simulator.validation.group_rows import boundary_rows
from simulator.validation.hindsight import FEWEST_ALIKE, boundary_of, hindsight_of, typical_rows
from simulator.validation.predict import predict
from simulator.validation.result import ValidationResult
from simulator.validation.run_noise import CLEAR_Z, boundary_noise, standard_error_frac
from simulator.validation.tables import cell_comparison
from simulator.validation.validate import validate

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
    """The same run beside its prediction and beside one from a profile of slow storage: noise is the run's."""
    start_grid(tmp_path)
    run = add_run(tmp_path, change=slower("wait", 1.5))
    spec, profile = run.spec(tmp_path), read_grid(tmp_path).profile
    profiles = (profile, profile.model_copy(update={"storage": load_profile("raspberry-pi-5-sd").storage}))
    right, wrong = (compare(run, predict(run, spec, one, n_samples=0)) for one in profiles)
    assert abs(wrong.error_frac - right.error_frac) > 0.2
    assert wrong.noise_frac == right.noise_frac > 0


# The noise of a verdict, and the rule with hindsight


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


def told(rows: pd.DataFrame) -> Boundary:
    return boundary_of(typical_rows(rows))


@pytest.mark.parametrize("noise", [0.02, 0.2, 0.6])
def test_the_rule_tells_what_the_noise_leaves(noise: float) -> None:
    """A row whose kind lies d from the boundary falls on its own side with the chance Phi(|d| / noise)."""
    distances = {(0, 1): -0.3, (1, 2): 0.1, (2, 3): 0.2}
    found = told(made_rows(distances, 4000, noise))
    assert found.noise == pytest.approx(noise, rel=0.05)
    every = hindsight_of([found], clear_only=False)
    assert every.n_pairs == 12_000
    assert every.agreement_frac == pytest.approx(sum(normal(abs(d) / noise) for d in distances.values()) / 3, abs=0.015)


def test_a_kind_is_clear_whatever_its_rows_took() -> None:
    """
    At 2 noises all rows of a kind are clear and at 1 none is; of the clear ones luck still turns Phi(-2), as it would
    not had each row been chosen by its own times.
    """
    found = told(made_rows({(0, 1): 0.4, (1, 2): -0.2}, 4000, 0.2))
    clear = hindsight_of([found], clear_only=True)
    assert clear.n_pairs == 4000
    assert clear.agreement_frac == pytest.approx(1 - normal(-2.0), abs=0.01)
    assert 2.0 > CLEAR_Z > 1.0


def test_a_row_does_not_choose_itself() -> None:
    """One row of a kind at 0 that took 3 times as long is not clear; its typical value is the others' median."""
    rows = made_rows({(0, 1): 0.0}, 101, 0.1)
    rows.iloc[7, rows.columns.get_loc("read")] = 3 * rows["attention"].iloc[7]
    found = typical_rows(rows)
    assert found.distance.iloc[7] == pytest.approx(math.log(3))
    assert not found.clear.any()
    others = np.delete(found.distance.to_numpy(), 7)
    left = others - np.median(found.distance)
    assert found.typical.iloc[7] == pytest.approx(float(np.median(others) + np.median(left)))


@pytest.mark.parametrize("n", [8, 9, 50, 51])
def test_the_median_of_the_others_is_without_the_row(n: int) -> None:
    """For every row, of an odd and an even number, equal values among them."""
    distance = np.round(np.random.default_rng(n).standard_normal(n), 1)
    index = pd.MultiIndex.from_product([range(n), [0]], names=["token", "layer"])
    rows = pd.DataFrame({"attention": 1.0, "read": np.exp(distance), "n_misses": 1}, index=index)
    others = np.array([np.median(np.delete(distance, i)) for i in range(n)])
    left = distance - np.median(distance)
    expected = others + np.array([np.median(np.delete(left, i)) for i in range(n)])
    assert typical_rows(rows).typical.to_numpy() == pytest.approx(expected)


def test_who_leans_to_the_rarer_verdict_has_the_best_balanced_accuracy() -> None:
    """
    Two kinds that mostly wait, at 0.5 and 2 noises: saying "waits" of all agrees most; saying "hidden" of the nearer
    kind finds Phi(-0.5) of its rows hidden against Phi(-2) of the other's, which balanced accuracy rewards.
    """
    found = hindsight_of([told(made_rows({(0, 1): 0.1, (1, 2): 0.4}, 20_000, 0.2))], clear_only=False)
    near, far = normal(-0.5), normal(-2.0)
    assert found.agreement_frac == pytest.approx(1 - (near + far) / 2, abs=0.01)
    hidden_found, waits_found = near / (near + far), (1 - far) / (2 - near - far)
    assert found.balanced_frac == pytest.approx((hidden_found + waits_found) / 2, abs=0.01)


def test_where_all_is_luck_the_rule_is_a_coin() -> None:
    """Every row's median on the boundary: half of the rows, whoever says what."""
    found = told(made_rows({(layer, 1): 0.0 for layer in range(8)}, 1000, 0.3))
    rule = hindsight_of([found], clear_only=False)
    assert (rule.agreement_frac, rule.balanced_frac) == (pytest.approx(0.5, abs=0.03),) * 2
    assert found.distance == pytest.approx(0.3 * 0.6745, rel=0.05)  # median of |z|


def test_layer_and_misses_are_both_known() -> None:
    """Attention that takes longer in one layer and with more misses is no luck: without noise all verdicts are told."""
    distances = {(layer, misses): 0.4 * layer - 0.3 * misses + 0.01 for layer in range(3) for misses in (1, 2, 3)}
    assert {d > 0 for d in distances.values()} == {True, False}
    for noise in (1e-6, 0.0):
        found = hindsight_of([told(made_rows(distances, 20, noise))], clear_only=False)
        assert found == Hindsight(180, 1.0, 1.0)


def test_rows_with_few_alike_are_left_out() -> None:
    """Their median knows each of them: FEWEST_ALIKE of a layer count, one fewer does not; no miss, no row."""
    few, enough = (made_rows({(0, 1): 0.1}, n, 0.5) for n in (FEWEST_ALIKE - 1, FEWEST_ALIKE))
    assert hindsight_of([told(few)], clear_only=False) == Hindsight(0, None, None)
    assert hindsight_of([told(enough)], clear_only=False).n_pairs == FEWEST_ALIKE
    assert told(few).distance is not None
    none = told(few.assign(n_misses=0))
    assert (none.distance, none.noise, none.pairs.sum()) == (None, 0.0, 0)


# The table


def boundary_cell(
    wait_s: float, distance: float, verdicts: Verdicts, clear: Verdicts, prefetch: str = "pre-attention"
) -> CellComparison:
    """A cell of one run with these verdicts, whose rows lie so far from the boundary, without noise."""
    boundary = told(made_rows({(0, 1): distance}, 10, 0.0))
    run = made_run(
        wait_s=wait_s, verdicts=verdicts, alike_verdicts=verdicts, clear_verdicts=clear, boundary=boundary,
        read_ratio=1.0,
    )  # fmt: skip
    return cell_comparison("a", replace(CONDITIONS, prefetch=prefetch), [run])


def test_groups_by_hand() -> None:
    """Pairs add up over a group, noise and distance are medians; a group without a pair has no row."""
    storage = boundary_cell(0.05, 0.3, Verdicts(5, 3, 1, 1), Verdicts(2, 0, 0, 0))
    compute = boundary_cell(0.0, -0.1, Verdicts(0, 0, 2, 8), Verdicts(0, 0, 0, 9))
    rows = {row.group: row for row in boundary_rows([storage, compute])}
    assert list(rows) == ["all", "compute-bound", "storage-bound", "near the boundary"]
    assert rows["all"].hindsight == Hindsight(20, 1.0, 1.0)
    assert rows["storage-bound"].hindsight == Hindsight(10, None, 1.0)
    assert rows["all"].within_noise_frac == pytest.approx(9 / 20)
    assert rows["storage-bound"].within_noise_frac == pytest.approx(8 / 10)
    assert (rows["all"].noise_frac, rows["all"].distance_frac) == (0.0, pytest.approx(0.2))
    assert boundary_rows([]) == ()
    assert rows["all"].as_json()["hindsight"]["n_pairs"] == 20


@pytest.fixture
def result(tmp_path: Path) -> ValidationResult:
    """A machine that does what the simulator says, one cell."""
    start_grid(tmp_path)
    add_run(tmp_path)
    return validate(read_grid(tmp_path), n_samples=0)


def test_prediction_and_rule_stand_on_the_same_pairs(result: ValidationResult) -> None:
    """Both agree with every row that has its like; rows without it are in the line of all pairs alone."""
    row = result.boundary[0]
    assert row.verdicts.n_pairs >= row.alike_verdicts.n_pairs == row.hindsight.n_pairs > 0
    assert row.clear_verdicts.n_pairs == row.clear_hindsight.n_pairs
    assert row.verdicts.agreement_frac == 1.0
    lines = [line for line in verdict_table(result).rows if line[0] == "all"]
    assert [line[1] for line in lines][:2] == ["all", "with alike"]
    assert [line[2] for line in lines][:2] == [f"{row.verdicts.n_pairs}", f"{row.alike_verdicts.n_pairs}"]


def test_verdicts_are_told_by_class_beside_the_majority(result: ValidationResult) -> None:
    """A class in which "hidden" is never said is named, with how many were; the commoner verdict stands beside."""
    balanced = boundary_cell(0.02, 0.3, Verdicts(0, 3, 0, 97), Verdicts(0, 3, 0, 97))
    compute = boundary_cell(0.0, -0.1, Verdicts(8, 0, 1, 1), Verdicts(8, 0, 1, 1))
    cells = (balanced, compute)
    (line,) = verdict_findings(replace(result, cells=cells, boundary=boundary_rows(cells), n_boundary_cells=2))
    assert "compute-bound 90.0 % of 10 (80.0 %); balanced 97.0 % of 100 (97.0 %)" in line
    assert "Never said to be hidden: balanced (3.0 % were)." in line
    assert "clear pairs (100.0 % of those with alike)" in line
    assert line.endswith("Near the boundary: 2 cells.")
    (none,) = verdict_findings(replace(result, boundary=(), n_boundary_cells=0))
    assert none == "Are the reads hidden by attention? No clear pair. Near the boundary: 0 cells."
