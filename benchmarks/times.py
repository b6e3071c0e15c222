"""
From misses to seconds: the closed form that sweeps use, the fast engine, the SimPy engine.

No scenario that the project accepts carries a read over from one layer to the next: with either prefetch policy the
expert FFN waits for its own layer's reads, in prefill as in decode.  So the closed form is exact, no recurrence over
layers is needed, and none exists to be measured.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import simpy

from benchmarks.made_up import SHAPES, Shape, capacities_of, made_up_rows, made_up_trace
from benchmarks.measure import medians
from benchmarks.report import Section
from hardware_profiles.catalog import load_profile
from hardware_profiles.rates import DeviceRates, rates
from simulator.cache_passes.miss_counts import miss_counts
from simulator.closed_form.totals import ComputeWorks, CountedTokens, MissSums
from simulator.engine_fast import FastEngine
from simulator.engine_simpy import simulate_simpy
from simulator.expert_layout import expert_layout
from simulator.memory import n_routed_experts
from simulator.miss_costs import miss_costs
from simulator.model.catalog import load_model_spec
from simulator.model.spec import with_top_k
from simulator.prefetch import PRE_ATTENTION
from simulator.scenario import Scenario, steps_of

DEVICE, MODEL_21B, MODEL_4B = "rk3588", "smallthinker-21b-a3b", "smallthinker-4b-a0.6b"
N_CAPACITIES = N_SPEEDS = 20
MILLION = 1e6
N_TIMEOUTS = 100_000  # of the bare event loop


class ClosedForm:
    """Twenty caches at twenty storage speeds over one trace of the 21B shape, the misses at hand."""

    def __init__(self, n_tokens: int) -> None:
        model, shape = load_model_spec(MODEL_21B), SHAPES["21B"]
        rows = made_up_rows(n_tokens, shape)
        self.n_misses = miss_counts(rows, "lru", capacities_of(rows, N_CAPACITIES)).reshape(
            n_tokens, shape.n_layers, -1
        )
        tokens = made_up_trace(n_tokens, Shape(1, 2, 1))  # requests and positions; the rows are above
        steps = steps_of(tokens, context=None, rows_of=lambda tokens, is_decode: ())
        self.tokens = CountedTokens(model, steps, np.ones(n_tokens, bool), False)
        device, layout = rates(load_profile(DEVICE)), expert_layout(model, "bundle")
        self.times = ComputeWorks(self.tokens, device).times(device)
        self.devices = [_at_speed(device, speed) for speed in np.geomspace(0.5e9, 8e9, N_SPEEDS)]
        self.beside = [miss_costs(device, layout, shape.top_k, PRE_ATTENTION) for device in self.devices]
        self.n_steps = N_CAPACITIES * N_SPEEDS * n_tokens * shape.n_layers

    def sums(self) -> list[MissSums]:
        """A histogram of misses and its prefix sums for every cache."""
        found = (self.tokens.histogram(self.n_misses[:, :, cache]) for cache in range(N_CAPACITIES))
        return [MissSums(self.times, histogram) for histogram in found]

    def seconds(self, all_sums: list[MissSums]) -> list[float]:
        """Seconds of the whole trace, cache by cache, speed by speed."""
        return [
            sums.totals(beside, device, PRE_ATTENTION).step_s
            for sums in all_sums
            for beside, device in zip(self.beside, self.devices, strict=True)
        ]


def _at_speed(device: DeviceRates, bytes_per_s: float) -> DeviceRates:
    storage = device.storage.at_read_rate(bytes_per_s, device.sequential_read_bytes_per_s)
    return replace(device, storage=storage, sequential_read_bytes_per_s=bytes_per_s)


def streaming_scenario(n_tokens: int, top_k: int, cached_frac: float) -> Scenario:
    """The 4B on a small computer, with a cache of a share of its experts; with none every expert is read."""
    model = with_top_k(load_model_spec(MODEL_4B), top_k)
    trace = made_up_trace(n_tokens, SHAPES["4B"]._replace(top_k=top_k))
    return Scenario(
        model=model,
        rates=rates(load_profile("raspberry-pi-5-nvme")),
        steps=steps_of(trace, context=None),
        n_slots=int(cached_frac * n_routed_experts(model)),
        layout=expert_layout(model, "bundle"),
    )


def bare_timeouts(n: int) -> None:
    """One process that sleeps n times: what an event costs in SimPy at the least."""
    env = simpy.Environment()

    def sleeper():  # type: ignore[no-untyped-def]
        for _ in range(n):
            yield env.timeout(1.0)

    env.run(env.process(sleeper()))


def times_section(n_tokens: int, simpy_tokens: int, n_rounds: int) -> Section:
    """Steps (scenario x token x layer) a second of the three ways from misses to seconds."""
    closed = ClosedForm(n_tokens)
    all_sums = closed.sums()
    one_read, half = streaming_scenario(simpy_tokens, 1, 0.0), streaming_scenario(simpy_tokens, 4, 0.5)
    fast = FastEngine(half)
    works: dict[str, Callable[[], object]] = {
        "closed form, histograms included": lambda: closed.seconds(closed.sums()),
        "closed form, histograms at hand": lambda: closed.seconds(all_sums),
        "fast engine, a whole timeline": lambda: fast.timeline(half.rates),
        "SimPy engine, one read a layer": partial(simulate_simpy, one_read),
        "SimPy engine, half the experts cached": partial(simulate_simpy, half),
        "SimPy alone, timeouts": partial(bare_timeouts, N_TIMEOUTS),
    }
    works["closed form, histograms at hand"]()
    seconds = medians(works, n_rounds)
    n_layers = SHAPES["4B"].n_layers
    n_steps = dict.fromkeys(works, simpy_tokens * n_layers)
    n_steps |= dict.fromkeys(list(works)[:2], closed.n_steps) | {"SimPy alone, timeouts": N_TIMEOUTS}
    figures = {name: n_steps[name] / spent_s for name, spent_s in seconds.items()}
    of_simpy = figures["SimPy engine, one read a layer"]
    table = [(name, f"{rate / MILLION:,.3f}", f"{rate / of_simpy:,.1f}") for name, rate in figures.items()]
    n_reads = float(fast.decisions.n_misses.mean())
    return Section(
        "From misses to seconds",
        ("way", "M steps/s", "x SimPy, one read"),
        table,
        f"One core; a step is a token's layer in one scenario. Closed form: {N_CAPACITIES} caches x {N_SPEEDS} storage "
        f"speeds, 21B shape, {n_tokens:,} tokens. Engines: 4B shape, {simpy_tokens:,} tokens; half the experts cached "
        f"means {n_reads:.2f} reads a layer. No accepted scenario carries a read over to the next layer (the expert "
        "FFN waits for its own layer's reads), so the closed form is exact and there is no recurrence to time.",
        figures,
    )
