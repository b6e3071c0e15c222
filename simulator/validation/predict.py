"""
The prediction for one measured run: the probed profile, the model, and the routing that the run recorded.

Of the run itself only counts are taken: the routing trace, the share of gates that were zero, its conditions.  No
measured time enters, neither of this run nor of any other run of the grid.  A second, wider interval draws how far the
machine drifted on top, which spot checks tell (see machine_state.py).
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hardware_profiles.rates import DeviceRates
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from simulator.engine_fast import Decisions, FastEngine
from simulator.engine_simpy import simulate_with_records
from simulator.expert_layout import expert_layout
from simulator.interval import N_SAMPLES, interval_of
from simulator.memory import MemoryPlan, plan_memory
from simulator.model.size import file_bytes
from simulator.model.spec import GateSparsity, ModelSpec
from simulator.question import Prepared, Question, device_rates, draw_gate_sparsity, prepare, with_what_ifs
from simulator.result import Interval
from simulator.scenario import Scenario
from simulator.simulate import tokens_per_s
from simulator.validation.grid_cells import MeasuredRun
from simulator.validation.machine_state import STEADY, MachineDrift
from traces.op_record import records_frame

if TYPE_CHECKING:
    import pandas as pd

UNLIMITED_BYTES = 2**60  # no RAM cap, as the runtime takes it: everything is resident
SEED = 0


@dataclass(frozen=True, eq=False)
class Prediction:
    """
    What simulate says about a run.

    speed: decode tokens/s; prompt_s: first prompt token to first logits, None where the trace has no prompt; both with
    the 80 % interval.  wide_speed: speed with the wider interval of a machine that drifts.  records: the simulated
    OpRecords, of the same type as the measured ones.
    """

    scenario: Scenario
    decisions: Decisions
    n_slots: int
    speed: Interval
    wide_speed: Interval
    prompt_s: Interval | None
    records: "pd.DataFrame"
    read_bytes_per_s: float


def predict(
    run: MeasuredRun,
    spec: ModelSpec,
    profile: HardwareProfile,
    n_samples: int = N_SAMPLES,
    drift: MachineDrift = STEADY,
) -> Prediction:
    """
    The prediction for a run on the profile's machine, with an interval of n_samples draws of its spreads; drift: what
    the wider interval draws on top.

    Raises InputError where the model cannot run as the run says it did.
    """
    question = run_question(run, spec, profile)
    prepared, plan = prepare(question), runtime_plan(question, capacity_of(run))
    if prepared.scenario is None or plan.verdict == "cannot_run":
        arithmetic = plan.arithmetic or prepared.plan.arithmetic
        raise InputError(str(run.folder), "must be a run that the memory plan allows", arithmetic)
    # the plan keeps keys that have left the window, as the runtime does; attention reads those in the window alone
    model = question.model.model_copy(update={"attention": spec.attention})
    scenario = replace(
        prepared.scenario,
        model=model,
        n_slots=plan.n_slots,
        preloaded=plan.verdict == "resident",
        rates=_rates(question),
    )
    timeline, records = simulate_with_records(scenario)
    decisions = Decisions(timeline.n_misses, timeline.n_used)
    intervals = _intervals(FastEngine(scenario, decisions), question, drift, n_samples)
    rate = _read_rate(prepared)
    return Prediction(scenario, decisions, plan.n_slots, *intervals, records_frame(records), rate)


def held_out_speed(run: MeasuredRun, spec: ModelSpec, profile: HardwareProfile, prediction: Prediction) -> float:
    """Decode tokens/s from another profile of the machine, with the decisions of a prediction that is there."""
    rates = _rates(run_question(run, spec, profile))
    scenario = replace(prediction.scenario, rates=rates)
    return tokens_per_s(FastEngine(scenario, prediction.decisions).timeline(rates), scenario.is_counted)


def _rates(question: Question) -> DeviceRates:
    """The device's central rates."""
    return with_what_ifs(question, device_rates(question))


