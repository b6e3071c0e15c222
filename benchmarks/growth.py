"""The same work, larger and larger: how seconds and bytes grow with tokens, layers, experts and scenarios."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.made_up import SHAPES, capacities_of, made_up_rows
from benchmarks.measure import Run, exponent, medians
from benchmarks.report import Curve, Section
from benchmarks.sweeps import Sweep
from simulator.cache_passes.miss_counts import miss_counts
from simulator.cache_passes.rows import Rows

N_CAPACITIES = 20
BASE = SHAPES["21B"]
MB, THOUSAND = 1e6, 1e3


def pass_curves(n_tokens: int, n_rounds: int) -> list[Curve]:
    """The pass of LRU at twenty capacities over tokens, over layers and over experts of a layer."""
    tokens = [n_tokens * factor for factor in (1, 2, 4, 8, 16)]
    layers, experts = (8, 16, 32, 64, 128), (16, 32, 64, 128, 256)
    return [
        _pass_curve("tokens", tokens, [made_up_rows(n, BASE) for n in tokens], n_rounds),
        _pass_curve(
            "MoE layers", layers, [made_up_rows(n_tokens, BASE._replace(n_layers=n)) for n in layers], n_rounds
        ),
        _pass_curve(
            "experts a layer", experts, [made_up_rows(n_tokens, BASE._replace(n_experts=n)) for n in experts], n_rounds
        ),
    ]


def _pass_curve(size: str, sizes: Sequence[int], all_rows: list[Rows], n_rounds: int) -> Curve:
    works: dict[str, Callable[[], object]] = {
        str(n): partial(miss_counts, rows, "lru", capacities_of(rows, N_CAPACITIES))
        for n, rows in zip(sizes, all_rows, strict=True)
    }
    works[str(sizes[0])]()
    seconds = [spent_s * THOUSAND for spent_s in medians(works, n_rounds).values()]
    return Curve(f"LRU pass, {size}", size, "ms of one core", sizes, seconds, exponent(sizes, seconds))


def sweep_curves(base: Sweep, sizes: Sequence[int], traces: Path) -> list[Curve]:
    """The whole command over tokens (seconds, memory) and over scenarios; base: the sweep that grows."""
    by_tokens = [replace(base, n_tokens=n).run(traces) for n in sizes]
    side = base.n_caps
    grids = [replace(base, n_tokens=sizes[0], n_caps=side * f, n_speeds=base.n_speeds * f) for f in (1, 2, 4, 8)]
    by_scenarios = [grid.run(traces) for grid in grids]
    scenarios = [grid.n_scenarios for grid in grids]
    peaks = [(run.peak_bytes or 0) / MB for run in by_tokens]
    return [
        _sweep_curve("tokens", sizes, by_tokens),
        Curve("sweep's memory, tokens", "tokens", "peak MB", sizes, peaks, exponent(sizes, peaks)),
        _sweep_curve("scenarios", scenarios, by_scenarios),
    ]


def _sweep_curve(size: str, sizes: Sequence[int], runs: list[Run]) -> Curve:
    seconds = [run.wall_s for run in runs]
    return Curve(f"whole sweep, {size}", size, "seconds", sizes, seconds, exponent(sizes, seconds))


def growth_section(curves: Sequence[Curve]) -> Section:
    """The exponents, and the ratio of the largest to the smallest."""
    table = [
        (
            curve.title,
            f"{curve.sizes[0]:,} to {curve.sizes[-1]:,}",
            f"{curve.costs[0]:,.3g} to {curve.costs[-1]:,.3g} {curve.cost}",
            f"{curve.sizes[-1] / curve.sizes[0]:.0f} x",
            f"{curve.costs[-1] / curve.costs[0]:.1f} x",
            f"{curve.exponent:.2f}",
        )
        for curve in curves
    ]
    return Section(
        "Growth",
        ("work", "sizes", "cost", "size", "cost grows", "exponent"),
        table,
        f"Exponent p of cost ~ size^p over the three largest sizes; 1 is linear. LRU pass: {N_CAPACITIES} capacities "
        "at once, 21B shape but for what grows; a layer more is also more accesses, an expert more is not.",
        {curve.title: {"sizes": list(curve.sizes), "costs": list(curve.costs)} for curve in curves},
    )
