"""Design for a device: shapes at a fixed size, routing that says where it comes from, and where the check holds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_line, random_trace, tiny_model

from hardware_profiles.catalog import load_profile
from moeplan.errors import InputError
from simulator.engine_fast import FastEngine, simulate_fast
from simulator.interval import N_SAMPLES
from simulator.inverse.design import Routing, design
from simulator.inverse.routing import NO_LOCALITY, Locality, locality_of, made_up, routing_for
from simulator.inverse.shapes import Wish, active_params, shapes
from simulator.inverse.speeds import Speeds
from simulator.inverse.storage_grid import rate_grid
from simulator.model import size as model_size
from simulator.model.catalog import load_model_spec
from simulator.plan_result import DesignResult
from simulator.question import Question, device_rates, draw_gate_sparsity, prepare, with_what_ifs
from simulator.simulate import hidden_frac, simulate
from traces.statistics import adjacent_overlap
from traces.synthetic import synthesize

LIKE = load_model_spec("smallthinker-4b-a0.6b")
SOME = Locality(0.5, 0.2, "a test")
GIB = 2**30


def shape(model) -> tuple[int, int, int]:
    """(n_experts, top_k, ffn_size)."""
    return model.experts.n_experts, model.experts.top_k, model.experts.ffn_size


def test_a_model_is_found_again_from_its_own_size() -> None:
    """N and A of the 4B with its own width give its own shape; the other widths come as near as whole numbers can."""
    n, a = model_size.n_params(LIKE), active_params(LIKE)
    assert [shape(model) for model in shapes(Wish(LIKE, n, a, ffn_size=(768,)))] == [(32, 4, 768)]
    assert (32, 4, 768) in [shape(model) for model in shapes(Wish(LIKE, n, a))]
    for model in shapes(Wish(LIKE, n, a)):
        assert model_size.n_params(model) == pytest.approx(n, rel=0.05)
        assert active_params(model) == pytest.approx(a, rel=0.05)
        assert shape(model)[2] % 32 == 0


def test_what_is_held_says_what_is_free() -> None:
    """N alone: top-k and width are free; A alone: experts and width; neither: all three, which must be given."""
    by_size = shapes(Wish(LIKE, 4e9, top_k=(2, 4), ffn_size=(512, 768)))
    assert [shape(model) for model in by_size] == [(32, 2, 768), (32, 4, 768), (48, 2, 512), (48, 4, 512)]
    by_active = shapes(Wish(LIKE, None, 0.63e9, n_experts=(16, 64), ffn_size=(768, 384)))
    assert {shape(model)[1:] for model in by_active} == {(4, 768), (8, 384)}
    free = shapes(Wish(LIKE, n_experts=(8,), top_k=(2,), ffn_size=(64, 96)))
    assert [shape(model) for model in free] == [(8, 2, 96), (8, 2, 64)]
    sizes = [model_size.expert_bytes(model) for model in by_size]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        (Wish(LIKE), "must have --params, --active or both"),
        (Wish(LIKE, 4e9, n_experts=(8,)), "--n-experts: must be left out with --params"),
        (Wish(LIKE, None, 6e8, top_k=(8,)), "--top-k: must be left out with --active"),
        (Wish(LIKE, 4e9, 6e8, top_k=(4,), ffn_size=(768,)), "--ffn-size: must be left out"),
        (Wish(LIKE, 4e9, 6e8, top_k=(4, 24)), "--top-k: must each leave a shape within 5% of .*, got 24;"),
        (Wish(LIKE, 1e6), "must leave a shape within 5% of 1.00 M parameters"),
        (Wish(load_model_spec("qwen3-0.6b"), 4e9), "--like: must be a model with experts"),
    ],
)
def test_wishes_that_contradict_themselves_are_refused(wish: Wish, complaint: str) -> None:
    """One line that names the option."""
    with pytest.raises(InputError, match=complaint):
        shapes(wish)


@pytest.mark.parametrize("top_k", [2, 4, 5, 7])
def test_a_top_k_that_is_asked_for_is_kept(top_k: int) -> None:
    """With both sizes fixed the width follows from it, and no other top-k comes back."""
    found = shapes(Wish(LIKE, 4e9, 0.63e9, top_k=(top_k,)))
    assert {shape(model)[1] for model in found} == {top_k}


@pytest.fixture(scope="module")
def question() -> Question:
    """The Raspberry Pi with 700 MiB and a fast drive."""
    profile = load_profile("raspberry-pi-5-nvme")
    return Question(LIKE, profile, ram_cap_bytes=700 * 2**20, storage_read_bytes_per_s=2e9)


@pytest.fixture(scope="module")
def answer(question: Question) -> DesignResult:
    """A few shapes of 4 B parameters."""
    wish = Wish(LIKE, 4e9, top_k=(2,), ffn_size=(64, 128, 768))
    return design(wish, question, Routing(None, SOME), target_tokens_per_s=20.0)


def test_a_design_is_the_simulation_of_its_shape(question: Question, answer: DesignResult) -> None:
    """Speed, hit rate, share of hidden reads and mean times are those of the other engines on the same routing."""
    models = shapes(Wish(LIKE, 4e9, top_k=(2,), ffn_size=(64, 128, 768)))
    for model, found in zip(models, answer.designs, strict=True):
        assert (found.n_experts, found.top_k, found.ffn_size) == shape(model)
        asked = replace(question, model=model, trace=made_up(model, SOME, 0))
        result = simulate(asked, engine="fast", n_samples=N_SAMPLES)
        assert result.tokens_per_s is not None
        assert found.tokens_per_s is not None
        assert found.tokens_per_s.value == pytest.approx(result.tokens_per_s.value, rel=1e-9)
        assert found.tokens_per_s.low == pytest.approx(result.tokens_per_s.low, rel=1e-9)
        scenario = prepare(asked).scenario
        assert scenario is not None
        timeline, counted = simulate_fast(scenario), scenario.is_counted
        assert found.hidden_frac == pytest.approx(hidden_frac(timeline, counted), abs=1e-12)
        has_miss = timeline.n_misses[counted] > 0
        assert found.t_prefetch_s == pytest.approx(timeline.prefetch_s[counted][has_miss].mean())
        assert found.t_attention_s == pytest.approx(timeline.attention_s[counted][has_miss].mean())
        assert result.cache is not None
        assert found.hit_rate == pytest.approx(result.cache.hit_rate)


def test_smaller_experts_are_hidden_sooner(answer: DesignResult) -> None:
    """At fixed N and top-k a smaller expert is less to read: more is hidden, a slower storage will do."""
    shares = [design.hidden_frac or 0.0 for design in answer.designs]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] > 0.9
    rates = [design.holds_from_bytes_per_s or np.inf for design in answer.designs]
    assert rates == sorted(rates, reverse=True)


def test_it_holds_from_the_storage_that_is_named_and_not_below(question: Question, answer: DesignResult) -> None:
    """The rate is the least of the grid: one percent and a half slower falls short."""
    found = answer.designs[-1]
    model = shapes(Wish(LIKE, 4e9, top_k=(2,), ffn_size=(64,)))[0]
    rate = found.holds_from_bytes_per_s
    assert rate is not None
    for factor, holds in ((1.0, True), (1 / 1.015, False)):
        asked = replace(question, model=model, trace=made_up(model, SOME, 0), storage_read_bytes_per_s=rate * factor)
        scenario = prepare(asked).scenario
        assert scenario is not None
        assert (hidden_frac(simulate_fast(scenario), scenario.is_counted) >= answer.holds_frac) == holds


def test_a_design_that_cannot_run_stands_there_all_the_same(question: Question) -> None:
    """A cap below the dense part: no speed, and the arithmetic, which says how small the activations were made."""
    poor = replace(question, ram_cap_bytes=100 * 2**20)
    found = design(Wish(LIKE, 4e9, top_k=(2,), ffn_size=(768,)), poor, Routing(None, SOME)).designs[0]
    assert (found.verdict, found.tokens_per_s) == ("cannot_run", None)
    assert "are missing" in found.reason
    assert "(prompts 1 token at a time)" in found.reason


def test_a_shape_with_more_experts_than_a_pass_takes_is_a_row(
    question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are simulated; where nothing can miss, no pass is needed."""
    monkeypatch.setattr("simulator.inverse.design.MAX_KEYS", 32 * 100)
    monkeypatch.setattr("simulator.cache_passes.rows.MAX_KEYS", 32 * 100)
    wish = Wish(LIKE, 4e9, top_k=(2,), ffn_size=(64, 768))
    large, many = design(wish, question, Routing(None, SOME)).designs
    assert (large.verdict, many.verdict) == ("streams", "failed")
    assert "which a pass over a trace cannot tell apart" in many.reason
    assert (many.tokens_per_s, many.hidden_frac) == (None, None)
    rich = design(wish, replace(question, ram_cap_bytes=4 * GIB), Routing(None, SOME)).designs
    assert [found.verdict for found in rich] == ["resident", "resident"]


