"""What the cache does, for all capacities of a chunk: the one place where a sweep asks for hits and misses."""

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.closed_form.replay import LeanReplay
from simulator.closed_form.totals import CountedTokens
from simulator.engine_fast import decide
from simulator.scenario import Scenario

BLOCK_STEPS = 1000  # steps whose misses are counted before the next ones are decided: a MB or two


def counted_misses(scenarios: Sequence[Scenario], replay: LeanReplay) -> Iterator[np.ndarray]:
    """
    For scenarios that differ in slots and preloading alone: integer (n_counted, n_moe_layers) misses of the counted
    steps.

    One pass over the trace serves all capacities; a policy without a pass runs once a capacity.  Experts that are all
    preloaded never miss.
    """
    from simulator.cache_passes.miss_counts import PASSES, miss_counts

    first = scenarios[0]
    shape = (len(first.steps), first.model.n_moe_layers)
    if first.model.experts is None or first.cache_policy not in PASSES:
        yield from (decide(scenario).n_misses[scenario.is_counted] for scenario in scenarios)
        return
    is_counted = first.is_counted  # the same for all: they share their steps and start
    slots = sorted({scenario.n_slots for scenario in scenarios if not scenario.preloaded})
    counts = miss_counts(replay.rows(first.steps), first.cache_policy, slots) if slots else None
    for scenario in scenarios:
        if scenario.preloaded or counts is None:
            yield np.zeros((int(is_counted.sum()), shape[1]), np.uint8)
        else:
            yield counts[:, slots.index(scenario.n_slots)].reshape(shape)[is_counted]


def miss_histograms(scenarios: Sequence[Scenario], tokens: CountedTokens, replay: LeanReplay) -> np.ndarray:
    """The same as histograms, without all misses in memory: int64 (n_scenarios, n_kinds, n_contexts, width)."""
    from simulator.cache_passes.miss_counts import PASSES, miss_count_blocks

    first, held = scenarios[0], tokens.all_held()
    slots = sorted({scenario.n_slots for scenario in scenarios if not scenario.preloaded})
    if first.model.experts is None or not slots:
        return np.array([held for _ in scenarios])
    if first.cache_policy not in PASSES:
        blocks = ([(0, decide(scenario).n_misses.reshape(-1, 1))] for scenario in scenarios)
        return np.array([tokens.histograms(each, 1)[0] for each in blocks])
    rows = replay.rows(first.steps)
    found = miss_count_blocks(rows, first.cache_policy, slots, BLOCK_STEPS * rows.n_layers)
    by_slots = dict(zip(slots, tokens.histograms(found, len(slots)), strict=True))
    return np.array([held if scenario.preloaded else by_slots[scenario.n_slots] for scenario in scenarios])


def load_passes(cache_policies: Sequence[str]) -> None:
    """Read the compiled passes from numba's cache, or compile them, by running each on one row."""
    from simulator.cache_passes.miss_counts import PASSES, miss_counts
    from simulator.cache_passes.rows import rows_of

    for policy in cache_policies:
        if policy in PASSES:
            miss_counts(rows_of([(0, [0])], 1, 1), policy, [0, 1])
