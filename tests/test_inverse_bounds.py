"""Inverse planning at its bounds: devices that must be scanned, and what is kept in memory on the way."""

import gc
from dataclasses import replace
from itertools import pairwise
from weakref import WeakSet

import pytest
from conftest import make_trace, random_trace, tiny_model
from inverse_questions import N_SAMPLES, PROFILES, quiet_question, simulated

from hardware_profiles.kernel_table import KernelTable
from hardware_profiles.schema import HardwareProfile
from simulator.closed_form.bounded import Bounded
from simulator.inverse.caps import CapGrid
from simulator.inverse.front import pareto_front
from simulator.inverse.limits import context_limit, limits, quantisation_limit, ram_limit
from simulator.inverse.proofs import more_slots_never_slower
from simulator.inverse.speeds import Speeds
from simulator.question import Question


def waking_device() -> HardwareProfile:
    """A device on which a second miss takes long to issue, and waking after a wait longer still."""
    times = [("router", 65536, 1, 60), ("row", 1, 1, 3), ("step", 1536, 1, 20)]
    for size in (4096, 2**21):
        times += [("issue", size, 1, 10), ("issue", size, 2, 2000), ("wake", size, 1, 5000)]
        times += [("wake_on_demand", size, 1, 5000)]
    rows = [
        {"op": op, "type": "f32", "size": size, "count": count, "working_set": "256 MiB", "threads": 4,
         "time": f"{us} us"}
        for op, size, count, us in times
    ]  # fmt: skip
    head = {"kind": "measured", "source": "this test", "uncertainty": 0.2, "engine": "test", "ram_bandwidth": "9 GB/s"}
    table, profile = KernelTable.model_validate(head | {"rows": rows}), PROFILES[0]
    return profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"kernels": table})})


