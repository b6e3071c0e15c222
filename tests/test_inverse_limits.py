"""Limits of storage, compute, context, top-k and type: each the one that a full scan of its grid finds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inverse_questions import N_SAMPLES, between, questions, quick, quicker, quiet_question, simulated

from simulator.inverse.changes import COMPUTE_FACTORS, faster_compute
from simulator.inverse.limits import context_limit, quantisation_limit, ram_limit, storage_limit, top_k_limit
from simulator.inverse.speeds import Speeds
from simulator.inverse.storage_grid import rate_grid
from simulator.model.spec import with_quantisation, with_top_k
from simulator.plan_result import Limit
from simulator.question import Question, question_rates
from simulator.simulate import simulate


@pytest.fixture
def quiet() -> Question:
    """See quiet_question."""
    return quiet_question()


@quicker
@given(questions(), st.floats(0, 1))
def test_the_least_storage_speed_is_the_one_of_a_full_scan(question: Question, place: float) -> None:
    """Every rate of the grid, tried one by one, gives the same answer."""
    speeds = Speeds(question, N_SAMPLES)
    own = question_rates(question).sequential_read_bytes_per_s
    rates = sorted({*rate_grid(question.profile.ram.peak_bandwidth.value), own})
    scanned = [speeds.speed(replace(question, storage_read_bytes_per_s=rate)) for rate in rates]
    if not any(scanned):
        assert storage_limit(speeds, 1.0).value is None
        return
    target = between(scanned, place)
    limit = storage_limit(speeds, target)
    wanted = next((rate for rate, speed in zip(rates, scanned, strict=True) if speed >= target), None)
    assert limit.value == wanted
    assert limit.search == "bisected"
    lows = [speeds.low(replace(question, storage_read_bytes_per_s=rate)) for rate in rates]
    assert limit.cautious_value == next((r for r, low in zip(rates, lows, strict=True) if low >= target), None)


@quicker
@given(questions(), st.floats(0, 1))
def test_the_least_compute_is_the_one_of_a_full_scan(question: Question, place: float) -> None:
    """Every factor of the grid tried one by one, also where waking after a wait makes faster compute slower."""
    speeds = Speeds(question, N_SAMPLES)
    scanned = [
        speeds.speed(replace(question, compute_factor=question.compute_factor * factor)) for factor in COMPUTE_FACTORS
    ]
    if not any(scanned):
        return
    target = between(scanned, place)
    change = faster_compute(speeds, target)
    wanted = next((f for f, speed in zip(COMPUTE_FACTORS, scanned, strict=True) if speed >= target), None)
    assert change.reaches == (wanted is not None)
    assert change.ratio == (COMPUTE_FACTORS[-1] if wanted is None else wanted)


@quick
@given(questions(), st.floats(0, 1), st.sampled_from([2048, 300]))
def test_the_largest_context_is_the_one_of_a_full_scan(question: Question, place: float, longest: int) -> None:
    """Every context of the grid, simulated one by one, gives the same answer, with room for long ones or without."""
    model = question.model.model_copy(update={"context_length": longest})
    question = replace(question, model=model, ram_cap_bytes=(question.ram_cap_bytes or 0) * 3)
    assert question.trace is not None
    contexts = sorted({*range(0, longest - 23, 256), longest - 24, question.trace.n_tokens - 24})
    scanned = {context: simulated(replace(question, context=context)) for context in contexts}
    target = between([value for value, _ in scanned.values()] or [1.0], place)
    limit = context_limit(Speeds(question, N_SAMPLES), target)
    assert limit.value == max((c for c, (value, _) in scanned.items() if value >= target), default=None)
    assert limit.cautious_value == max((c for c, (_, low) in scanned.items() if low >= target), default=None)
    assert limit.search == "bisected" or question.profile.cpu.kernels is not None


def test_top_k_takes_the_head_of_each_row_and_makes_up_the_rest(quiet: Question) -> None:
    """Fewer experts: the first ones of each recorded row; more: made-up routing, and the answer says so."""
    two = simulate(replace(quiet, model=with_top_k(quiet.model, 1), trace=_heads(quiet, 1)), engine="fast", n_samples=0)
    assert two.tokens_per_s is not None
    one = simulate(quiet, engine="fast", n_samples=0).tokens_per_s
    assert one is not None
    assert two.tokens_per_s.value > one.value
    limit = top_k_limit(Speeds(quiet, N_SAMPLES), (one.value + two.tokens_per_s.value) / 2)
    assert (limit.value, limit.search) == (1, "scanned")
    assert limit.tokens_per_s is not None
    assert limit.tokens_per_s.value == pytest.approx(two.tokens_per_s.value, rel=1e-9)
    assert "the first experts of each recorded row" in limit.note
    more = top_k_limit(Speeds(quiet, N_SAMPLES), one.value / 10)
    assert int(more.value or 0) > 2
    assert "made up, zipf" in more.note


def _heads(question: Question, top_k: int):
    assert question.trace is not None
    return replace(question.trace, expert_ids=question.trace.expert_ids[:, :, :top_k])


def test_the_best_quantisation_has_the_most_bytes_that_meet_the_target(quiet: Question) -> None:
    """All types by their own simulation: the first from the best down, whatever the order of their speeds."""
    names = ("f16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k", "q2_k")
    speed = {name: simulated(replace(quiet, model=with_quantisation(quiet.model, name)))[0] for name in names}
    limit = quantisation_limit(Speeds(quiet, N_SAMPLES), sorted(speed.values())[3])
    assert limit.grid.split(", ")[0] == "f16"
    assert limit.value == next(name for name in limit.grid.split(", ") if speed[name] >= sorted(speed.values())[3])
    assert quantisation_limit(Speeds(quiet, N_SAMPLES), 1e9).value is None


@pytest.mark.parametrize("today", ["q4_0", "q4_k"])
def test_of_types_with_as_many_bytes_todays_is_the_answer(quiet: Question, today: str) -> None:
    """q4_0 and q4_k have the same bytes: a model that meets its target is not told to change between them."""
    question = replace(quiet, model=with_quantisation(quiet.model, today))
    limit = quantisation_limit(Speeds(question, N_SAMPLES), Speeds(question, 0).speed(question) * (1 - 1e-9))
    assert limit.value == today


def test_a_cautious_answer_never_asks_for_less(quiet: Question) -> None:
    """The low end lies at or below the value, so it needs at least as much RAM and storage, and no longer context."""
    speeds = Speeds(quiet, 40)
    target = 0.9 * speeds.low(replace(quiet, ram_cap_bytes=2**23))
    for limit in (ram_limit(speeds, target), storage_limit(speeds, target)):
        assert _number(limit, "cautious_value") >= _number(limit, "value")
    context = context_limit(speeds, speeds.low(quiet) * 0.9)
    assert _number(context, "cautious_value") <= _number(context, "value")


def _number(limit: Limit, name: str) -> float:
    value = getattr(limit, name)
    assert isinstance(value, int | float)
    return value
