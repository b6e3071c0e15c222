"""The least RAM: every size of the cache is a cap to search, and the answer is the one of a full scan."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from inverse_questions import N_SAMPLES, between, questions, quick, quicker, simulated

from simulator.inverse.caps import CapGrid, cap_runs
from simulator.inverse.limits import ram_limit
from simulator.inverse.proofs import more_slots_never_slower
from simulator.inverse.speeds import Speeds
from simulator.question import Question, prepare


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
    assert limit.search == ("bisected" if more_slots_never_slower(Speeds(question), question) else "scanned")
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