def test_where_waking_costs_more_ram_can_be_slower_and_is_scanned() -> None:
    """
    Two misses take so long to issue that attention hides both; one miss alone waits, and waking costs more than that.

    Such a device is not bisected; the answer is the first cap of a scan, and the grid's words say why.
    """
    rows = [[0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [0, 6]] * 4  # the first expert comes again in each
    trace = make_trace([[row] for row in rows], 8)
    question = Question(
        tiny_model(1, 8, 2), waking_device(), trace, cache_policy="lru", start="cold", prefetch_policy="pre-attention",
        storage_read_bytes_per_s=1e7,
    )  # fmt: skip
    caps = CapGrid(Speeds(question), question).caps
    scanned = [simulated(replace(question, ram_cap_bytes=cap))[0] for cap in caps]
    assert any(after < 0.9 * before for before, after in pairwise(scanned) if before > 0)
    assert not more_slots_never_slower(Speeds(question), question)
    target = 0.999 * max(scanned[:3])
    limit = ram_limit(Speeds(question, N_SAMPLES), target)
    assert limit.value == next(cap for cap, speed in zip(caps, scanned, strict=True) if speed >= target)
    assert limit.search == "scanned"
    assert "waking" in limit.grid
    assert more_slots_never_slower(Speeds(question), replace(question, prefetch_policy="none"))


def test_without_prefetch_waking_costs_nothing_that_more_ram_brings_back() -> None:
    """Every miss waits then, so a larger cache is never slower on the same device: bisecting is the scan."""
    trace = random_trace(3, 40, 2, 8, 2, 0)
    question = Question(
        tiny_model(2, 8, 2), waking_device(), trace, cache_policy="lru", start="cold", prefetch_policy="none"
    )
    caps = CapGrid(Speeds(question), question).caps
    scanned = [simulated(replace(question, ram_cap_bytes=cap))[0] for cap in caps]
    assert scanned == sorted(scanned)
    assert scanned[-1] > scanned[0]
    assert ram_limit(Speeds(question, N_SAMPLES), sorted(scanned)[len(scanned) // 2]).search == "bisected"


def test_a_scan_of_part_of_the_caps_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last are tried; the words name the policy."""
    question = Question(tiny_model(), PROFILES[0], random_trace(5, 48, 3, 8, 2, 8), cache_policy="fifo")
    whole = CapGrid(Speeds(question), question)
    monkeypatch.setattr("simulator.inverse.caps.MAX_SCANNED_CAPS", 5)
    part = CapGrid(Speeds(question), question)
    assert len(part.caps) == 5
    assert (part.caps[0], part.caps[-1]) == (whole.caps[0], whole.caps[-1])
    assert part.text.startswith(f"5 of {len(whole.caps)} caps")
    assert "under fifo" in part.text


def test_what_is_kept_stays_below_its_bytes() -> None:
    """What was used longest ago goes; the last value stays even where it is too large alone."""
    kept: Bounded[str] = Bounded(5, len)
    kept.put(1, "aa")
    kept.put(2, "bb")
    assert kept.get(1) == "aa"
    kept.put(3, "cc")
    assert (kept.get(1), kept.get(2), kept.get(3)) == ("aa", None, "cc")
    kept.put(4, "d" * 9)
    assert (len(kept), kept.get(4), kept.used_bytes) == (1, "d" * 9, 9)


def test_what_is_dropped_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room for sums and times at all the limits and the front are the same."""
    wanted = limits_and_front(quiet_question())
    for name in ("inverse.speeds.MAX_SUMS_BYTES", "closed_form.draws.MAX_TIMES_BYTES", "closed_form.draws.MAX_BYTES"):
        monkeypatch.setattr(f"simulator.{name}", 1)
    assert limits_and_front(quiet_question()) == wanted


def limits_and_front(question: Question) -> tuple[object, ...]:
    """All limits and the front of a target that the question's device just misses."""
    speeds = Speeds(question, N_SAMPLES)
    target = 1.05 * speeds.speed(question)
    return (*limits(speeds, target), pareto_front(speeds, target))


def test_questions_of_other_values_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each context, top-k and type has a trace in columns of its own: few of them are held at a time."""
    alive: WeakSet[Speeds] = WeakSet()
    most = [0]

    class Counted(Speeds):
        def __init__(self, question: Question, n_samples: int, seed: int = 0) -> None:
            super().__init__(question, n_samples, seed)
            gc.collect()
            alive.add(self)
            most[0] = max(most[0], len(alive))

    monkeypatch.setattr("simulator.inverse.limits.Speeds", Counted)
    quiet = quiet_question()
    speeds = Speeds(quiet, N_SAMPLES)
    context_limit(speeds, speeds.speed(quiet))
    assert quantisation_limit(speeds, 2 * speeds.speed(quiet)).n_tried > 3
    assert 1 <= most[0] <= 2


def falling_device() -> HardwareProfile:
    """A device on which reads of 1.7 ms and more wake the thread at once, and shorter ones slowly."""
    profile = waking_device()
    table = profile.cpu.kernels
    assert table is not None
    kept = [row for row in table.rows if row.op not in ("issue", "wake", "wake_on_demand")]
    like = kept[0]
    curve = ((1, 1e-6), (800, 1e-3), (1660, 2e-3), (1700, 1e-9))
    rows = [
        like.model_copy(update={"op": "wake_on_demand", "size": size, "count": count, "time": seconds})
        for size in (4096, 2**21) for count, seconds in curve
    ]  # fmt: skip
    falling = table.model_copy(update={"rows": (*kept, *rows)})
    return profile.model_copy(update={"cpu": profile.cpu.model_copy(update={"kernels": falling})})


def test_what_is_proven_holds_for_every_draw_and_not_for_the_centre_alone() -> None:
    """
    At the centre two misses are read in 1.6 ms and cost more than one; in the draws of a slower storage they take
    longer than 1.7 ms and cost less, so more RAM is not bisected where an interval has such draws.
    """
    trace = random_trace(3, 40, 2, 8, 2, 0)
    question = Question(
        tiny_model(2, 8, 2), falling_device(), trace, start="cold", prefetch_policy="none",
        storage_read_bytes_per_s=1.05e7,
    )  # fmt: skip
    central, drawn = Speeds(question, 0), Speeds(question, 200)
    read_s = central.drawn_reads(question).tables[0, 3]
    assert read_s[1] < read_s[2] < 1.66e-3
    assert drawn.drawn_reads(question).tables[:, 3, 2].max() > 1.7e-3
    assert more_slots_never_slower(central, question)
    assert not more_slots_never_slower(drawn, question)
    assert CapGrid(drawn, question).text.endswith("the measured cost of misses falls somewhere with their number")
