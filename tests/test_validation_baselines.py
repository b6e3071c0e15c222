"""What stands beside the predictions: laws fitted to the grid, the naive formula, and the machine's drift."""

import math
from dataclasses import replace

import pytest
from conftest import device_rates, random_trace, tiny_model
from validation_cells import CONDITIONS, made_cell, made_run

from hardware_profiles.catalog import load_profile
from simulator.scenario import Scenario, steps_of
from simulator.validation.baselines import fit_law, law_errors, leave_one_out, naive_tokens_per_s
from simulator.validation.cell_result import CellComparison, CountPair
from simulator.validation.drift import drift, reprobe
from simulator.validation.error_sizes import typical_and_high
from simulator.validation.tables import cell_comparison


def law_cell(name: str, x: float, seconds: float, **conditions: object) -> CellComparison:
    """A cell whose miss rate is x and whose token takes so many seconds; our prediction is 10 % too fast."""
    counts = (round(1000 * (1 - x)), round(1000 * x), round(1e9 * x))
    run = made_run(measured=1 / seconds, predicted=1.1 / seconds, counts=CountPair(counts, counts))
    return cell_comparison(name, replace(CONDITIONS, **conditions), [run])  # type: ignore[arg-type]


def test_the_law_is_found_where_it_holds() -> None:
    """Data made by 1 / (a + b x) give a and b back, and no error on cells that were not fitted."""
    cells = [law_cell(str(i), x, 0.02 + 0.3 * x) for i, x in enumerate((0.1, 0.25, 0.5, 0.75))]
    a, b = fit_law(cells, lambda cell: cell.miss_rate)
    assert (a, b) == (pytest.approx(0.02), pytest.approx(0.3))
    held = [law_cell("h", 0.9, 0.02 + 0.3 * 0.9), law_cell("twice", 0.9, 0.5 * (0.02 + 0.3 * 0.9))]
    assert law_errors(cells, held, lambda cell: cell.miss_rate) == (pytest.approx(0.25), pytest.approx(0.5))
    assert law_errors(cells[:2], held, lambda cell: cell.miss_rate) is None


def test_a_law_never_has_a_negative_term() -> None:
    """Cells that get faster with misses are fitted by a constant."""
    cells = [law_cell(str(i), x, 0.1 - 0.05 * x) for i, x in enumerate((0.1, 0.5, 0.9))]
    a, b = fit_law(cells, lambda cell: cell.miss_rate)
    assert b == 0
    assert 0.05 < a < 0.1


def test_a_law_without_any_time_is_the_worst_and_still_a_number() -> None:
    """Cells that all miss, fitted on cells of which it takes no constant, and one without a miss: 1 / 0 tokens/s."""
    cells = [law_cell(str(i), x, 0.3 * x) for i, x in enumerate((0.25, 0.5, 0.75))]
    errors = law_errors(cells, [law_cell("all", 0.0, 0.1)] * 3, lambda cell: cell.miss_rate)
    assert errors is not None
    assert errors[0] > 1e3
    assert all(map(math.isfinite, errors))


def test_leave_one_out_fits_on_the_others_alone() -> None:
    """The held value's own cells have no part in the law; ours is the cells' error; what does not vary has no row."""
    slow = [law_cell(f"s{x}", x, 5 * (0.02 + 0.3 * x), prefetch="none") for x in (0.1, 0.4, 0.8)]
    fast = [law_cell(f"f{x}", x, 0.02 + 0.3 * x, prefetch="pre-attention") for x in (0.1, 0.4, 0.8)]
    rows = leave_one_out([*slow, *fast])
    assert [(row.condition, row.value) for row in rows] == [("prefetch", "none"), ("prefetch", "pre-attention")]
    assert rows[0].law_miss_rate == (pytest.approx(4.0), pytest.approx(4.0))
    assert rows[1].law_miss_rate == (pytest.approx(0.8), pytest.approx(0.8))
    assert all(row.ours == (pytest.approx(0.1), pytest.approx(0.1)) for row in rows)
    assert [(row.n_cells, row.n_fitted) for row in rows] == [(3, 3), (3, 3)]


def test_a_value_of_one_cell_has_no_row() -> None:
    """It would be a row of the table of cells once more; two cells have one, and their largest error stands in it."""
    caps = (None, 24 * 2**20, 1_900_000_000, 1_900_000_000)
    cells = [law_cell(str(i), 0.1 * (i + 1), 0.1, ram_cap_bytes=cap) for i, cap in enumerate(caps)]
    assert [(row.value, row.n_cells) for row in leave_one_out(cells)] == [("1.9 GB (tiny)", 2)]


@pytest.mark.parametrize(("n", "high"), [(9, 0.09), (10, 0.091)])
def test_a_percentile_of_few_is_the_largest(n: int, high: float) -> None:
    """Nine errors of 1 to 9 %: the largest; ten up to 10 %: a tenth of the way from the ninth to the tenth."""
    assert typical_and_high([-0.01 * i for i in range(1, n + 1)]) == (
        pytest.approx(0.005 * (n + 1)),
        pytest.approx(high),
    )


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(1_900_000_000, "1.9 GB"), (24 * 2**20, "24 MiB"), (2_380_000_000, "2.38 GB"), (2**30, "1 GiB"), (7, "7 B"),
     (350_000, "350 kB"), (None, "none")],
)  # fmt: skip
def test_a_cap_stands_in_the_unit_it_was_asked_in(n_bytes: int | None, text: str) -> None:
    """Whichever of the units of ten and of two gives a short number."""
    assert replace(CONDITIONS, ram_cap_bytes=n_bytes).cap_text == text


