"""
The cells of a chunk timed: the cache decides once for a capacity, every device and speed is read off its histogram.

A scenario whose inputs contradict each other becomes a row with the complaint; nothing else is caught.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moeplan.errors import InputError
from simulator.closed_form.decisions import miss_histograms
from simulator.closed_form.draws import BOUNDS, Draws
from simulator.closed_form.replay import LeanReplay
from simulator.closed_form.totals import CountedTokens
from simulator.interval import interval_ends
from simulator.question import Prepared, Question, device_rates, prepare
from simulator.result import Bound, SweepRow
from simulator.scenario import Scenario
from simulator.small_print import beyond_device, is_upper_bound, larger_cap, storage_doubt, warnings_of
from simulator.sweeps.scenarios import Cell

Key = tuple[object, ...]
ALWAYS_HELD = -1  # the capacity of a scenario whose experts are all preloaded


@dataclass(frozen=True, eq=False)
class Decided:
    """What the cache of one capacity did on the counted tokens; histogram int64 (n_kinds, n_contexts, width)."""

    tokens: CountedTokens
    histogram: np.ndarray
    n_misses: int
    n_missed: int


@dataclass(frozen=True)
class _Timed:
    """Totals of one cell: its central ones, the ends of its interval in tokens/s, its bound."""

    step_s: float
    wait_s: float
    n_hidden: int
    tokens_per_s_low: float
    tokens_per_s_high: float
    bound_by: Bound


def cell_rows(
    questions: Sequence[Question],
    cells: Sequence[Cell],
    replay: LeanReplay,
    draws: Draws,
    *,
    strict: bool = False,
) -> list[SweepRow]:
    """
    One row a question, in order; the questions share model, trace, layout and cache policy.

    A question that cannot be asked is a row with the complaint; strict: it raises its InputError.
    """
    prepared = _complained(_prepare_all(questions, cells, replay), strict)
    decided, complaints = _decide_all(prepared, replay, draws)
    prepared = _complained([_complaint_of(found, complaints) or found for found in prepared], strict)
    groups: dict[Key, list[int]] = {}
    for place, (cell, found) in enumerate(zip(cells, prepared, strict=True)):
        if isinstance(found, Prepared) and found.scenario is not None:
            groups.setdefault((id(found.scenario.steps), *_compute_key(cell)), []).append(place)
    told = _without_times(cells, questions, prepared, draws)
    rows: dict[int, SweepRow] = {}
    for places in groups.values():
        own = [decided[_capacity(prepared[i])] for i in places]  # type: ignore[arg-type]
        timed = _time_group(own, draws, [(cells[i], questions[i]) for i in places])
        for place, what, times in zip(places, own, timed, strict=True):
            rows[place] = _row(told[place], questions[place], prepared[place], what, times)  # type: ignore
    return [rows.get(place, row) for place, row in enumerate(told)]


def _prepare_all(
    questions: Sequence[Question], cells: Sequence[Cell], replay: LeanReplay
) -> list[Prepared | InputError]:
    """Memory plan and scenario of every cell; worked out once for what they depend on."""
    known: dict[Key, Prepared | InputError] = {}
    for cell, question in zip(cells, questions, strict=True):
        key = _plan_key(cell)
        if key not in known:
            try:
                device_rates(question)  # its complaints, also where the model cannot run
                known[key] = prepare(question, replay)
            except InputError as error:
                known[key] = error
    return [known[_plan_key(cell)] for cell in cells]


def _plan_key(cell: Cell) -> Key:
    return tuple(cell[name] for name in ("hardware", "ram_cap", "prefetch", "threads"))


def _capacity(prepared: Prepared) -> Key:
    """What the decisions depend on within a chunk; steps differ where a prompt's chunk had to shrink."""
    scenario = prepared.scenario
    assert scenario is not None
    return ALWAYS_HELD if scenario.preloaded else scenario.n_slots, id(scenario.steps)


def _complained(prepared: list[Prepared | InputError], strict: bool) -> list[Prepared | InputError]:
    """The same; strict: raises the first complaint."""
    for found in prepared if strict else ():
        if isinstance(found, InputError):
            raise found
    return prepared


def _complaint_of(found: Prepared | InputError, complaints: dict[Key, InputError]) -> InputError | None:
    """Why no decisions can be taken for it."""
    return complaints.get(_capacity(found)) if isinstance(found, Prepared) and found.scenario is not None else None


