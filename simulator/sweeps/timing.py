"""
The cells of a chunk timed: the cache decides once for a capacity, every device and speed is read off its histogram.

A scenario whose inputs contradict each other becomes a row with the complaint; nothing else is caught.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hardware_profiles.rates import DeviceRates
from moeplan.errors import InputError
from simulator.costs import miss_costs
from simulator.expert_layout import ExpertLayout, expert_layout
from simulator.question import Prepared, Question, device_rates, draw_gate_sparsity, prepare, with_what_ifs
from simulator.result import Bound, SweepRow
from simulator.scenario import Scenario
from simulator.simulate import interval_of, twice_as_fast
from simulator.sweeps.decisions import counted_misses
from simulator.sweeps.replay import LeanReplay
from simulator.sweeps.scenarios import Cell
from simulator.sweeps.totals import ComputeTimes, ComputeWorks, CountedTokens, MissSums, Totals

Key = tuple[object, ...]
BOUNDS: tuple[Bound, ...] = ("ram_bandwidth", "compute", "storage_bandwidth", "storage_latency")  # ties: the first
COMPUTE_BOUNDS: tuple[Bound, ...] = BOUNDS[:2]  # with compute times of their own; the others have the central ones


@dataclass(frozen=True, eq=False)
class Decided:
    """What the cache of one capacity did on the counted tokens."""

    tokens: CountedTokens
    histogram: dict[int, np.ndarray]
    n_misses: int


@dataclass(eq=False)
class _Timed:
    """Totals of one cell: central, one a draw, one a resource doubled."""

    central: Totals
    draws: list[float] = field(default_factory=list)
    doubled: dict[Bound, float] = field(default_factory=dict)


def cell_rows(
    questions: Sequence[Question],
    cells: Sequence[Cell],
    replay: LeanReplay,
    n_samples: int,
    seed: int,
    *,
    strict: bool = False,
) -> list[SweepRow]:
    """
    One row a question, in order; the questions share model, trace, layout and cache policy.

    A question that cannot be asked is a row with the complaint; strict: it raises its InputError.
    """
    prepared = _prepare_all(questions, cells, replay)
    for found in prepared if strict else ():
        if isinstance(found, InputError):
            raise found
    decided = _decide_all(prepared, replay)
    devices = _Devices(n_samples, seed)
    groups: dict[Key, list[int]] = {}
    for place, (cell, found) in enumerate(zip(cells, prepared, strict=True)):
        if isinstance(found, Prepared) and found.scenario is not None:
            groups.setdefault((_capacity(found.scenario), *_compute_key(cell)), []).append(place)
    rows: dict[int, SweepRow] = {}
    for (capacity, *_), places in groups.items():
        timed = _time_group(decided[capacity], devices, [(cells[i], questions[i]) for i in places])  # type: ignore[index]
        for place, times in zip(places, timed, strict=True):
            rows[place] = _row(cells[place], questions[place], prepared[place], decided[capacity], times)  # type: ignore
    return [
        rows[place] if place in rows else _row_without_times(cell, question, found)
        for place, (cell, question, found) in enumerate(zip(cells, questions, prepared, strict=True))
    ]


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


def _compute_key(cell: Cell) -> Key:
    return tuple(cell[name] for name in ("hardware", "threads", "ram_bandwidth", "flops"))


def _capacity(scenario: Scenario) -> Key:
    """What the decisions depend on within a chunk; steps differ where a prompt's chunk had to shrink."""
    return scenario.n_slots, scenario.preloaded, id(scenario.steps)


def _decide_all(prepared: Sequence[Prepared | InputError], replay: LeanReplay) -> dict[Key, Decided]:
    """The decisions of every capacity, those of the same steps together."""
    scenarios: dict[Key, Scenario] = {}
    for found in prepared:
        if isinstance(found, Prepared) and found.scenario is not None:
            scenarios.setdefault(_capacity(found.scenario), found.scenario)
    decided: dict[Key, Decided] = {}
    for steps in dict.fromkeys(id(scenario.steps) for scenario in scenarios.values()):
        same = {key: scenario for key, scenario in scenarios.items() if id(scenario.steps) == steps}
        first = next(iter(same.values()))
        tokens = CountedTokens(first.model, first.steps, first.is_counted, first.lm_head_predictor)
        for key, n_misses in zip(same, counted_misses(list(same.values()), replay), strict=True):
            decided[key] = Decided(tokens, tokens.histogram(n_misses), int(n_misses.sum(dtype=np.int64)))
    return decided


