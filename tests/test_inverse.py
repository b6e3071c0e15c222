"""Inverse planning: a searched answer is the one that a full scan of its grid finds, by other means."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import make_trace, random_trace, tiny_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sweep_rows import measured_device

from hardware_profiles.catalog import load_profile
from simulator.inverse.caps import CapGrid, cap_runs
from simulator.inverse.front import N_FRONT_CAPS, pareto_front
from simulator.inverse.limits import (
    context_limit,
    quantisation_limit,
    ram_limit,
    storage_limit,
    top_k_limit,
)
from simulator.inverse.search import first_reaching, thinned
from simulator.inverse.speeds import Speeds, more_slots_never_slower
from simulator.inverse.storage_grid import rate_grid
from simulator.model.spec import with_quantisation, with_top_k
from simulator.plan_result import FrontPoint, Limit
from simulator.planner import COMPUTE_FACTORS, _faster_compute
from simulator.policies import OFFLINE_POLICIES, POLICIES, STACK_POLICIES
from simulator.question import Question, prepare
from simulator.simulate import simulate

N_SAMPLES = 5
DEVICES = ("raspberry-pi-5-nvme", "rk3588", "raspberry-pi-5-sd")
PROFILES = [*(load_profile(name) for name in DEVICES), measured_device()]
quick = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
quicker = settings(quick, max_examples=5)


@st.composite
def questions(draw: st.DrawFn, policies: tuple[str, ...] = STACK_POLICIES) -> Question:
    """A small model, a random trace with a prompt and a device, with random what-ifs."""
    n_layers, n_experts, top_k = draw(st.integers(1, 4)), draw(st.integers(4, 9)), draw(st.integers(1, 3))
    n_prefill = draw(st.sampled_from([0, 3, 20]))
    trace = random_trace(draw(st.integers(0, 99)), n_prefill + 24, n_layers, n_experts, top_k, n_prefill)
    return Question(
        tiny_model(n_layers, n_experts, top_k),
        draw(st.sampled_from(PROFILES)),
        trace,
        ram_cap_bytes=draw(st.integers(150, 400)) * 2**10,
        storage_read_bytes_per_s=draw(st.sampled_from([None, 2e7, 3e9])),
        cache_policy=draw(st.sampled_from(policies)),
        prefetch_policy=draw(st.sampled_from(["none", "pre-attention"])),
        layout=draw(st.sampled_from(["bundle", "split"])),
        start=draw(st.sampled_from(["cold", "warm"])),
        compute_factor=draw(st.sampled_from([1.0, 0.1])),
    )


def simulated(question: Question) -> tuple[float, float]:
    """Value and low end from the other engine, 0 where it cannot run."""
    speed = simulate(question, engine="fast", n_samples=N_SAMPLES, seed=0).tokens_per_s
    return (0.0, 0.0) if speed is None else (speed.value, speed.low)


def between(speeds: list[float], place: float) -> float:
    """A target between the extremes of some speeds, off every one of them."""
    some = sorted({round(speed, 9) for speed in speeds if speed > 0})
    low, high = some[0], some[-1]
    return (low + place * (high - low)) * (1 + 1e-6)


@quick
@given(questions(policies=(*POLICIES, *OFFLINE_POLICIES)), st.booleans())
def test_speeds_are_those_of_simulate(question: Question, resident: bool) -> None:
    """Central value and both ends of the interval, with the same draws, for any policy, layout and what-if."""
    if resident:
        question = replace(question, ram_cap_bytes=2**23)
    found = Speeds(question, N_SAMPLES).interval(question)
    wanted = simulate(question, engine="fast", n_samples=N_SAMPLES, seed=0).tokens_per_s
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found.value == pytest.approx(wanted.value, rel=1e-9)
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-9)


@quick
@given(questions(), st.integers(0, 2**20))
def test_between_two_caps_of_the_grid_nothing_changes(question: Question, extra: int) -> None:
    """Any cap has the slots, the prompt's chunk and the speed of the largest cap of the grid below it."""
    caps = [cap for run in cap_runs(Speeds(question), question) for cap in run]
    assert caps == sorted(set(caps))
    cap = caps[0] + extra % (caps[-1] - caps[0] + 2**14)
    at, below = (
        prepare(replace(question, ram_cap_bytes=size)) for size in (cap, max(size for size in caps if size <= cap))
    )
    assert (at.plan.n_slots, at.plan.verdict) == (below.plan.n_slots, below.plan.verdict)
    assert [step.tokens for step in at.steps] == [step.tokens for step in below.steps]
    assert prepare(replace(question, ram_cap_bytes=caps[0] - 1)).plan.verdict == "cannot_run"
    assert prepare(replace(question, ram_cap_bytes=caps[-1])).plan.verdict == "resident"