def _decide_all(
    prepared: Sequence[Prepared | InputError], replay: LeanReplay, draws: Draws
) -> tuple[dict[Key, Decided], dict[Key, InputError]]:
    """The decisions of every capacity, those of the same steps together; and why there are none."""
    scenarios: dict[Key, Scenario] = {}
    for found in prepared:
        if isinstance(found, Prepared) and found.scenario is not None:
            scenarios.setdefault(_capacity(found), found.scenario)
    decided: dict[Key, Decided] = {}
    complaints: dict[Key, InputError] = {}
    kinds = {key: (id(scenario.steps), scenario.preloaded) for key, scenario in scenarios.items()}
    for kind in dict.fromkeys(kinds.values()):  # what is preloaded needs no pass, so no complaint is its own
        same = {key: scenario for key, scenario in scenarios.items() if kinds[key] == kind}
        tokens = draws.tokens(next(iter(same.values())))
        try:
            histograms = miss_histograms(list(same.values()), tokens, replay)
        except InputError as error:
            complaints |= dict.fromkeys(same, error)
            continue
        for key, histogram in zip(same, histograms, strict=True):
            pairs = histogram.sum(axis=(0, 1))
            n_misses = int(pairs @ np.arange(len(pairs)))
            decided[key] = Decided(tokens, histogram, n_misses, int(pairs[1:].sum()))
    return decided, complaints


def _time_group(decided: list[Decided], draws: Draws, group: list[tuple[Cell, Question]]) -> list[_Timed]:
    """The cells of one compute side, which differ in capacity, storage and prefetch: all are timed with all."""
    capacities, storages = list(dict.fromkeys(decided)), {_storage_key(cell): asked for cell, asked in group}
    tokens = decided[0].tokens
    histograms = np.array([each.histogram for each in capacities])
    totals = draws.totals(tokens, list(storages.values()), histograms)
    n_drawn = 1 + draws.n_samples  # the central rates and the draws; bounds follow
    speeds = tokens.n_tokens / totals.step_s[:, :n_drawn]
    low, high = interval_ends(speeds[:, 0], speeds[:, 1:], axis=1)
    bounds = totals.step_s[:, n_drawn:].argmin(axis=1)
    places = {key: place for place, key in enumerate(storages)}
    timed = []
    for what, (cell, _) in zip(decided, group, strict=True):
        at = capacities.index(what), places[_storage_key(cell)]
        central = at[0], 0, at[1]
        step_s, wait_s = float(totals.step_s[central]), float(totals.wait_s[central])
        n_hidden, bound = int(totals.n_hidden[central]), BOUNDS[bounds[at]]
        timed.append(_Timed(step_s, wait_s, n_hidden, float(low[at]), float(high[at]), bound))
    return timed


def _compute_key(cell: Cell) -> Key:
    """What the compute side depends on within a chunk."""
    return tuple(cell[name] for name in ("hardware", "threads", "ram_bandwidth", "flops"))


def _storage_key(cell: Cell) -> Key:
    """What differs between cells of one compute side and capacity."""
    return tuple(cell[name] for name in ("storage_latency", "storage_read", "prefetch"))


def _row(row: SweepRow, question: Question, prepared: Prepared, decided: Decided, timed: _Timed) -> SweepRow:
    n_tokens, experts = decided.tokens.n_tokens, question.model.experts
    n_used = 0 if experts is None else n_tokens * question.model.n_moe_layers * experts.top_k
    return replace(
        row,
        tokens_per_s=n_tokens / timed.step_s,
        tokens_per_s_low=timed.tokens_per_s_low,
        tokens_per_s_high=timed.tokens_per_s_high,
        hit_rate=(n_used - decided.n_misses) / n_used if n_used else 1.0,
        hidden_frac=timed.n_hidden / decided.n_missed if decided.n_missed else 1.0,
        wait_s_per_token=timed.wait_s / n_tokens,
        bytes_read_per_token=decided.n_misses * prepared.layout.padded_bytes / n_tokens,
        bound_by=timed.bound_by,
        hits=n_used - decided.n_misses,
        misses=decided.n_misses,
    )


