"""Changes of a plan: the order of what they cost, what is grouped, and what is not offered because it cannot help."""

import math
from dataclasses import replace

import pytest
from conftest import random_trace, tiny_model

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema import HardwareProfile
from moeplan.quantity import parse_quantity
from simulator.inverse.prices import Prices
from simulator.inverse.shopping import price_of_storage
from simulator.inverse.speeds import Speeds
from simulator.plan_result import CHANGE_KINDS, Change, PlanResult
from simulator.planner import plan
from simulator.policies import POLICIES
from simulator.question import Question
from simulator.simulate import simulate
from simulator.sold import FASTEST_NVME_BYTES_PER_S

KIB, GIB = 2**10, 2**30
PRICES = Prices(
    schema_version=1, currency="EUR", ram=[{"ram_cap": "400 KiB", "price": 7.0}, {"ram_cap": "8 MiB", "price": 50.0}],
    storage=[{"read": "800 MB/s", "price": 5.0}, {"read": "3 GB/s", "price": 12.0}],
    compute=[{"factor": 1.5, "price": 3.0}],
)  # fmt: skip


@pytest.fixture(scope="module")
def question() -> Question:
    """Three layers of eight experts, top-2, with hardly any cache, read after attention though the router is early."""
    return Question(
        tiny_model(), load_profile("raspberry-pi-5-nvme"), random_trace(5, 60, 3, 8, 2, 8), ram_cap_bytes=230 * KIB,
        prefetch_policy="none",
    )  # fmt: skip


def value(question: Question) -> float:
    """Central tokens/s."""
    speed = simulate(question, engine="fast", n_samples=0).tokens_per_s
    assert speed is not None
    return speed.value


def planned(question: Question, factor: float, prices: Prices | None = None) -> PlanResult:
    """For a target of so many times today's speed."""
    return plan(question, factor * value(question), engine="fast", n_samples=5, prices=prices)


def by_name(answer: PlanResult) -> dict[str, Change]:
    """The changes; each thing is offered once."""
    names = [change.what for change in answer.changes]
    assert len(names) == len(set(names))
    return {change.what: change for change in answer.changes}


@pytest.mark.parametrize("prices", [None, PRICES])
@pytest.mark.parametrize("factor", [1.02, 1.2, 3.0])
def test_the_order_is_what_a_change_costs(question: Question, factor: float, prices: Prices | None) -> None:
    """Those that reach first; nothing, quality, money, not for this device; with prices by money, else by size."""
    answer = planned(question, factor, prices)
    for reaches in (True, False):
        some = [change for change in answer.changes if change.reaches == reaches]
        kinds = [CHANGE_KINDS.index(change.kind) for change in some]
        assert kinds == sorted(kinds)
        for kind in CHANGE_KINDS:
            same = [change for change in some if change.kind == kind]
            cost = [(change.price is None, change.price or 0.0, change.ratio) for change in same]
            assert cost == sorted(cost)
    assert [change.reaches for change in answer.changes] == sorted(
        (change.reaches for change in answer.changes), reverse=True
    )


def test_other_top_k_and_types_are_offered_and_their_quality_is_not_known(question: Question) -> None:
    """They cost no money, come before what does, and say that nobody measured the answers."""
    answer = planned(question, 1.02)
    found = by_name(answer)
    assert (found["top-k"].before, found["top-k"].after, found["top-k"].kind) == ("2", "1", "quality")
    assert found["top-k"].note == "not measured: quality at top-k 1 of a model trained with 2"
    assert found["quantisation"].note.startswith("not measured: quality with all big matrices as ")
    for name in ("top-k", "quantisation"):
        limit = next(one for one in answer.limits if one.what == name.replace("-", "_"))
        assert found[name].tokens_per_s == limit.tokens_per_s
        assert found[name].reaches


def test_the_other_cache_policies_are_one_change(question: Question) -> None:
    """The fastest of them; the note has the others with their speeds."""
    change = by_name(planned(question, 3.0))["cache policy"]
    speeds = Speeds(question, 0)
    others = {name: speeds.speed(replace(question, cache_policy=name)) for name in POLICIES if name != "lru"}
    assert others[change.after] == max(others.values())
    assert change.note.startswith(f"the fastest of {len(others)} others; then ")
    assert all(name in change.note for name in others if name != change.after)


def test_where_nothing_fits_no_setting_is_offered(question: Question) -> None:
    """A cap below the floor: a cache policy makes no room, so the only way is RAM; the reason of top-k says so too."""
    answer = plan(replace(question, ram_cap_bytes=100 * KIB), value(question), engine="fast", n_samples=5)
    assert set(by_name(answer)) == {"RAM cap", "all experts in RAM"}
    top_k = next(limit for limit in answer.limits if limit.what == "top_k")
    assert top_k.grid.endswith("; above 0 it does not fit the RAM cap")
    assert "even with one expert a token it does not fit the RAM cap" in top_k.note


def test_too_slow_a_processor_is_said_of_top_k_where_all_fits(question: Question) -> None:
    """The same limit where compute is what is short."""
    answer = plan(question, 1e6, engine="fast", n_samples=0)
    top_k = next(limit for limit in answer.limits if limit.what == "top_k")
    assert top_k.grid.endswith("; above 0 compute alone is too slow")