class _Devices:
    """Rates, compute times and read times of a chunk's devices, each worked out once for what it depends on."""

    def __init__(self, n_samples: int, seed: int) -> None:
        self._n_samples, self._seed = n_samples, seed
        self._draws: dict[Key, list[tuple[DeviceRates, float | None]]] = {}
        self._rates: dict[Key, list[DeviceRates]] = {}
        self._times: dict[Key, list[ComputeTimes]] = {}
        self._works: dict[Key, ComputeWorks] = {}

    def rates(self, cell: Cell, question: Question) -> list[DeviceRates]:
        """Central rates, the draws, and the device with each resource doubled in the order of BOUNDS."""
        key = (*_compute_key(cell), cell["storage_latency"], cell["storage_read"])
        if key not in self._rates:
            drawn = [with_what_ifs(question, rates) for rates, _ in self._drawn(cell, question)]
            twice = twice_as_fast(drawn[0])
            self._rates[key] = [*drawn, *(twice[bound] for bound in BOUNDS)]
        return self._rates[key]

    def compute_times(self, tokens: CountedTokens, cell: Cell, question: Question) -> list[ComputeTimes]:
        """Of the central rates, the draws, and COMPUTE_BOUNDS doubled."""
        key = (id(tokens), *_compute_key(cell))
        if key not in self._times:
            works = self._compute_works(tokens, cell, question)
            rates = self.rates(cell, question)[: 1 + self._n_samples + len(COMPUTE_BOUNDS)]
            sparsities = [sparsity for _, sparsity in self._drawn(cell, question)]
            sparsities += [None] * len(COMPUTE_BOUNDS)
            self._times[key] = [works.times(*each) for each in zip(rates, sparsities, strict=True)]
        return self._times[key]

    def _compute_works(self, tokens: CountedTokens, cell: Cell, question: Question) -> ComputeWorks:
        key = (id(tokens), cell["hardware"], cell["threads"])
        if key not in self._works:
            self._works[key] = ComputeWorks(tokens, device_rates(question))
        return self._works[key]

    def _drawn(self, cell: Cell, question: Question) -> list[tuple[DeviceRates, float | None]]:
        """The central rates and the draws before any what-if, each with its gate sparsity; the same as `intervals`."""
        key = (cell["hardware"], cell["threads"])
        if key not in self._draws:
            rng = np.random.default_rng(self._seed)
            found: list[tuple[DeviceRates, float | None]] = [(device_rates(question), None)]
            for _ in range(self._n_samples):
                found.append((device_rates(question, rng), draw_gate_sparsity(question, rng)))
            self._draws[key] = found
        return self._draws[key]


def _time_group(decided: Decided, devices: _Devices, group: list[tuple[Cell, Question]]) -> list[_Timed]:
    """The cells of one capacity and one compute side, which differ in storage and prefetch; one set of sums a draw."""
    compute_times = devices.compute_times(decided.tokens, *group[0])
    n_draws = len(compute_times) - 1 - len(COMPUTE_BOUNDS)
    timed: list[_Timed] = []
    for index, times in enumerate(compute_times):
        sums = MissSums(times, decided.histogram)
        for place, (cell, question) in enumerate(group):
            rates = devices.rates(cell, question)
            totals = _totals(sums, rates[index], question)
            if index == 0:
                timed.append(_Timed(totals))
                for bound, doubled in zip(BOUNDS[2:], rates[-2:], strict=True):
                    timed[place].doubled[bound] = _totals(sums, doubled, question).step_s
            elif index <= n_draws:
                timed[place].draws.append(totals.step_s)
            else:
                timed[place].doubled[COMPUTE_BOUNDS[index - 1 - n_draws]] = totals.step_s
    return timed


def _totals(sums: MissSums, rates: DeviceRates, question: Question) -> Totals:
    layout = expert_layout(question.model, question.layout)
    top_k = 0 if question.model.experts is None else question.model.experts.top_k
    beside = miss_costs(rates, layout.padded_bytes, top_k)
    return sums.totals(_read_table(rates, layout, top_k), beside, rates, question.prefetch)


@lru_cache(maxsize=8192)
def _read_table(rates: DeviceRates, layout: ExpertLayout, most: int) -> np.ndarray:
    """Seconds to read 0, 1, ..., most experts issued at once from idle storage, when nothing else runs."""
    bursts = [rates.storage.burst_s(n * layout.n_requests, layout.request_bytes) for n in range(1, most + 1)]
    return np.array([0.0, *bursts])


def _row(cell: Cell, question: Question, prepared: Prepared, decided: Decided, timed: _Timed) -> SweepRow:
    n_tokens, central = decided.tokens.n_tokens, timed.central
    speed = interval_of(n_tokens / central.step_s, [n_tokens / step_s for step_s in timed.draws])
    experts = question.model.experts
    n_used = 0 if experts is None else n_tokens * question.model.n_moe_layers * experts.top_k
    return replace(
        _row_without_times(cell, question, prepared),
        verdict=prepared.plan.verdict,
        tokens_per_s=speed.value,
        tokens_per_s_low=speed.low,
        tokens_per_s_high=speed.high,
        hit_rate=(n_used - decided.n_misses) / n_used if n_used else 1.0,
        hidden_frac=central.n_hidden / central.n_missed if central.n_missed else 1.0,
        wait_s_per_token=central.wait_s / n_tokens,
        bytes_read_per_token=decided.n_misses * prepared.layout.padded_bytes / n_tokens,
        bound_by=min(BOUNDS, key=timed.doubled.__getitem__),
        hits=n_used - decided.n_misses,
        misses=decided.n_misses,
    )


def _row_without_times(cell: Cell, question: Question, prepared: Prepared | InputError) -> SweepRow:
    """The inputs of a scenario that cannot run or that nobody can ask, and why."""
    if isinstance(prepared, InputError):
        return failed_row(cell, prepared, question)
    plan, rates = prepared.plan, with_what_ifs(question, device_rates(question))
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
        reason=plan.arithmetic,
        n_slots=plan.n_slots,
        storage_bytes=plan.memory.storage_bytes,
        resident_bytes=plan.memory.resident_bytes,
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
