"""The parts of the probe, each alone: samples, weights in memory, the writer, options."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from hardware_profiles.schema_base import MOST_UNCERTAINTY
from moeplan.errors import InputError
from moeplan.strict_yaml import load_mapping
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.op_clock import OpClock
from reference_runtime.probe.figures import contention_of
from reference_runtime.probe.in_situ import OPS, OpKey, ShutKey, layers_and_experts, op_seconds
from reference_runtime.probe.memory import ZERO_FRAC, ExpertPool, WeightArena
from reference_runtime.probe.plan import FEWEST_SECONDS, make_plan
from reference_runtime.probe.products import RowKey, expert_cases
from reference_runtime.probe.rows import kernel_times, rest_times
from reference_runtime.probe.sampling import (
    UNKNOWN_SPREAD,
    Samples,
    drift_frac,
    factor_80,
    log_spread,
    repeated,
    spread_frac,
    trimmed_mean,
    uncertainty,
)
from reference_runtime.probe.sharing import SharedKey
from reference_runtime.probe.writer import profile_yaml
from reference_runtime.streaming.direct_reads import page_aligned
from simulator.model.catalog import load_model_spec
from simulator.model.size import expert_bytes

LAYER_OPS = ("router", "attention", "wait", "expert_ffn")
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0


def test_the_spread_holds_eighty_per_cent_however_few_the_rounds() -> None:
    """
    Of values whose logarithm has a standard deviation of 0.1 it is exp(1.28 x 0.1) - 1; in the mean over many takes of
    few values it stays within a tenth of that, where the values' own quantiles would give two thirds.
    """
    wanted = math.expm1(1.2816 * 0.1)
    assert spread_frac([math.exp(-0.1), 1.0, math.exp(0.1)]) == pytest.approx(wanted, rel=1e-4)
    takes = np.exp(np.random.default_rng(0).normal(0, 0.1, (2000, 4)))
    assert np.mean([spread_frac(take) for take in takes.tolist()]) == pytest.approx(wanted, rel=0.1)
    assert log_spread([3.0]) == UNKNOWN_SPREAD
    assert spread_frac([3.0]) == factor_80(UNKNOWN_SPREAD)


def test_independent_spreads_add_in_squares_and_never_vanish() -> None:
    """3 and 4 make 5; nothing is better known than the floor."""
    assert uncertainty(0.3, 0.4) == 0.5
    assert uncertainty(0.0, 0.0) > 0


def test_figures_of_a_busy_machine_are_written_as_unknown() -> None:
    """No spread is above what a profile takes, so a probe that was disturbed keeps all its other figures."""
    assert uncertainty(29.3) == factor_80(9.0) == MOST_UNCERTAINTY
    assert log_spread([1e-9, 1.0, 1e9]) == MOST_UNCERTAINTY


def test_drift_is_what_all_cases_have_in_common() -> None:
    """Rounds that are slow for every case count, a case's own noise averages out."""
    samples = Samples()
    for factor in (1.0, 1.0, 1.5, 1.5):
        samples.add("a", factor)
        samples.add("b", 3 * factor)
    assert drift_frac(samples, ["a", "b"]) > 0.15
    for value in (1.0, 1.1, 1.0, 1.1):
        samples.add("c", value)
        samples.add("d", 1 / value)
    assert drift_frac(samples, ["c", "d"]) < 0.02


def test_a_speed_beside_reads_is_not_lowered_by_its_noise() -> None:
    """Samples around 1 give 1 and not less; the mean itself is never above 1, the spread is that of the samples."""
    samples = Samples()
    for of, values in (("compute", [0.9, 1.0, 1.1, 1.0]), ("read", [1.2, 1.3, 1.25])):
        samples.values[SharedKey(of)] = values
    found = contention_of(samples)
    assert found["compute_speed"]["value"] == found["read_speed"]["value"] == 1.0
    assert found["compute_speed"]["uncertainty"] == uncertainty(spread_frac([0.9, 1.0, 1.1, 1.0]))
    samples.values[SharedKey("compute")] = [0.7, 0.8, 0.9]
    assert contention_of(samples)["compute_speed"]["value"] == pytest.approx(0.8)