def _without_times(
    cells: Sequence[Cell], questions: Sequence[Question], prepared: Sequence[Prepared | InputError], draws: Draws
) -> list[SweepRow]:
    """The rows of all cells, their times still to be found; complete for those that cannot run or nobody can ask."""
    plans = {id(found): found for found in prepared if isinstance(found, Prepared)}
    texts = {key: _reason_and_warnings(found) for key, found in plans.items()}
    of_storage = {
        (cell["hardware"], cell["storage_read"]): question for cell, question in zip(cells, questions, strict=True)
    }
    doubts = {key: storage_doubt(question) for key, question in of_storage.items()}
    return [
        failed_row(cell, found, question)
        if isinstance(found, InputError)
        else _row_without_times(
            cell, question, found, draws, *texts[id(found)], doubts[cell["hardware"], cell["storage_read"]]
        )
        for cell, question, found in zip(cells, questions, prepared, strict=True)
    ]


def _reason_and_warnings(prepared: Prepared) -> tuple[str, str]:
    """Why it cannot run, or cannot on the device as bought; and what a reader of its speed must not miss, whatever
    the storage."""
    if prepared.scenario is None:
        return prepared.plan.arithmetic, ""
    of_any_storage = replace(prepared, question=replace(prepared.question, storage_read_bytes_per_s=None))
    told = filter(None, (larger_cap(prepared), *warnings_of(of_any_storage)))
    return beyond_device(prepared), "\n".join(told)


def _row_without_times(
    cell: Cell, question: Question, prepared: Prepared, draws: Draws, reason: str, warnings: str, doubt: str
) -> SweepRow:
    """The inputs of a scenario that can be asked, its memory, and why it cannot run where it cannot."""
    plan, rates = prepared.plan, draws.central(question)
    inputs = _inputs(cell, question)
    in_force = {
        "storage_read_bytes_per_s": rates.sequential_read_bytes_per_s,
        "storage_latency_s": rates.storage.latency_s,
        "ram_bytes_per_s": rates.ram_bytes_per_s,
        "gemv_flop_per_s": rates.gemv_flop_per_s,
    }
    inputs |= {name: inputs[name] or value for name, value in in_force.items()}  # what was asked stands as it was asked
    return SweepRow(
        **inputs,
        **_NO_TIMES,
        verdict=plan.verdict,
        bound_by="none",
        reason=reason,
        n_slots=plan.n_slots,
        storage_bytes=plan.memory.storage_bytes,
        resident_bytes=plan.memory.resident_bytes,
        is_upper_bound=is_upper_bound(question),
        warnings="" if prepared.scenario is None else "\n".join(filter(None, (warnings, doubt))),
    )


def failed_row(cell: Cell, error: InputError, question: Question | None = None) -> SweepRow:
    """The row of a scenario that nobody can ask, with what was asked and the complaint."""
    return SweepRow(**_inputs(cell, question), verdict="failed", reason=str(error), bound_by="none", **_NO_TIMES)


_NO_TIMES: dict[str, Any] = dict.fromkeys((
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "hit_rate", "hidden_frac", "wait_s_per_token",
    "bytes_read_per_token",
), 0.0)  # fmt: skip


def _inputs(cell: Cell, question: Question | None) -> dict[str, Any]:
    """What was asked, by the names of SweepRow; the model's and the device's own where the question can be made."""
    found: dict[str, Any] = {
        "ram_cap_bytes": cell["ram_cap"] or 0,
        "storage_read_bytes_per_s": cell["storage_read"] or 0.0,
        "cache_policy": cell["cache"],
        "prefetch_policy": cell["prefetch"] or "",
        "model": cell["model"],
        "device": cell["hardware"],
        "trace": cell["trace"] or "",
        "quantisation": cell["quantisation"] or "",
        "top_k": cell["top_k"] or 0,
        "layout": cell["layout"],
        "context": cell["context"],
        "n_threads": cell["threads"] or 0,
        "storage_latency_s": cell["storage_latency"] or 0.0,
        "ram_bytes_per_s": cell["ram_bandwidth"] or 0.0,
        "gemv_flop_per_s": cell["flops"] or 0.0,
    }
    if question is None:
        return found
    model = question.model
    found |= {"ram_cap_bytes": question.cap_bytes, "prefetch_policy": question.prefetch}
    found |= {"n_threads": question.n_threads or question.profile.cpu.threads}
    types = model.tensor_types
    found["quantisation"] = types.dense_ffn if model.experts is None else types.experts
    found["top_k"] = 0 if model.experts is None else model.experts.top_k
    return found
