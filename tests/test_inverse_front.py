"""The front of RAM against storage: no point of it is beaten, and each is the least."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from inverse_questions import N_SAMPLES, between, questions, quicker, quiet_question, simulated

from simulator.inverse.caps import CapGrid
from simulator.inverse.front import N_FRONT_CAPS, front_rates, pareto_front
from simulator.inverse.limits import ram_limit
from simulator.inverse.search import thinned
from simulator.inverse.speeds import Speeds
from simulator.plan_result import FrontPoint
from simulator.question import Question, question_rates


@pytest.fixture
def quiet() -> Question:
    """See quiet_question."""
    return quiet_question()


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
    rates = front_rates(question)
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
    rates = front_rates(question)
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


@quicker
@given(questions(), st.floats(0, 1))
def test_the_least_ram_of_the_limits_stands_in_the_front(question: Question, place: float) -> None:
    """At the device's own storage speed the front begins with the very cap that the limits found."""
    speeds, own = Speeds(question, N_SAMPLES), question_rates(question).sequential_read_bytes_per_s
    caps = CapGrid(speeds, question).caps
    ends = [speeds.speed(replace(question, ram_cap_bytes=cap)) for cap in (caps[0], caps[-1])]
    target = between(ends, place)
    assume(target <= max(ends))  # at the very end it is just out of reach
    least = ram_limit(speeds, target).value
    assert isinstance(least, int)
    points = pareto_front(speeds, target, [least]).points
    assert min(point.ram_cap_bytes for point in points if point.storage_read_bytes_per_s <= own) == least
