"""The planner and the sweep: changes said to reach the target do, with the least change, ordered by cost."""

from dataclasses import replace

import pytest

from hardware_profiles.catalog import load_profile
from moeplan.errors import InputError
from moeplan.quantity import format_bytes
from simulator.inverse.changes import RamSearch, ram_and_storage
from simulator.inverse.speeds import Speeds
from simulator.model.catalog import load_model_spec
from simulator.plan_result import PlanResult
from simulator.planner import default_grid, plan
from simulator.question import Question, prepare
from simulator.simulate import simulate
from simulator.sweeps.in_memory import Grid, round_caps, round_rates, sweep
from traces.synthetic import synthesize

GIB = 2**30


@pytest.fixture(scope="module")
def question() -> Question:
    """The 4B on a Raspberry Pi 5 with NVMe at 1 GiB."""
    trace = synthesize(
        n_tokens=60, n_prefill=10, n_moe_layers=32, n_experts=32, top_k=4, zipf=0.8, repeat_frac=0.4, seed=1
    )
    model, profile = load_model_spec("smallthinker-4b-a0.6b"), load_profile("raspberry-pi-5-nvme")
    return Question(model, profile, trace, ram_cap_bytes=GIB)


@pytest.fixture(scope="module")
def answer(question: Question) -> PlanResult:
    """A plan for 8 tokens/s, which storage or RAM can reach."""
    return plan(question, 8.0, engine="fast")


def value(question: Question) -> float:
    """Central tokens/s of a question, 0 where it cannot run."""
    speed = simulate(question, engine="fast", n_samples=0).tokens_per_s
    return 0.0 if speed is None else speed.value


def test_the_least_ram_reaches_and_one_expert_less_does_not(question: Question, answer: PlanResult) -> None:
    """Bisection over slots ends at the edge."""
    change = next(c for c in answer.changes if c.what == "RAM cap")
    assert change.reaches
    cap = round(change.ratio * GIB)
    assert value(replace(question, ram_cap_bytes=cap)) >= 8.0
    assert value(replace(question, ram_cap_bytes=cap - 1_990_656)) < 8.0


def test_the_least_storage_speed_reaches_and_two_percent_less_does_not(question: Question, answer: PlanResult) -> None:
    """Bisection over the factor ends at the edge, to its precision."""
    change = next(c for c in answer.changes if c.what == "storage read")
    assert change.reaches
    current = default_grid(question).storage_reads_bytes_per_s
    base = next(r for r in current if r == pytest.approx(419e6, rel=0.01))
    assert value(replace(question, storage_read_bytes_per_s=base * change.ratio)) >= 8.0
    assert value(replace(question, storage_read_bytes_per_s=base * change.ratio / 1.02)) < 8.0


def test_changes_that_reach_come_first_and_settings_before_hardware(answer: PlanResult) -> None:
    """What costs nothing is offered before what must be bought; what does not reach comes last."""
    reaches = [change.reaches for change in answer.changes]
    assert reaches == sorted(reaches, reverse=True)
    hardware = [c.ratio for c in answer.changes if c.reaches and c.what in ("RAM cap", "storage read")]
    assert hardware == sorted(hardware)


def test_three_changes_reach_a_target_between_the_extremes(answer: PlanResult, question: Question) -> None:
    """RAM alone, storage alone, and less of both together, which is not told where RAM alone is free."""
    reaching = {change.what for change in answer.changes if change.reaches}
    assert reaching >= {"RAM cap", "storage read"}
    assert "RAM cap and storage read" not in reaching
    both = ram_and_storage(RamSearch(Speeds(question, 5)), 8.0)
    assert both is not None
    assert both.tokens_per_s is not None
    assert both.tokens_per_s.value >= 8.0
    assert question.ram_cap_bytes == GIB


def test_storage_that_is_tried_with_more_ram_never_outruns_the_ram(question: Question) -> None:
    """Steps beyond the RAM's bandwidth are left out; where all are, so is the change."""
    peak = question.profile.ram.peak_bandwidth.value
    tried: list[float] = []

    class Watched(RamSearch):
        def least_bytes(self, question: Question, target: float) -> int | None:
            tried.append(question.storage_read_bytes_per_s or 0.0)
            return super().least_bytes(question, target)

    for share, factors in ((0.8, []), (0.6, [1.5]), (0.3, [1.5, 2.0, 3.0])):
        tried.clear()
        near = replace(question, storage_read_bytes_per_s=share * peak)
        ram_and_storage(Watched(Speeds(near, 0)), 8.0)
        assert tried == pytest.approx([factor * share * peak for factor in factors])


