"""What the cache does, for all capacities of a chunk: the one place where a sweep asks for hits and misses."""

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.engine_fast import decide
from simulator.scenario import Scenario
from simulator.sweeps.replay import LeanReplay


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
