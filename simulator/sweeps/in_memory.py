"""
Sweeps in memory: the same question over a small grid of RAM caps, storage speeds and policies.

The rows come from the same closed form as those of simulator.sweeps, which has more axes and keeps them on disk.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from simulator.closed_form.draws import Draws
from simulator.closed_form.replay import lean_replay
from simulator.interval import N_SAMPLES
from simulator.question import Question
from simulator.result import SweepRow
from simulator.sweeps.axes import AXIS_NAMES
from simulator.sweeps.timing import cell_rows


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


def sweep(question: Question, grid: Grid, *, n_samples: int = N_SAMPLES, seed: int = 0) -> list[SweepRow]:
    """
    One row a scenario in the order of the grid: caps, cache policies, prefetch policies, speeds.

    Raises InputError where a scenario cannot be asked.
    """
    replay, draws = lean_replay(question), Draws(n_samples, seed, with_bounds=True)
    found: dict[tuple[int, str, str, float], SweepRow] = {}
    for cache_policy in grid.cache_policies:
        keys = list(
            product(grid.ram_caps_bytes, (cache_policy,), grid.prefetch_policies, grid.storage_reads_bytes_per_s)
        )
        questions = [
            replace(
                question,
                ram_cap_bytes=cap,
                cache_policy=cache_policy,
                prefetch_policy=prefetch,
                storage_read_bytes_per_s=rate,
            )
            for cap, _, prefetch, rate in keys
        ]
        cells = [_cell(each) for each in questions]
        for key, row in zip(keys, cell_rows(questions, cells, replay, draws, strict=True), strict=True):
            found[key] = row
    order = product(grid.ram_caps_bytes, grid.cache_policies, grid.prefetch_policies, grid.storage_reads_bytes_per_s)
    return [found[key] for key in order]


def _cell(question: Question) -> dict[str, object]:
    """The question by the names of a sweep's axes."""
    return dict.fromkeys(AXIS_NAMES) | {
        "model": question.model.name,
        "hardware": question.profile.name,
        "trace": None if question.trace is None else question.trace.header.model,
        "layout": question.layout,
        "context": question.context,
        "ram_cap": question.ram_cap_bytes,
        "cache": question.cache_policy,
        "prefetch": question.prefetch_policy,
        "threads": question.n_threads,
        "ram_bandwidth": question.ram_bytes_per_s,
        "flops": question.gemv_flop_per_s,
        "storage_latency": question.storage_latency_s,
        "storage_read": question.storage_read_bytes_per_s,
    }


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