@quick
@given(questions(), st.floats(0, 1))
def test_the_least_ram_is_the_one_of_a_full_scan(question: Question, place: float) -> None:
    """Bisection over every size of the cache finds the first cap that meets the target, central and cautious."""
    caps = CapGrid(Speeds(question), question).caps
    scanned = [simulated(replace(question, ram_cap_bytes=cap)) for cap in caps]
    target = between([value for value, _ in scanned], place)
    limit = ram_limit(Speeds(question, N_SAMPLES), target)
    assert limit.search == ("bisected" if more_slots_never_slower(question) else "scanned")
    assert limit.search == "bisected" or question.profile.cpu.kernels is not None
    assert limit.value == next((c for c, (v, _) in zip(caps, scanned, strict=True) if v >= target), None)
    assert limit.cautious_value == next((c for c, (_, low) in zip(caps, scanned, strict=True) if low >= target), None)
    if limit.tokens_per_s is not None:
        assert limit.tokens_per_s.value >= target


@quicker
@given(questions(policies=("fifo", "clock", "s3-fifo", "sieve")), st.floats(0, 1))
def test_policies_without_the_stack_property_are_scanned(question: Question, place: float) -> None:
    """The answer is the first cap of the grid, though a larger one may fall short, and says that it was scanned."""
    grid = CapGrid(Speeds(question), question)
    scanned = [simulated(replace(question, ram_cap_bytes=cap))[0] for cap in grid.caps]
    target = between(scanned, place)
    limit = ram_limit(Speeds(question, N_SAMPLES), target)
    assert limit.search == "scanned"
    assert limit.value == next((c for c, v in zip(grid.caps, scanned, strict=True) if v >= target), None)


def test_fifo_can_be_slower_with_more_ram() -> None:
    """Belady's anomaly on one layer: why such policies are not bisected."""
    reads = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]
    trace = make_trace([[[expert]] for expert in reads], 6)
    model = tiny_model(1, 6, 1)
    question = Question(model, PROFILES[0], trace, cache_policy="fifo", start="cold")
    caps = cap_runs(Speeds(question), question)[-1]
    three, four = (Speeds(question).n_misses(replace(question, ram_cap_bytes=caps[slots])) for slots in (3, 4))
    assert (three, four) == (9, 10)
    assert not more_slots_never_slower(question)
    assert more_slots_never_slower(replace(question, cache_policy="lru"))


@quicker
@given(questions(), st.floats(0, 1))
def test_the_least_storage_speed_is_the_one_of_a_full_scan(question: Question, place: float) -> None:
    """Every rate of the grid, tried one by one, gives the same answer."""
    speeds = Speeds(question, N_SAMPLES)
    rates = rate_grid(question.profile.ram.peak_bandwidth.value)
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
    change = _faster_compute(speeds, target)
    wanted = next((f for f, speed in zip(COMPUTE_FACTORS, scanned, strict=True) if speed >= target), None)
    assert change.reaches == (wanted is not None)
    assert change.ratio == (COMPUTE_FACTORS[-1] if wanted is None else wanted)


@quick
@given(questions(), st.floats(0, 1), st.sampled_from([2048, 300]))
def test_the_largest_context_is_the_one_of_a_full_scan(question: Question, place: float, longest: int) -> None:
    """Every context of the grid, simulated one by one, gives the same answer, with room for long ones or without."""
    model = question.model.model_copy(update={"context_length": longest})
    question = replace(question, model=model, ram_cap_bytes=(question.ram_cap_bytes or 0) * 3)
    contexts = [*range(0, longest - 23, 256), longest - 24] if longest % 256 != 24 else [*range(0, longest - 23, 256)]
    scanned = {context: simulated(replace(question, context=context)) for context in contexts}
    target = between([value for value, _ in scanned.values()] or [1.0], place)
    limit = context_limit(Speeds(question, N_SAMPLES), target)
    assert limit.value == max((c for c, (value, _) in scanned.items() if value >= target), default=None)
    assert limit.cautious_value == max((c for c, (_, low) in scanned.items() if low >= target), default=None)
    assert limit.search == "bisected" or question.profile.cpu.kernels is not None


@quicker
@given(questions(), st.floats(0, 1))
def test_no_point_of_the_front_is_beaten_and_each_is_least(question: Question, place: float) -> None:
    """More RAM stands in the front only with a slower storage; one step slower, or one cap less, falls short."""
    speeds = Speeds(question, N_SAMPLES)
    caps = CapGrid(speeds, question).caps
    corners = [
        speeds.speed(replace(question, ram_cap_bytes=cap, storage_read_bytes_per_s=rate))
        for cap in (caps[0], caps[-1]) for rate in (1e6, 1e10)
    ]  # fmt: skip
    target = between(corners, place)
    front = pareto_front(speeds, target)
    rates = rate_grid(question.profile.ram.peak_bandwidth.value)
    for a, b in pairwise(front.points):
        assert a.ram_cap_bytes < b.ram_cap_bytes
        assert a.storage_read_bytes_per_s > b.storage_read_bytes_per_s
    for point in front.points:
        here = replace(question, ram_cap_bytes=point.ram_cap_bytes)
        assert simulated(replace(here, storage_read_bytes_per_s=point.storage_read_bytes_per_s))[0] >= target
        place_of = rates.index(point.storage_read_bytes_per_s)
        if place_of:
            assert simulated(replace(here, storage_read_bytes_per_s=rates[place_of - 1]))[0] < target
    for points, end in ((front.points, 0), (front.cautious_points, 1)):
        assert_whole(question, points, target, end)


