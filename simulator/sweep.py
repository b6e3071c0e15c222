"""
Sweeps: the same question over a grid of RAM caps, storage speeds and policies.

What the cache does depends on trace, capacity and policy, not on speed, so decisions are taken once per
(cap, cache policy) and serve every storage speed and both prefetch policies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.engine_fast import Decisions, FastEngine, decide
from simulator.question import Prepared, Question, prepare, question_rates, question_replay
from simulator.result import SweepRow
from simulator.simulate import bound_by, cache_result, hidden_frac, intervals
from simulator.timeline import Timeline

N_SWEEP_SAMPLES = 40  # Monte Carlo draws a cell: enough for an interval in a picture


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep; every combination is one scenario."""

    ram_caps_bytes: tuple[int, ...]
    storage_reads_bytes_per_s: tuple[float, ...]
    cache_policies: tuple[str, ...]
    prefetch_policies: tuple[str, ...]

    @property
    def n_scenarios(self) -> int:
        """Cells of the grid."""
        sizes = (self.ram_caps_bytes, self.storage_reads_bytes_per_s, self.cache_policies, self.prefetch_policies)
        return int(np.prod([len(axis) for axis in sizes]))


def sweep(
    question: Question,
    grid: Grid,
    *,
    n_samples: int = N_SWEEP_SAMPLES,
    seed: int = 0,
    on_row: Callable[[SweepRow], None] = lambda row: None,
) -> list[SweepRow]:
    """One row a scenario in the order of the grid; on_row sees each as it is done."""
    rows = []
    for row in _rows(question, grid, n_samples, seed):
        rows.append(row)
        on_row(row)
    return rows


def _rows(question: Question, grid: Grid, n_samples: int, seed: int) -> Iterator[SweepRow]:
    replay = question_replay(question)
    decided: dict[tuple[str, int, int], Decisions] = {}
    for ram_cap in grid.ram_caps_bytes:
        for cache_policy in grid.cache_policies:
            for prefetch_policy in grid.prefetch_policies:
                base = replace(
                    question, ram_cap_bytes=ram_cap, cache_policy=cache_policy, prefetch_policy=prefetch_policy
                )
                prepared = prepare(base, replay)
                fast = None
                if prepared.scenario is not None:
                    key = (cache_policy, prepared.plan.n_slots, len(prepared.steps))
                    if key not in decided:
                        decided[key] = decide(prepared.scenario)
                    fast = FastEngine(prepared.scenario, decided[key])
                for read_rate in grid.storage_reads_bytes_per_s:
                    cell = replace(base, storage_read_bytes_per_s=read_rate)
                    yield _row(cell, prepared, fast, n_samples, seed)


def _row(question: Question, prepared: Prepared, fast: FastEngine | None, n_samples: int, seed: int) -> SweepRow:
    inputs = (question.cap_bytes, question.storage_read_bytes_per_s or 0.0, question.cache_policy, question.prefetch)
    if fast is None:
        return SweepRow(*inputs, "cannot_run", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "none", prepared.plan.arithmetic)
    rates = question_rates(question)
    scenario = replace(fast.scenario, rates=rates)
    timeline = fast.timeline(rates)
    speed, _ = intervals(fast, question, n_samples, seed)
    counted = scenario.is_counted
    cache = cache_result(prepared, timeline, counted)
    hit_rate, bytes_per_token = (1.0, 0.0) if cache is None else (cache.hit_rate, cache.bytes_read_per_token)
    return SweepRow(
        *inputs,
        verdict=prepared.plan.verdict,
        tokens_per_s=speed.value,
        tokens_per_s_low=speed.low,
        tokens_per_s_high=speed.high,
        hit_rate=hit_rate,
        hidden_frac=hidden_frac(timeline, counted),
        wait_s_per_token=_mean(timeline, "wait", counted),
        bytes_read_per_token=bytes_per_token,
        bound_by=bound_by(fast, scenario),
    )


def _mean(timeline: Timeline, op: str, counted: np.ndarray) -> float:
    return float(timeline.op_s[op][counted].mean())


def round_rates(current_bytes_per_s: float) -> tuple[float, ...]:
    """Storage speeds around a device's own: 1-2-5 steps from a quarter to sixteen times, its own among them."""
    ladder = [digit * 10.0**power for power in range(7, 11) for digit in (1, 2, 5)]
    near = [rate for rate in ladder if current_bytes_per_s / 5 <= rate <= 16 * current_bytes_per_s]
    kept = [rate for rate in near if abs(rate / current_bytes_per_s - 1) > 0.15]
    return tuple(sorted([*kept, current_bytes_per_s]))


def round_caps(floor_bytes: int, all_bytes: int, current_bytes: int, n_caps: int = 7) -> tuple[int, ...]:
    """RAM caps from just above the floor to all resident, evenly spaced in the logarithm, the current one included."""
    unit = 2**26 if all_bytes < 4 * 2**30 else 2**28
    spaced = np.geomspace(max(floor_bytes, unit), all_bytes, n_caps)
    caps = {int(-(-cap // unit) * unit) for cap in spaced}
    kept = {cap for cap in caps if abs(cap / current_bytes - 1) > 0.06}
    return tuple(sorted({*kept, current_bytes}))


def sweep_columns(rows: Sequence[SweepRow]) -> dict[str, list[object]]:
    """The rows as columns, for a table on disk."""
    return {name: [getattr(row, name) for row in rows] for name in SweepRow.__dataclass_fields__}
