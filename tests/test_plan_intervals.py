"""One scenario has one interval, wherever a plan shows it: the same draws stand behind every number."""

from dataclasses import replace
from itertools import islice

import pytest
from conftest import random_trace, tiny_model
from inverse_questions import PROFILES
from test_sweep_rows import DEVICES, GIB, INPUTS, MODEL, measured_device, question_of

from simulator.inverse.prices import Prices
from simulator.plan_result import PlanResult
from simulator.planner import plan
from simulator.question import Question, question_rates
from simulator.result import Interval
from simulator.simulate import simulate
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.rows import ChunkRunner
from simulator.sweeps.scenarios import chunks

N_SAMPLES = 21
PRICES = Prices(
    schema_version=1, currency="EUR", ram={"per_gib": 1e4}, storage=[{"read": "3 GB/s", "price": 9.0}],
    compute=[{"factor": 2.0, "price": 5.0}],
)  # fmt: skip


def small_question(profile=PROFILES[0]) -> Question:
    """Three layers of eight experts, top-2, in a cache of half of them."""
    return Question(tiny_model(), profile, random_trace(5, 60, 3, 8, 2, 8), ram_cap_bytes=330 * 2**10)


@pytest.fixture(scope="module", params=[PROFILES[0], measured_device()], ids=["roofline", "measured"])
def question(request: pytest.FixtureRequest) -> Question:
    """On a device with a roofline, and on one whose kernels were measured."""
    return small_question(request.param)


def value(question: Question) -> float:
    """Central tokens/s."""
    speed = simulate(question, engine="fast", n_samples=0).tokens_per_s
    assert speed is not None
    return speed.value


@pytest.fixture(scope="module", params=[0.95, 1.02], ids=["met", "missed"])
def answer(request: pytest.FixtureRequest, question: Question) -> PlanResult:
    """A target just met and one just missed, with prices."""
    return plan(question, request.param * value(question), engine="fast", prices=PRICES, n_samples=N_SAMPLES)


def simulated(question: Question) -> Interval | None:
    """What `simulate` says of it with as many draws."""
    return simulate(question, engine="fast", n_samples=N_SAMPLES).tokens_per_s


def assert_same(found: Interval | None, question: Question) -> None:
    """Value and both ends."""
    wanted = simulated(question)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert (found.value, found.low, found.high) == pytest.approx((wanted.value, wanted.low, wanted.high), rel=1e-9)


def test_every_cell_of_the_map_has_the_interval_of_its_own_simulation(question: Question, answer: PlanResult) -> None:
    """The framed cell that of the headline."""
    for row in islice(answer.grid, 0, None, 5):
        asked = replace(
            question, ram_cap_bytes=row.ram_cap_bytes, storage_read_bytes_per_s=row.storage_read_bytes_per_s
        )
        found = Interval(row.tokens_per_s, row.tokens_per_s_low, row.tokens_per_s_high) if row.tokens_per_s else None
        assert_same(found, asked)
    own = [
        row for row in answer.grid
        if row.ram_cap_bytes == question.ram_cap_bytes
        and row.storage_read_bytes_per_s == answer.result.storage_read_bytes_per_s
    ]  # fmt: skip
    headline = answer.result.tokens_per_s
    assert headline is not None
    assert (own[0].tokens_per_s_low, own[0].tokens_per_s_high) == pytest.approx((headline.low, headline.high), rel=1e-9)


def test_every_limit_has_the_interval_of_its_own_simulation(question: Question, answer: PlanResult) -> None:
    """RAM, storage and context, the value and the cautious one."""
    names = {"ram_cap": "ram_cap_bytes", "storage_read": "storage_read_bytes_per_s", "context": "context"}
    n_told = 0
    for limit in answer.limits:
        for at, speed in ((limit.value, limit.tokens_per_s), (limit.cautious_value, limit.cautious_tokens_per_s)):
            if at is not None and limit.what in names:
                assert_same(speed, replace(question, **{names[limit.what]: at}))
                n_told += 1
    assert n_told


def test_front_and_purchases_have_the_intervals_of_their_own_simulations(
    question: Question, answer: PlanResult
) -> None:
    """Points of both fronts, and every purchase."""
    assert answer.front is not None
    for point in (*answer.front.points[::4], *answer.front.cautious_points[::4]):
        at = {"ram_cap_bytes": point.ram_cap_bytes, "storage_read_bytes_per_s": point.storage_read_bytes_per_s}
        assert_same(point.tokens_per_s, replace(question, **at))
    assert answer.shopping is not None
    own = question_rates(question).sequential_read_bytes_per_s
    for buy in answer.shopping.purchases:
        asked = replace(question, ram_cap_bytes=buy.ram_cap_bytes, compute_factor=buy.compute_factor)
        if buy.storage_read_bytes_per_s != own:
            asked = replace(asked, storage_read_bytes_per_s=buy.storage_read_bytes_per_s)
        assert_same(buy.tokens_per_s, asked)


def test_what_is_safe_in_the_headline_is_safe_in_the_limits(question: Question) -> None:
    """A target at the very low end of the headline's interval, and one just above it."""
    headline = simulated(question)
    assert headline is not None
    for target, is_safe in ((headline.low * (1 - 1e-7), True), (headline.low * (1 + 1e-7), False)):
        answer = plan(question, target, engine="fast", n_samples=N_SAMPLES)
        limits = {limit.what: limit for limit in answer.limits}
        for what, now in (
            ("ram_cap", question.cap_bytes), ("storage_read", question_rates(question).sequential_read_bytes_per_s),
        ):  # fmt: skip
            safe = limits[what].cautious_value
            assert isinstance(safe, int | float) or not is_safe
            assert (safe is not None and float(safe) <= now * (1 + 1e-12)) == is_safe


def test_without_being_told_plan_and_simulate_take_as_many_draws() -> None:
    """plan's headline and map, and simulate."""
    question = small_question()
    answer, alone = plan(question, 10.0, engine="fast"), simulate(question, engine="fast").tokens_per_s
    assert answer.result.tokens_per_s == alone
    assert alone is not None
    lows = [row.tokens_per_s_low for row in answer.grid if row.ram_cap_bytes == question.ram_cap_bytes]
    assert any(low == pytest.approx(alone.low, rel=1e-9) for low in lows)


@pytest.mark.parametrize("device", [DEVICES[0], "measured"])
def test_a_row_of_a_sweep_has_the_interval_that_simulate_says(device: str) -> None:
    """With what either command takes where nothing is said, for the device's own storage and another speed."""
    axes = {"model": (MODEL,), "hardware": (device,), "trace": ("four",), "ram_cap": (GIB,)}
    definition = SweepDefinition(axes | {"storage_read": (None, 1e9)})  # type: ignore[arg-type]
    for chunk in chunks(definition):
        for row in ChunkRunner(definition, INPUTS).rows(chunk):
            cell = dict(chunk.cells(definition))[row.scenario]
            wanted = simulate(question_of(cell), engine="fast").tokens_per_s
            assert wanted is not None
            found = row.row.tokens_per_s_low, row.row.tokens_per_s_high
            assert found == pytest.approx((wanted.low, wanted.high), rel=1e-9)