def assert_whole(question: Question, points: tuple[FrontPoint, ...], target: float, end: int) -> None:
    """
    Each point meets the target by that end of `simulated`; with no cap does a slower storage do than the front says.

    A faster storage is never slower, so one rate a step below the front's stands for all below it.
    """
    rates = rate_grid(question.profile.ram.peak_bandwidth.value)
    caps = thinned(CapGrid(Speeds(question), question).caps, N_FRONT_CAPS)
    least = {point.ram_cap_bytes: point.storage_read_bytes_per_s for point in points}
    assert set(least) <= set(caps)
    place = len(rates)
    for cap in caps:
        here = replace(question, ram_cap_bytes=cap)
        if cap in least:
            place = rates.index(least[cap])
            assert simulated(replace(here, storage_read_bytes_per_s=rates[place]))[end] >= target
        if place:
            assert simulated(replace(here, storage_read_bytes_per_s=rates[place - 1]))[end] < target


def test_a_cautious_front_of_a_device_stands_above_the_other(quiet: Question) -> None:
    """With a target that some caps meet safely: both fronts are whole, and a cautious point asks for more storage."""
    speeds = Speeds(quiet, N_SAMPLES)
    target = 0.8 * speeds.low(replace(quiet, ram_cap_bytes=2**23))
    front = pareto_front(speeds, target)
    assert len(front.points) > 1
    assert len(front.cautious_points) > 1
    assert_whole(quiet, front.points, target, 0)
    assert_whole(quiet, front.cautious_points, target, 1)
    for safe in front.cautious_points:
        beside = [p.storage_read_bytes_per_s for p in front.points if p.ram_cap_bytes <= safe.ram_cap_bytes]
        assert safe.storage_read_bytes_per_s >= min(beside)


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


def quiet_question() -> Question:
    """Three layers of eight experts, top-2, in a cache of half of them."""
    trace = random_trace(5, 48, 3, 8, 2, 8)
    return Question(tiny_model(), PROFILES[0], trace, ram_cap_bytes=330 * 2**10)


@pytest.fixture
def quiet() -> Question:
    """See quiet_question."""
    return quiet_question()


def test_the_best_quantisation_has_the_most_bytes_that_meet_the_target(quiet: Question) -> None:
    """All types by their own simulation: the first from the best down, whatever the order of their speeds."""
    names = ("f16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k", "q2_k")
    speed = {name: simulated(replace(quiet, model=with_quantisation(quiet.model, name)))[0] for name in names}
    limit = quantisation_limit(Speeds(quiet, N_SAMPLES), sorted(speed.values())[3])
    assert limit.grid.split(", ")[0] == "f16"
    assert limit.value == next(name for name in limit.grid.split(", ") if speed[name] >= sorted(speed.values())[3])
    assert quantisation_limit(Speeds(quiet, N_SAMPLES), 1e9).value is None


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


def test_a_rate_has_three_digits_and_one_percent_steps() -> None:
    """What is printed is what was tried; no two rates are alike."""
    rates = rate_grid(1e10)
    assert all(float(f"{rate:.3g}") == rate for rate in rates)
    assert (np.diff(rates) > 0).all()
    assert max(b / a for a, b in pairwise(rates)) < 1.021
    assert rate_grid(1.0) == (1e6,)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_bisection_equals_the_scan_on_runs_that_only_rise(flags: list[bool]) -> None:
    """Each run false, then true; any order of runs."""
    runs = [sorted(flags[start : start + 7]) for start in range(0, len(flags), 7)]
    places = [[(index, place) for place in range(len(run))] for index, run in enumerate(runs)]

    def reaches(at: tuple[int, int]) -> bool:
        return runs[at[0]][at[1]]

    scanned = first_reaching(places, reaches, is_monotone=False)
    assert first_reaching(places, reaches, is_monotone=True) == scanned


def test_thinning_keeps_both_ends() -> None:
    """As many as there may be, the first and the last one among them, evenly apart."""
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert thinned(range(11), 4) == [0, 3, 7, 10]
    assert thinned(range(3), 4) == [0, 1, 2]
    for n in range(2, 60):
        some = thinned(range(n), 7)
        assert (some[0], some[-1], len(some)) == (0, n - 1, min(n, 7))
        assert some == sorted(set(some))