def test_the_cautious_share_and_speed_are_those_of_a_scan(question: Question, answer: DesignResult) -> None:
    """The low end of the share over the same draws; the first rate of the grid whose low end is enough."""
    found = answer.designs[1]
    model = shapes(Wish(LIKE, 4e9, top_k=(2,), ffn_size=(128,)))[0]
    asked = replace(question, model=model, trace=made_up(model, SOME, 0))
    speeds, rng = Speeds(asked), np.random.default_rng(0)
    scenario = prepare(asked).scenario
    assert scenario is not None
    engine, shares = FastEngine(scenario), []
    for _ in range(N_SAMPLES):
        rates = device_rates(asked, rng)
        draw_gate_sparsity(asked, rng)
        shares.append(hidden_frac(engine.timeline(with_what_ifs(asked, rates)), scenario.is_counted))
    assert found.hidden_low_frac == pytest.approx(min(found.hidden_frac or 0, np.quantile(shares, 0.1)), abs=1e-9)
    rates_tried = [r for r in rate_grid(question.profile.ram.gemv_bandwidth.value) if r > 5e8]
    ends = [speeds.hidden_frac(replace(asked, storage_read_bytes_per_s=rate)) for rate in rates_tried[::9]]
    lows = [0.0 if end is None else end.low for end in ends]
    assert lows == sorted(lows)
    first = next((r for r, low in zip(rates_tried[::9], lows, strict=True) if low >= answer.holds_frac), None)
    assert (first is None) == (found.holds_safely_from_bytes_per_s is None)
    if first is not None and found.holds_safely_from_bytes_per_s is not None:
        assert first / 1.1 <= found.holds_safely_from_bytes_per_s <= first
        assert found.holds_safely_from_bytes_per_s >= (found.holds_from_bytes_per_s or 0)