def _intervals(
    fast: FastEngine, question: Question, drift: MachineDrift, n_samples: int
) -> tuple[Interval, Interval, Interval | None]:
    """
    Decode tokens/s, the same with drift, and seconds of the prompt, with their 80 % intervals; the prompt is None where
    there is none.
    """
    counted, prompt = fast.scenario.is_counted, _prompt(fast.scenario)
    rng, drift_rng = (np.random.default_rng(seed) for seed in (SEED, (SEED, 1)))  # drift moves no draw of the profile
    speeds, wide_speeds, firsts = [], [], []
    for _ in range(n_samples):
        device = device_rates(question, rng)
        drawn, sparsity = with_what_ifs(question, device), draw_gate_sparsity(question, rng)
        speeds.append(tokens_per_s(fast.timeline(drawn, sparsity), counted))
        if drift != STEADY:
            drifted = with_what_ifs(question, drift.drawn(drift_rng).on(device))
            wide_speeds.append(tokens_per_s(fast.timeline(drifted, sparsity), counted))
        if prompt is not None:
            firsts.append(float(prompt.timeline(drawn, sparsity).step_s.sum()))
    central = fast.scenario.rates
    value = tokens_per_s(fast.timeline(central), counted)
    speed, wide = interval_of(value, speeds), interval_of(value, wide_speeds or speeds)
    if prompt is None:
        return speed, wide, None
    return speed, wide, interval_of(float(prompt.timeline(central).step_s.sum()), firsts)


def run_question(run: MeasuredRun, spec: ModelSpec, profile: HardwareProfile) -> Question:
    """The run's conditions as a question; its KV cache is float32 and its model file already lies on the storage."""
    cell = run.cell
    attention = spec.attention.model_copy(update={"window": spec.attention.window and capacity_of(run)})
    update: dict = {"kv_type": "f32", "attention": attention}
    sparsity = gate_sparsity(run)
    if spec.experts is not None and sparsity is not None:
        measured = GateSparsity(value=sparsity, kind="measured", source=f"counted in {cell.cell} run {cell.repeat}")
        update["experts"] = spec.experts.model_copy(update={"gate_sparsity": measured})
    return Question(
        model=spec.model_copy(update=update),
        profile=_with_room(profile, file_bytes(spec)),
        trace=run.trace,
        ram_cap_bytes=UNLIMITED_BYTES if cell.ram_cap_bytes is None else cell.ram_cap_bytes,
        cache_policy=run.condition("cache"),
        prefetch_policy=cell.prefetch,
        layout=run.condition("layout"),
        start="warm",
        warm_up_tokens=cell.n_warm_up,
        chunk_tokens=_chunk_tokens(run),
        storage_limit_bytes_per_s=cell.storage_limit_bytes_per_s,
        n_threads=cell.threads,
    )


def capacity_of(run: MeasuredRun) -> int:
    """Tokens that the run's KV cache had room for: up to its last."""
    return int(run.trace.position.max()) + 1


def runtime_plan(question: Question, capacity: int) -> MemoryPlan:
    """
    The memory plan as the runtime makes it: room for a whole chunk of the prompt, also where the prompt is shorter or
    was run before and its keys and values loaded.
    """
    return plan_memory(
        question.model,
        expert_layout(question.model, question.layout),
        ram_cap_bytes=question.cap_bytes,
        free_storage_bytes=UNLIMITED_BYTES,
        context=capacity,
        chunk_tokens=min(question.chunk_tokens, capacity),
    )


def gate_sparsity(run: MeasuredRun) -> float | None:
    """Share of the chosen experts' gates that were zero, mean over layers: a count, like the trace; None unknown."""
    layers = run.result.layers
    return float(np.mean([layer.zero_gate_frac for layer in layers])) if layers else None


def _chunk_tokens(run: MeasuredRun) -> int:
    text = run.condition("prefill_chunk")
    if not text.isdecimal() or int(text) < 1:
        raise InputError(str(run.folder / "run.json"), "prefill_chunk must be a whole number of tokens", repr(text))
    return int(text)


def _with_room(profile: HardwareProfile, n_bytes: int) -> HardwareProfile:
    """The profile with room for a file that was there when it was probed, so that no verdict says it does not fit."""
    free, capacity = profile.storage.free_space, profile.storage.capacity
    room = {
        "free_space": free.model_copy(update={"value": max(free.value, float(n_bytes))}),
        "capacity": capacity.model_copy(update={"value": max(capacity.value, float(n_bytes))}),
    }
    return profile.model_copy(update={"storage": profile.storage.model_copy(update=room)})


def _prompt(scenario: Scenario) -> FastEngine | None:
    """The prompt alone, on a cache as the run found it: with all experts where they are resident."""
    first_decode = next(i for i, step in enumerate(scenario.steps) if step.is_decode)
    if not first_decode:
        return None
    return FastEngine(replace(scenario, steps=scenario.steps[:first_decode], n_warm_up_tokens=0))


def _read_rate(prepared: Prepared) -> float:
    """Bytes per second that storage can give: the profile's sequential read, or the limit where that is lower."""
    own = prepared.question.profile.storage.sequential_read.value
    limit = prepared.question.storage_limit_bytes_per_s
    return own if limit is None else min(own, limit)
