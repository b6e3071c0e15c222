"""The routing of another top-k is the same in a plan and in a sweep: rows cut, or a trace adapted for that top-k."""

from dataclasses import replace

import numpy as np
import pytest
from test_sweep_rows import DEVICES, GIB, INPUTS, MODEL, PROFILES, TRACES

from simulator.inverse.limits import top_k_limit
from simulator.inverse.speeds import Speeds
from simulator.model.catalog import load_model_spec
from simulator.question import Question
from simulator.result import SweepRow
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.rows import ChunkRunner
from simulator.sweeps.scenarios import Inputs, chunks
from traces.synthetic import adapt, can_adapt, cut_rows

LARGE = "smallthinker-21b-a3b"
N_SAMPLES = 3


def swept(model: str, top_ks: tuple[int, ...], cap_bytes: int, **settings: bool) -> list[SweepRow]:
    """The rows of a sweep over top-k."""
    axes = {"model": (model,), "hardware": DEVICES[:1], "trace": ("four",), "ram_cap": (cap_bytes,), "top_k": top_ks}
    definition = SweepDefinition(axes, n_samples=N_SAMPLES, **settings)  # type: ignore[arg-type]
    runner = ChunkRunner(definition, Inputs({model: load_model_spec(model)}, PROFILES, TRACES))
    return [item.row for chunk in chunks(definition) for item in runner.rows(chunk)]


@pytest.mark.parametrize("top_k", [3, 7])
def test_an_adapted_trace_is_adapted_anew_for_every_top_k(top_k: int) -> None:
    """A plan's limit has the sweep's speed, below and above the model's own top-k, and says what was done."""
    (row,) = swept(LARGE, (top_k,), 4 * GIB, adapt_trace=True)
    model = load_model_spec(LARGE)
    assert model.experts is not None
    trace = adapt(TRACES["four"], layer_ids=model.moe_layer_ids, n_experts=64, top_k=model.experts.top_k)
    question = Question(model, PROFILES[DEVICES[0]], trace, 4 * GIB, recorded=TRACES["four"])
    limit = top_k_limit(Speeds(question, N_SAMPLES), row.tokens_per_s * (1 - 1e-9))
    assert limit.tokens_per_s is not None
    assert (limit.value, limit.tokens_per_s.value) == (top_k, pytest.approx(row.tokens_per_s, rel=1e-9))
    assert "the recorded trace, adapted for that top-k" in limit.note
    assert f"4 a token, to 52 x 64, {top_k} a token" in row.warnings


def test_a_recorded_row_is_cut_to_its_first_experts() -> None:
    """A trace of the model's shape needs no leave to be cut; plan and sweep agree, and both say so."""
    one, two, six = swept(MODEL, (1, 2, 6), GIB)
    question = Question(INPUTS.models[MODEL], PROFILES[DEVICES[0]], TRACES["four"], GIB)
    for row in (one, two):
        limit = top_k_limit(Speeds(question, N_SAMPLES), row.tokens_per_s * (1 - 1e-9))
        assert limit.tokens_per_s is not None
        assert (limit.value, limit.tokens_per_s.value) == (row.top_k, pytest.approx(row.tokens_per_s, rel=1e-9))
        assert "the first experts of each recorded row" in limit.note
        assert f"The trace was cut: each row of 4 experts to its first {row.top_k}" in row.warnings
    assert six.verdict == "failed"
    assert "must have the routing shape" in six.reason


def test_every_block_of_experts_is_used_whatever_the_top_k() -> None:
    """An uneven top-k uses no half of the experts less than a third of the time, and rows stay distinct and alike."""
    trace = TRACES["four"]
    for top_k in range(1, 9):
        ids = adapt(trace, layer_ids=tuple(range(52)), n_experts=64, top_k=top_k).expert_ids
        assert (np.diff(np.sort(ids, axis=2), axis=2) > 0).all()
        assert 1 / 3 < (ids < 32).mean() < 2 / 3
    assert can_adapt(trace, n_experts=64, top_k=8)
    assert not can_adapt(trace, n_experts=64, top_k=9)
    assert not can_adapt(trace, n_experts=48, top_k=2)
    assert not can_adapt(trace, n_experts=16, top_k=2)


def test_the_surplus_of_an_uneven_top_k_has_a_recordings_locality() -> None:
    """Where every token of a recording routes alike, every token of the adapted trace does."""
    still = replace(TRACES["four"], expert_ids=np.repeat(TRACES["four"].expert_ids[:1], 60, axis=0))
    ids = adapt(still, layer_ids=tuple(range(52)), n_experts=64, top_k=3).expert_ids
    assert (ids == ids[0]).all()


def test_a_trace_of_the_same_shape_is_cut_and_labelled_as_cut() -> None:
    """It is no stand-in of another shape."""
    trace = TRACES["four"]
    cut = adapt(trace, layer_ids=trace.header.layer_ids, n_experts=32, top_k=2)
    assert np.array_equal(cut.expert_ids, trace.expert_ids[:, :, :2])
    assert "adapted" not in cut.header.conditions
    assert cut.header == cut_rows(trace, 2, trace.header.layer_ids).header