def test_without_misses_there_is_nothing_to_hide(question: Question) -> None:
    """All experts in RAM: hidden_frac is None and no storage is asked for."""
    rich = replace(question, ram_cap_bytes=4 * GIB)
    found = design(Wish(LIKE, 4e9, top_k=(2,), ffn_size=(768,)), rich, Routing(None, SOME)).designs[0]
    assert (found.verdict, found.hidden_frac, found.holds_from_bytes_per_s) == ("resident", None, None)


def test_a_trace_is_replayed_where_it_fits_and_made_up_elsewhere() -> None:
    """The same trace, the head of its rows, or routing of the stated locality on the same prompts and positions."""
    trace, model = random_trace(0, 40, 3, 8, 2, n_prefill=8), tiny_model()
    assert routing_for(model, trace, SOME) is trace
    one = routing_for(tiny_model(top_k=1), trace, SOME)
    assert np.array_equal(one.expert_ids, trace.expert_ids[:, :, :1])
    for other in (tiny_model(top_k=3), tiny_model(n_experts=16), tiny_model(n_layers=4)):
        made = routing_for(other, trace, SOME)
        assert "synthetic" in made.header.conditions
        assert np.array_equal(made.phase, trace.phase)
        assert np.array_equal(made.position, trace.position)
        assert made.expert_ids.shape == (40, other.n_moe_layers, shape(other)[1])