def test_settings_come_first_and_what_is_lossy_before_hardware(question: Question) -> None:
    """A target that prefetch and hardware both reach: the setting is offered first, what is lossy before hardware."""
    slow = replace(question, prefetch_policy="none")
    answer = plan(slow, (value(slow) + value(question)) / 2, engine="fast")
    places = {change.what: index for index, change in enumerate(answer.changes)}
    assert answer.changes[places["prefetch"]].reaches
    assert answer.changes[places["RAM cap"]].reaches
    assert places["prefetch"] < places["LM-head predictor"] < places["CPU and RAM speed"]
    assert "lossy" in answer.changes[places["LM-head predictor"]].note


def test_a_full_disk_asks_for_room(question: Question) -> None:
    """Where the file does not fit, the one change offered is free storage."""
    storage = question.profile.storage
    free = storage.free_space.model_copy(update={"value": 1e9})
    full = question.profile.model_copy(update={"storage": storage.model_copy(update={"free_space": free})})
    answer = plan(replace(question, profile=full), 3.0, engine="fast")
    assert answer.decision == "cannot_run"
    assert [change.what for change in answer.changes] == ["free storage"]
    assert answer.changes[0].reaches


def test_a_target_that_is_met_asks_for_no_change(question: Question) -> None:
    """Nothing to buy; a plain yes only where the hit rates are the model's own, or no hit rate matters."""
    easy = plan(question, 0.5, engine="fast")
    assert easy.changes == ()
    assert easy.decision == "likely"
    assert question.trace is not None
    own = replace(question.trace, header=replace(question.trace.header, model=question.model.name))
    assert plan(replace(question, trace=own), 0.5, engine="fast").decision == "yes"
    assert plan(replace(question, ram_cap_bytes=4 * GIB), 0.5, engine="fast").decision == "yes"


def test_more_ram_than_the_device_has_is_no_yes(question: Question) -> None:
    """A cap that takes more than the device leaves cannot run on it as bought; a cap that is merely larger can."""
    ram = question.profile.ram.model_copy(update={"size": 2 * GIB})
    small = replace(question, profile=question.profile.model_copy(update={"ram": ram}), ram_cap_bytes=4 * GIB)
    answer = plan(small, 0.5, engine="fast", n_samples=0)
    assert answer.decision == "cannot_run"
    assert answer.result.verdict == "resident"
    assert answer.result.tokens_per_s is not None
    resident = format_bytes(answer.result.memory.resident_bytes)
    wanted = f"has 2.00 GiB of RAM; its system keeps 819 MiB: 1.20 GiB are left, and this takes {resident}."
    assert answer.result.beyond_device.endswith(wanted)
    assert {row.reason for row in answer.grid if row.ram_cap_bytes == 4 * GIB} == {answer.result.beyond_device}
    roomy = plan(replace(question, ram_cap_bytes=100 * GIB), 0.5, engine="fast", n_samples=0)
    assert (roomy.decision, roomy.result.beyond_device) == ("yes", "")
    wanted = "The RAM cap of 100 GiB is more than the 7.20 GiB that this device leaves to a program; the model takes"
    assert roomy.result.larger_cap.startswith(wanted)
    assert roomy.result.larger_cap.endswith("of it and fits.")
    assert not answer.result.larger_cap
    assert not any("RAM cap" in warning for warning in (*roomy.result.warnings, *answer.result.warnings))


def test_an_impossible_target_is_said_to_be_out_of_reach(question: Question) -> None:
    """No single change of RAM or storage gives 10,000 tokens/s."""
    hopeless = plan(question, 1e4, engine="fast")
    assert hopeless.decision == "no"
    assert not any(change.reaches for change in hopeless.changes)


def test_a_plan_below_the_floor_offers_ram(question: Question) -> None:
    """cannot_run is an answer; the least RAM that reaches the target stands in it."""
    answer = plan(replace(question, ram_cap_bytes=200 * 2**20), 3.0, engine="fast")
    assert answer.decision == "cannot_run"
    assert any(change.what == "RAM cap" and change.reaches for change in answer.changes)


