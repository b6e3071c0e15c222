"""Speeds of many variations in closed form: the numbers of the engine, draws included; and what is proven over them."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import make_trace, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from inverse_questions import N_SAMPLES, PROFILES, questions, quick, simulated

from simulator.closed_form.drawn_device import read_tables
from simulator.expert_layout import ExpertLayout
from simulator.inverse.caps import cap_runs
from simulator.inverse.proofs import more_slots_never_slower
from simulator.inverse.speeds import Speeds
from simulator.miss_costs import read_table
from simulator.policies import OFFLINE_POLICIES, POLICIES
from simulator.question import Question, drawn_devices
from simulator.simulate import simulate


@quick
@given(questions(policies=(*POLICIES, *OFFLINE_POLICIES)), st.booleans())
def test_speeds_are_those_of_simulate(question: Question, resident: bool) -> None:
    """Central value and both ends of the interval, with the same draws, for any policy, layout and what-if."""
    if resident:
        question = replace(question, ram_cap_bytes=2**23)
    found = Speeds(question, N_SAMPLES).interval(question)
    wanted = simulate(question, engine="fast", n_samples=N_SAMPLES, seed=0).tokens_per_s
    assert simulated(question) == pytest.approx((0.0, 0.0) if wanted is None else (wanted.value, wanted.low), rel=1e-9)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found.value == pytest.approx(wanted.value, rel=1e-9)
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-9)


def test_fifo_can_be_slower_with_more_ram() -> None:
    """Belady's anomaly on one layer: why such policies are not bisected."""
    reads = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]
    trace = make_trace([[[expert]] for expert in reads], 6)
    model = tiny_model(1, 6, 1)
    question = Question(model, PROFILES[0], trace, cache_policy="fifo", start="cold")
    caps = cap_runs(Speeds(question), question)[-1]
    three, four = (Speeds(question).n_misses(replace(question, ram_cap_bytes=caps[slots])) for slots in (3, 4))
    assert (three, four) == (9, 10)
    assert not more_slots_never_slower(Speeds(question), question)
    assert more_slots_never_slower(Speeds(question), replace(question, cache_policy="lru"))


@given(
    st.sampled_from(PROFILES), st.sampled_from([1, 3]), st.sampled_from([4096, 2**21, 5 * 2**20]), st.floats(0.1, 30)
)
def test_reads_of_all_draws_at_once_are_those_of_each(profile, n_requests: int, size: int, factor: float) -> None:
    """Side by side in arrays, bit for bit at the storage's own speed, and at any other speed of it."""
    question, layout = Question(tiny_model(), profile), ExpertLayout("bundle", n_requests, size)
    rates = [drawn for drawn, _ in drawn_devices(question, 6, 0)]
    own = read_tables([one.storage for one in rates], layout, 5)
    assert (own == np.array([read_table(one, layout, 5) for one in rates])).all()
    faster = [replace(one, storage=one.storage.at_read_rate(factor, 1.0)) for one in rates]
    wanted = np.array([read_table(one, layout, 5) for one in faster])
    assert read_tables([one.storage for one in rates], layout, 5, factor) == pytest.approx(wanted, rel=1e-12)