def test_laws_are_fitted_by_model_class_where_they_can() -> None:
    """Two models that each follow a law of their own are no error; a class that is left out takes the others' law."""
    cells = [
        law_cell(f"{name}{x}{prefetch}", x, factor * (0.02 + 0.3 * x), model_class=name, prefetch=prefetch)
        for name, factor in (("tiny", 1.0), ("4b", 10.0))
        for x in (0.1, 0.4, 0.8)
        for prefetch in ("none", "pre-attention")
    ]
    rows = {(row.condition, row.value): row.law_miss_rate for row in leave_one_out(cells)}
    assert rows["prefetch", "none"] == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))
    assert rows["model class", "4b"] == (pytest.approx(9.0), pytest.approx(9.0))


def test_the_naive_formula_by_hand() -> None:
    """The longer of all bytes over RAM bandwidth and the bytes read over the read rate."""
    model = tiny_model()
    steps = steps_of(random_trace(0, 10, 3, 8, 2), context=None)
    scenario = Scenario(model, device_rates(gemv_flop_per_s=1e15), steps, n_slots=4)
    weights = 3 * (8 * 64 * 4 + (64 * 128 * 2 + 64 * 64 * 2) * 34 / 32)  # router F32; q, o, k, v Q8_0
    keys_and_values = 3 * 6 * 2 * 64 * 2  # the middle one of ten tokens sees six, F16
    experts = 3 * 2 * 3 * 64 * 32 * 34 / 32 * (1 / 3 + 2 / 3 * (1 - 0.7))
    rows = (128 + 1) * 64 * 34 / 32  # LM head and one embedding
    about = (weights + keys_and_values + experts + rows) / 1e9
    assert 1 / naive_tokens_per_s(scenario, 0.0, 1e9) == pytest.approx(about, rel=0.02)  # norms
    assert naive_tokens_per_s(scenario, 5e6, 1e8) == pytest.approx(20.0)


def test_drift_is_seen_through_the_conditions() -> None:
    """Cells of other speeds that all lose 10 % from the first to the last run show this, and nothing else."""
    speeds = {"a": 10.0, "b": 100.0, "c": 50.0}
    cells = []
    for shift, (name, speed) in enumerate(speeds.items()):
        orders = (shift, 3 + shift, 6 + shift)
        runs = [made_run(speed * (1 - 0.1 * order / 8), repeat=i, order=order) for i, order in enumerate(orders)]
        cells.append(cell_comparison(name, CONDITIONS, runs))
    found = drift(cells)
    assert [point.order for point in found.points] == list(range(9))
    assert found.slope_frac == pytest.approx(-0.1, abs=0.01)
    assert found.slope_error_frac == pytest.approx(0, abs=0.005)
    assert drift([made_cell()]).slope_frac is None


def test_drift_compares_repeats_of_one_cell_alone() -> None:
    """
    Two runs a cell, each cell's next to each other: only the step within the cell tells of drift, 1 % a run here. A
    line through all ratios would have them start at their cell's middle again and again, and show next to none.
    """
    cells = [
        cell_comparison(str(i), CONDITIONS, [made_run(10.0 * math.exp(0.01 * at), order=2 * i + at) for at in (0, 1)])
        for i in range(5)
    ]
    found = drift(cells)
    assert found.slope_frac == pytest.approx(math.expm1(0.01 * 9))
    assert found.slope_error_frac == pytest.approx(0, abs=1e-9)


def test_drift_goes_by_the_time_of_the_runs() -> None:
    """A gap in the planned order is no gap in time, and a run that was made later is later, whatever was planned."""
    made = {"a": ((0, "01"), (170, "03")), "b": ((1, "04"), (90, "02"))}
    cells = [
        cell_comparison(
            name, CONDITIONS, [made_run(order=order, started_at=f"2030-01-02T03:04:{second}") for order, second in runs]
        )
        for name, runs in made.items()
    ]
    assert [(point.order, point.cell) for point in drift(cells).points] == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]


def test_the_error_of_the_drift_counts_a_height_of_each_cell() -> None:
    """Steps of +3, +1 and -1 % within three cells of two runs: slope 1 %, and 6 - 3 - 1 runs are left for its error."""
    steps = (0.03, 0.01, -0.01)
    cells = [
        cell_comparison(str(i), CONDITIONS, [made_run(10.0 * math.exp(step * at), order=i + 3 * at) for at in (0, 1)])
        for i, step in enumerate(steps)
    ]
    found = drift(cells)  # 3 runs lie between repeats, so a run has a third of a step; the span is 5 runs
    residual = sum(2 * ((step - 0.01) / 2) ** 2 for step in steps)
    assert found.slope_frac == pytest.approx(math.expm1(0.01 / 3 * 5))
    assert found.slope_error_frac == pytest.approx(5 * math.sqrt(residual / (6 - 3 - 1) / (6 * 1.5**2)))
    assert drift(cells[:1]).slope_frac is None


def test_a_second_probe_is_compared_figure_by_figure() -> None:
    """After over before, for what was measured."""
    before = load_profile("intel-n100")
    cpu = before.cpu.model_copy(
        update={"op_overhead": before.cpu.op_overhead.model_copy(update={"kind": "measured", "value": 2e-6})}
    )
    first = before.model_copy(update={"cpu": cpu})
    twice = cpu.model_copy(update={"op_overhead": cpu.op_overhead.model_copy(update={"value": 3e-6})})
    changed = reprobe(first, first.model_copy(update={"cpu": twice}))
    assert changed["cpu.op_overhead"] == pytest.approx(1.5)
    assert all(ratio == 1 for key, ratio in changed.items() if key != "cpu.op_overhead")
    assert reprobe(first, None) == {}