@pytest.mark.parametrize("n", [8, 128])
def test_the_experts_of_a_chunk_are_checked(n: int) -> None:
    """
    Where an expert costs 20 us and 3 us a token, a chunk's cost is known: each of its experts that is chosen at all,
    every choice, and the row.  A chunk that took twice as long says that its parts take half; no row comes of it.
    """
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    spec = plan.shapes[0]
    plan, n_bytes = replace(plan, shapes=(spec,)), expert_bytes(spec)
    assert spec.experts is not None
    n_experts, top_k = layers_and_experts(spec, plan.arena_bytes)[1], spec.experts.top_k
    assert n_experts == spec.experts.n_experts
    n_chosen = n_experts * (1 - (1 - top_k / n_experts) ** n)
    known_s = 20e-6 * n_chosen + 3e-6 * n * top_k
    samples = Samples()
    samples.add(ShutKey(spec.name, 1), 0.5)
    for op in OPS:
        samples.add(OpKey(spec.name, op, 1, 1), 7e-6)  # no product explains it: of the FFN it is the row
        samples.add(OpKey(spec.name, op, n, 1), 2 * (known_s + 7e-6))
    tensor_type = spec.tensor_types.experts
    products = {
        RowKey("experts_chunk", tensor_type, n_bytes, load, 0.0, plan.arena_bytes, 1): (20 + 3 * load) * 1e-6
        for load in (1, 64)
    }
    times, off = rest_times(plan, samples, products)
    assert [(one.op, one.n_tokens) for one in off] == [("expert_ffn", n)]
    assert off[0].frac == pytest.approx(-0.5, abs=1e-6)
    assert {key.op for key in times} == {"router", "attention_rest", "step", "row", "row_wait"}


def test_a_sampler_gives_the_seconds_of_one_call() -> None:
    """However often the call is repeated."""
    calls = []
    sample = repeated(lambda: calls.append(sum(range(2000))), sample_s=0.002)
    first = sample()
    n_first = len(calls)
    second = sample()
    assert 0 < first < 0.002
    assert 0 < second < 0.002
    assert len(calls) > n_first >= 3


@pytest.mark.parametrize("kind", [Q4_0, Q8_0])
def test_experts_shut_just_the_share_that_the_row_says(kind: GGMLQuantizationType) -> None:
    """The kernel itself counts the zero gates: none of the open input, ZERO_FRAC of the sparse one."""
    spec = load_model_spec("tiny-smallthinker")
    assert spec.experts is not None
    pool, kernels = ExpertPool(spec, kind, page_aligned(2**20)), FastKernels(1)
    pool.fill()
    assert len(pool.experts) > 16
    for column, share in ((1, 0.0), (0, ZERO_FRAC)):
        z = np.zeros((1, spec.hidden_size), np.float32)
        z[0, column] = 1
        for row in pool.rows(4, 2**20):
            mixed, ids = np.zeros_like(z), np.arange(4)[None]
            n_zero = kernels.add_experts(mixed, z, list(enumerate(row)), ids, np.full((1, 4), 0.25, np.float32), "relu")
            assert n_zero == round(share * 4 * spec.experts.ffn_size)
            assert np.isfinite(mixed).all()


def test_a_cycle_stays_in_its_working_set_and_visits_all_of_it() -> None:
    """Matrices follow one another and come again after the working set."""
    arena = WeightArena(2**20)
    following = arena.cycle(Q8_0, (64, 96), 2**16)
    n = 2**16 // (64 * 102 + 64)
    addresses = [following().data.ctypes.data for _ in range(3 * n)]
    assert max(addresses) - min(addresses) <= 2**16
    assert len(set(addresses)) >= n
    assert np.isfinite(following().float32()).all()


def test_every_case_of_a_row_has_its_own_key() -> None:
    """Two cases with one key would mix their samples."""
    plan = make_plan(Path(), FEWEST_SECONDS, [1])
    pool = ExpertPool(plan.shapes[0], Q8_0, page_aligned(2**20))
    cases = expert_cases(plan, plan.shapes[0], Q8_0, pool, FastKernels(1))
    assert len({case.key for case in cases}) == len(cases) == 12 + 15  # rows of one token, experts of a chunk