def test_locality_is_measured_so_that_made_up_routing_overlaps_as_much() -> None:
    """A trace made up with the figures of another has its overlap of adjacent tokens; without locality it is chance."""
    recorded = synthesize(
        n_tokens=400, n_prefill=0, n_moe_layers=4, n_experts=32, top_k=4, zipf=0.6, repeat_frac=0.3, seed=3
    )
    model = tiny_model(4, 32, 4)
    again = made_up(model, locality_of(recorded), 1)
    assert adjacent_overlap(again) == pytest.approx(adjacent_overlap(recorded), abs=0.03)
    assert adjacent_overlap(made_up(model, NO_LOCALITY)) == pytest.approx(4 / 32, abs=0.02)


COMMAND = ["design", "--hardware", "raspberry-pi-5-nvme", "--params", "4B", "--top-k", "2", "--ffn-size", "64,768"]


def test_the_command_says_where_it_holds(moeplan, tmp_path: Path) -> None:
    """A decision line, every shape, a page; the JSON has the same designs."""
    report = tmp_path / "design.html"
    more = ["--ram-cap", "700MiB", "--storage-read", "2GB/s", "--target-tokens-per-s", "20"]
    told = moeplan(*COMMAND, *more, "--output", str(report))
    assert told.status == 0
    assert "Attention hides the reads of experts of up to 162 KiB" in told.out
    assert "Likely: 1 of 2 designs reach 20 tokens/s" in told.out
    assert "made up for each shape: zipf 0.42, repeat 0.09" in " ".join(told.out.split())
    page = report.read_text(encoding="utf-8")
    assert "Attention hides the reads of experts of up to 162 KiB" in page
    assert "data:image/svg+xml" in page
    answer = json.loads(moeplan(*COMMAND, *more, "--json").out)
    assert [row["n_experts"] for row in answer["designs"]] == [32, 378]
    assert answer["designs"][0]["hidden_frac"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--params", "four"], ("--params", "4B or 600M")),
        (["--ffn-size", "100"], ("--ffn-size", "multiples of 32")),
        (["--top-k", "2,x"], ("--top-k", "whole numbers")),
        (["--holds", "1.5"], ("--holds",)),
        (["--target-tokens-per-s", "-1"], ("--target-tokens-per-s",)),
    ],
)
def test_wrong_options_are_one_line(moeplan, options: list[str], words: tuple[str, ...]) -> None:
    """Exit status 2 and the option's name."""
    assert_one_line(moeplan("design", "--hardware", "rk3588", "--params", "4B", *options), *words)


def test_a_router_after_attention_hides_nothing_and_says_so(moeplan) -> None:
    """Qwen's own router is late; with an early one the same shape is faster, and the warning goes."""
    base = ["design", "--hardware", "rk3588", "--like", "qwen3-30b-a3b", "--params", "30B", "--top-k", "8"]
    base += ["--ffn-size", "768", "--ram-cap", "8GiB", "--json"]
    late, early = (json.loads(moeplan(*base, *more).out) for more in ([], ["--router", "pre-attention"]))
    assert any("router runs after attention" in text for text in late["warnings"])
    assert not any("router runs after attention" in text for text in early["warnings"])
    assert early["designs"][0]["tokens_per_s"]["value"] > late["designs"][0]["tokens_per_s"]["value"]
    assert_one_line(moeplan(*base, "--router", "beside"), "--router", "pre-attention or post-attention")


def test_a_design_that_takes_more_ram_than_the_device_leaves_is_marked(question: Question) -> None:
    """What streams fills the larger cap; what fits whole into less runs there as bought; and the cap is told once."""
    ram = question.profile.ram.model_copy(update={"size": 3 * 2**30})  # 2.2 GiB are left
    small = replace(question, profile=question.profile.model_copy(update={"ram": ram}), ram_cap_bytes=5 * 2**29)
    wish = Wish(LIKE, n_experts=(8, 48), top_k=(2,), ffn_size=(768,))
    found = design(wish, small, Routing(None, SOME))
    assert {one.n_experts: one.is_beyond_device for one in found.designs} == {8: False, 48: True}
    assert found.larger_cap.startswith("The RAM cap of 2.50 GiB is more than the 2.20 GiB that this device leaves")
    assert not any("RAM cap" in text for text in found.warnings)
    assert not design(wish, replace(small, ram_cap_bytes=2**30), Routing(None, SOME)).larger_cap