@pytest.mark.parametrize("prices", [None, PRICES])
def test_ram_that_the_device_has_costs_nothing(question: Question, prices: Prices | None) -> None:
    """A cap within what the device leaves is a setting, with a price list too; above it RAM has a price."""
    free = by_name(planned(question, 1.2, prices))["RAM cap"]
    assert (free.kind, free.price) == ("setting", None)
    assert free.note == "within the 7.20 GiB that this device leaves"
    small = replace(question, profile=with_ram(question.profile, 235 * KIB))
    bought = by_name(planned(small, 1.2, prices))["RAM cap"]
    assert bought.kind == "other_device"
    assert bought.price == (None if prices is None else 7.0 if bought.ratio * 230 <= 400 else 50.0)


def with_ram(profile: HardwareProfile, available_bytes: int) -> HardwareProfile:
    """The device with so much RAM left to a program."""
    size = math.ceil(profile.ram.os_reserved_bytes) + available_bytes
    return profile.model_copy(update={"ram": profile.ram.model_copy(update={"size": size})})


def test_all_experts_in_ram_are_offered_where_there_is_room(question: Question) -> None:
    """Beside the least cap, which stands on a knife edge: free, faster, and only where the device leaves as much."""
    found = by_name(planned(question, 1.2))
    least, every = found["RAM cap"], found["all experts in RAM"]
    assert (every.kind, every.reaches, every.price) == ("setting", True, None)
    assert every.ratio > least.ratio
    assert every.tokens_per_s is not None
    assert least.tokens_per_s is not None
    assert every.tokens_per_s.low > least.tokens_per_s.low
    whole = replace(question, ram_cap_bytes=round(every.ratio * 230 * KIB))
    assert simulate(whole, engine="fast", n_samples=0).verdict == "resident"
    small = replace(question, profile=with_ram(question.profile, 300 * KIB))
    assert "all experts in RAM" not in by_name(planned(small, 1.2))
    everything = value(whole) / value(question) * (1 - 1e-9)
    assert "all experts in RAM" not in by_name(planned(question, everything))  # the least cap is that


def test_both_are_not_offered_where_ram_alone_is_free_and_they_cannot_be_had(question: Question) -> None:
    """RAM and a drive beyond the link help nobody whose RAM alone is there; on a wide link they are still told."""
    assert "RAM cap and storage read" not in by_name(planned(question, 1.2))
    storage = question.profile.storage.model_copy(update={"kind": "NVMe PCIe 4 x4"})
    wide = replace(question, profile=question.profile.model_copy(update={"storage": storage}))
    assert by_name(planned(wide, 1.2))["RAM cap and storage read"].kind == "hardware"


@pytest.mark.parametrize("factor", [1.05, 1.2])
def test_what_is_printed_is_enough_when_it_is_typed(question: Question, factor: float) -> None:
    """Least caps and storage speeds are rounded up: parsed again they still meet the target."""
    found = by_name(planned(question, factor))
    target = factor * value(question)
    cap = round(parse_quantity(found["RAM cap"].after, "byte", "cap"))
    assert value(replace(question, ram_cap_bytes=cap)) >= target
    rate = parse_quantity(found["storage read"].after, "byte/second", "rate")
    reached = value(replace(question, storage_read_bytes_per_s=rate)) >= target
    assert reached == found["storage read"].reaches == (factor < 1.2)  # no storage alone reaches as much


def test_settings_that_make_a_met_target_safe_are_told(question: Question) -> None:
    """The value meets it and the low end does not: only what lifts the low end above it; nothing where it is safe."""
    speed = simulate(question, engine="fast", n_samples=5).tokens_per_s
    assert speed is not None
    for target, is_safe in ((speed.low * (1 - 1e-7), True), (speed.low * (1 + 1e-7), False)):
        answer = plan(question, target, engine="fast", n_samples=5)
        assert bool(answer.changes) != is_safe
        for change in answer.changes:
            assert change.kind in ("setting", "quality")
            assert change.tokens_per_s is not None
            assert change.tokens_per_s.low >= target


def test_prices_are_those_of_the_cheapest_part_that_does(question: Question) -> None:
    """At least as fast, none where no part of the list is."""
    found = by_name(planned(question, 1.05, PRICES))
    rate = found["storage read"].ratio * 419e6
    assert rate > 500e6  # beyond the link: such drives are sold, for other devices
    assert found["storage read"].price == (5.0 if rate <= 8e8 else 12.0 if rate <= 3e9 else None)
    assert price_of_storage(PRICES, question.profile, 450e6) is None  # for this one there is none on the list
    assert by_name(planned(question, 50.0, PRICES))["CPU and RAM speed"].price is None


def test_storage_beyond_the_link_is_not_for_this_device(question: Question) -> None:
    """Flagged in the changes, the limits and the front; also what nobody sells at all."""
    answer = planned(question, 1.05)
    change = by_name(answer)["storage read"]
    assert change.kind == "other_device"
    assert change.note == "more than this device's PCIe 2 x1 carries (500 MB/s)"
    limit = next(one for one in answer.limits if one.what == "storage_read")
    assert limit.note.startswith("more than this device's PCIe 2 x1 carries")
    assert answer.front is not None
    for point in (*answer.front.points, *answer.front.cautious_points):
        is_fast = point.storage_read_bytes_per_s > 500e6
        assert ("PCIe" in point.note or "any drive" in point.note) == is_fast
        assert ("faster than any drive" in point.note) == (point.storage_read_bytes_per_s > FASTEST_NVME_BYTES_PER_S)


def test_today_in_the_limits_is_what_the_small_print_says(question: Question) -> None:
    """One word for the context: tokens in the KV cache when decode begins."""
    answer = planned(question, 0.9)
    context = next(limit for limit in answer.limits if limit.what == "context")
    assert context.today == 8
    assert answer.result.small_print["context"].startswith("8 tokens in the KV cache when decode begins, up to 60 ")
    assert isinstance(context.value, int)
    assert context.value >= 8
