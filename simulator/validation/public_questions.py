"""
A published row as questions to the simulator: one at the central assumptions, and the strata of the Monte Carlo.

Decode is short (its time is linear in the context, so a stretch at the mean context stands for the whole) except
where an expert cache fills.  A row that gives its hit rate gets made-up routing with that hit rate.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hardware_profiles.catalog import load_profile
from simulator.engine_fast import decide
from simulator.expert_layout import expert_layout
from simulator.model.size import file_bytes
from simulator.model.spec import GateSparsity, ModelSpec
from simulator.question import Question, prepare
from simulator.validation.public_assumptions import (
    CONTEXT,
    SKIPPING,
    Assumption,
    assumptions_of,
    at_lanes,
    at_threads,
    widened,
)
from simulator.validation.public_models import row_model
from simulator.validation.public_routing import hot_frequency, made_up, repeat_for_hit_rate, with_hot_experts
from simulator.validation.public_rows import PublicRow
from traces.routing_trace import RoutingTrace

MIB = 2**20
CONTEXT_START, CONTEXT_LOW, CONTEXT_HIGH = 128, 16, 1024  # keys; a short prompt, and the range of the strata
N_STRATA = 5
N_GENERATED = 128  # tokens, where a row does not say: what llama-bench takes
N_SHORT_DECODE = 16  # tokens that stand for a decode whose cache does not change
N_PROMPT, N_GENERATED_COLD = 50, 256  # tokens: the README example of the engine whose cache starts empty
N_HIT_RATE_DECODE = 96  # tokens of made-up routing with a given hit rate
HUGE_BYTES = 2**50  # a RAM cap that nothing meets
ROOM_BYTES = 2**33  # RAM beside the weights of a model that the source says is in RAM
SKIPPING_EFFICIENCY, SKIPPING_HALF_WIDTH = 0.5, 0.5  # of the bytes that row skipping leaves out


@dataclass(frozen=True)
class RowQuestions:
    """central: every assumption at its middle; strata: contexts and routings of the Monte Carlo, of equal weight."""

    assumptions: tuple[Assumption, ...]
    central: Question
    strata: tuple[Question, ...]


def row_questions(row: PublicRow) -> RowQuestions:
    """The questions of a row that can be predicted. Raises InputError where its names are not known."""
    model = row_model(row.spec, row.quantisation)
    is_sparse = model.experts is not None and model.experts.gate_sparsity.value > 0
    assumptions = assumptions_of(row, is_sparse)
    if SKIPPING in assumptions:
        model = _less_skipping(model)
    profile = at_lanes(at_threads(load_profile(row.profile), row.threads), row.lanes)
    base = Question(model, widened(profile, assumptions), lm_head_predictor=row.lm_head_predictor, layout="split")
    make = _streaming if row.row_class == "streaming" else _in_ram
    contexts = _contexts(row, assumptions)
    middle, order = N_STRATA // 2, _latin_order()
    strata = tuple(make(row, base, contexts[level], index) for index, level in enumerate(order))
    central = make(row, base, _mean_context(row, CONTEXT_START if row.context is None else row.context), middle)
    return RowQuestions(assumptions, central, strata)


def _less_skipping(model: ModelSpec) -> ModelSpec:
    """The model whose gate sparsity is what skipping is worth in time; normal, clipped to 0..1."""
    assert model.experts is not None
    stated = model.experts.gate_sparsity
    sparsity = GateSparsity(
        value=stated.value * SKIPPING_EFFICIENCY,
        kind="assumed",
        source=SKIPPING.text,
        uncertainty=min(1.0, stated.value * SKIPPING_HALF_WIDTH),
    )
    return model.model_copy(update={"experts": model.experts.model_copy(update={"gate_sparsity": sparsity})})


def _contexts(row: PublicRow, assumptions: tuple[Assumption, ...]) -> list[int]:
    """Keys at the middle of the decode, one for each stratum: even in the logarithm where the start is assumed."""
    if CONTEXT not in assumptions:
        return [_mean_context(row, row.context or 0)] * N_STRATA
    centres = (np.arange(N_STRATA) + 0.5) / N_STRATA
    starts = CONTEXT_LOW * (CONTEXT_HIGH / CONTEXT_LOW) ** centres
    return [_mean_context(row, round(float(start))) for start in starts]


def _mean_context(row: PublicRow, start: int) -> int:
    return start + (row.n_generated or N_GENERATED) // 2


def _latin_order() -> list[int]:
    """Levels of the context in the order of the traces, so that the two do not go together."""
    return [2 * i % N_STRATA for i in range(N_STRATA)]


def _in_ram(row: PublicRow, base: Question, context: int, stratum: int) -> Question:
    """All weights are in RAM, as the source says: routing then costs nothing, and any trace of the shape will do."""
    trace = None if base.model.experts is None else made_up(base.model, 0.5, N_SHORT_DECODE, seed=stratum)
    question = replace(base, trace=trace, context=max(0, context - N_SHORT_DECODE // 2))
    return replace(question, ram_cap_bytes=file_bytes(base.model) + ROOM_BYTES)


def _streaming(row: PublicRow, base: Question, context: int, stratum: int) -> Question:
    """Experts come from storage through the row's cache: with its hit rate, or with hot experts from a cold start."""
    n_slots = n_slots_of(row, base)
    if row.hit_rate is None:
        trace = with_hot_experts(
            base.model, hot_frequency(stratum, N_STRATA), n_prefill=N_PROMPT, n_decode=N_GENERATED_COLD, seed=stratum
        )
        question = replace(base, trace=trace, start="cold", context=max(0, context - N_GENERATED_COLD // 2))
    else:
        repeat = _repeat_frac(base, n_slots, row.hit_rate)
        trace = made_up(base.model, repeat, N_HIT_RATE_DECODE, seed=stratum)
        question = replace(base, trace=trace, context=max(0, context - N_HIT_RATE_DECODE // 2))
    return with_slots(question, n_slots)


@lru_cache(maxsize=64)
def _repeat_frac(base: Question, n_slots: int, hit_rate: float) -> float:
    """Repeat probability with which made-up routing hits a warm cache of so many slots at a rate."""

    def measure(trace: RoutingTrace) -> float:
        return simulated_hit_rate(with_slots(replace(base, trace=trace), n_slots))

    return repeat_for_hit_rate(base.model, N_HIT_RATE_DECODE, hit_rate, measure)


def n_slots_of(row: PublicRow, question: Question) -> int:
    """Experts in the row's cache; none where it has no cache."""
    if row.n_cached_experts is not None:
        return row.n_cached_experts
    return int((row.cache_mib or 0) * MIB // expert_layout(question.model, question.layout).padded_bytes)


def with_slots(question: Question, n_slots: int) -> Question:
    """The question under the RAM cap that leaves just so many slots to the expert cache."""
    assert question.model.experts is not None
    prepared = prepare(replace(question, ram_cap_bytes=HUGE_BYTES))
    memory, n_buffers = prepared.plan.memory, question.model.experts.top_k
    fixed = memory.resident_bytes - memory.cache_bytes - memory.buffer_bytes
    return replace(question, ram_cap_bytes=fixed + (n_slots + n_buffers) * prepared.layout.padded_bytes)


def simulated_hit_rate(question: Question) -> float:
    """Hits over uses of the counted decode tokens. Raises InputError like prepare."""
    scenario = prepare(question).scenario
    assert scenario is not None
    decisions, counted = decide(scenario), scenario.is_counted
    return float(1 - decisions.n_misses[counted].sum() / decisions.n_used[counted].sum())