def test_the_grid_holds_the_scenario_itself(question: Question, answer: PlanResult) -> None:
    """One row has the plan's own cap and speed, and the same tokens/s."""
    result = answer.result
    own = [
        row
        for row in answer.grid
        if row.ram_cap_bytes == GIB and row.storage_read_bytes_per_s == result.storage_read_bytes_per_s
    ]
    assert len(own) == 1
    assert result.tokens_per_s is not None
    assert own[0].tokens_per_s == pytest.approx(result.tokens_per_s.value, rel=1e-9)


def test_the_grid_is_monotone(answer: PlanResult) -> None:
    """More RAM or a faster SSD never gives fewer tokens/s (LRU)."""
    speeds = sorted({row.storage_read_bytes_per_s for row in answer.grid})
    caps = sorted({row.ram_cap_bytes for row in answer.grid})
    cell = {(row.ram_cap_bytes, row.storage_read_bytes_per_s): row.tokens_per_s for row in answer.grid}
    for cap in caps:
        column = [cell[cap, speed] for speed in speeds]
        assert column == sorted(column)
    for speed in speeds:
        row = [cell[cap, speed] for cap in caps]
        assert row == sorted(row)


def test_a_sweep_has_a_row_for_every_scenario_in_order(question: Question) -> None:
    """The rows are the grid's product; each equals its own simulation."""
    grid = Grid((GIB // 8, GIB, 2 * GIB), (2e8, 2e9), ("lru", "lru-per-layer"), ("none", "pre-attention"))
    rows = sweep(question, grid, n_samples=4)
    assert len(rows) == grid.n_scenarios == 24
    assert rows[0].verdict == "cannot_run"
    for row in rows[8:]:
        alone = replace(
            question,
            ram_cap_bytes=row.ram_cap_bytes,
            storage_read_bytes_per_s=row.storage_read_bytes_per_s,
            cache_policy=row.cache_policy,
            prefetch_policy=row.prefetch_policy,
        )
        assert row.tokens_per_s == pytest.approx(value(alone), rel=1e-12)


def test_axes_hold_the_current_values() -> None:
    """Rounded axes never lose the scenario's own cap and speed."""
    assert 419e6 in round_rates(419e6)
    caps = round_caps(300 * 2**20, 3 * GIB, GIB)
    assert GIB in caps
    assert list(caps) == sorted(caps)
    assert caps[-1] >= 3 * GIB


def test_a_target_must_be_above_zero(question: Question) -> None:
    """Zero, negative and NaN are no targets."""
    for target in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="--target-tokens-per-s: must be above zero"):
            plan(question, target)
    assert prepare(question).scenario is not None


def test_limits_and_changes_agree(answer: PlanResult) -> None:
    """Where today's device falls short, the least RAM and storage of the limits are those of the single changes."""
    limit = {limit.what: limit for limit in answer.limits}
    change = {change.what: change for change in answer.changes}
    assert set(limit) == {"ram_cap", "storage_read", "context", "top_k", "quantisation"}
    assert limit["ram_cap"].value == pytest.approx(change["RAM cap"].ratio * GIB)
    assert limit["ram_cap"].tokens_per_s == change["RAM cap"].tokens_per_s
    assert limit["storage_read"].value == pytest.approx(change["storage read"].ratio * 419e6)
    assert limit["context"].value is None  # more keys cannot help
    assert answer.front is not None
    assert answer.shopping is None


def test_a_model_that_storage_cannot_hold_has_no_limits(question: Question) -> None:
    """RAM and speed do not matter where the file does not fit."""
    storage = question.profile.storage
    free = storage.free_space.model_copy(update={"value": 1e9})
    full = question.profile.model_copy(update={"storage": storage.model_copy(update={"free_space": free})})
    answer = plan(replace(question, profile=full), 3.0, engine="fast")
    assert (answer.limits, answer.front) == ((), None)


def test_a_dense_model_has_limits_of_context_and_type_alone() -> None:
    """Nothing streams: no RAM for experts, no storage speed, no front."""
    dense = Question(load_model_spec("qwen3-0.6b"), load_profile("rk3588"))
    answer = plan(dense, 10.0, engine="fast")
    assert [limit.what for limit in answer.limits] == ["context", "quantisation"]
    assert answer.front is None
    assert isinstance(answer.limits[0].value, int)


def test_progress_tells_every_part(question: Question) -> None:
    """Parts done rise to all of them."""
    seen: list[tuple[int, int]] = []
    plan(question, 0.5, engine="fast", on_search=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (9, 9)