def test_operations_are_means_over_the_steps_that_count() -> None:
    """Two steps, the first left out: an operation runs from the mark before it, and layers count one by one."""
    clock = OpClock()
    clock.marks = [
        ("start", 1, 0.0), ("embedding", -1, 5.0), ("lm_head", -1, 9.0),
        ("start", 1, 10.0), ("embedding", -1, 11.0),
        ("router", 0, 13.0), ("attention", 0, 14.0), ("wait", 0, 15.0), ("expert_ffn", 0, 16.0),
        ("router", 1, 20.0), ("attention", 1, 21.0), ("wait", 1, 24.0), ("expert_ffn", 1, 25.0), ("lm_head", -1, 30.0),
    ]  # fmt: skip
    wanted = {"embedding": 1.0, "router": 3.0, "attention": 1.0, "wait": 2.0, "expert_ffn": 1.0, "lm_head": 5.0}
    assert op_seconds(clock, 1) == wanted


def test_a_hiccup_in_one_step_is_no_part_of_an_operation() -> None:
    """Layers differ, so not their own times are trimmed but how far a step is from its layer's median."""
    clock, now = OpClock(), 0.0
    for step in range(10):
        clock.start(1)
        clock.marks[-1] = ("start", 1, now)
        for op, layer in (("embedding", -1), *((op, layer) for layer in (0, 1) for op in LAYER_OPS), ("lm_head", -1)):
            now += 1.0 + (layer == 1) + 50.0 * (step == 4 and op == "attention" and layer == 0)
            clock.marks.append((op, layer, now))
    seconds = op_seconds(clock, 0)
    assert seconds["router"] == seconds["attention"] == pytest.approx(1.5)


def test_what_is_trimmed() -> None:
    """A tenth at each end, one value at least of three and more; the mean of the rest, not its median."""
    assert trimmed_mean([5.0]) == 5.0
    assert trimmed_mean([1.0, 2.0]) == 1.5
    assert trimmed_mean([1.0, 2.0, 100.0]) == 2.0
    assert trimmed_mean([0.0, *[1.0] * 14, *[2.0] * 4, 99.0]) == pytest.approx((1.0 * 13 + 2.0 * 3) / 16)


def test_times_become_what_the_simulator_reads() -> None:
    """A row that is looked up at its own point gives its own time."""
    from hardware_profiles.kernel_table import Call

    times = {RowKey("gemv", "q8_0", size, 1, 0.0, 2**20, 1): size * 1e-9 for size in (1000, 4000)}
    kernels = kernel_times(times, 1)
    assert kernels.seconds(Call("gemv", "q8_0", 4000, working_set=2**20)) == pytest.approx(4e-6)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """Texts that look like other things stay texts, long ones are folded and come back whole, numbers stay numbers."""
    profile = {
        "schema_version": 1,
        "name": "a-b",
        "notes": "word: " * 60 + '"quoted" # no comment',
        "odd": {"a": "1.5", "b": "true", "c": "null", "d": "1e5", "e": "x: y", "f": "", "g": "2020-01-02", "h": "f32"},
        "numbers": {"a": 0.02, "b": 1e-7, "c": 12345678901, "d": False, "e": 0.0},
        "rows": [{"op": "gemv", "type": "f32", "time": "12.5 us"}, {"op": "x", "type": "1 MiB", "time": "a, b}"}],
    }
    path = tmp_path / "profile.yaml"
    path.write_text(profile_yaml(profile, "first line"), "utf-8")
    assert load_mapping(path)[0] == profile
    assert max(map(len, path.read_text().splitlines())) <= 120


@pytest.mark.parametrize(
    ("seconds", "threads", "words"),
    [(1.0, [1], "--seconds"), (1e9, [1], "--seconds"), (30.0, [0], "--threads"), (30.0, [9999], "--threads")],
)
def test_what_cannot_be_measured_is_refused(seconds: float, threads: list[int], words: str) -> None:
    """Before anything is written."""
    with pytest.raises(InputError, match=words):
        make_plan(Path(), seconds, threads)
