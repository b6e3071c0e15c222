"""
The probe from end to end: a plan, rounds of samples until the time is over, and the profile that they make.

A round takes every kind of sample once.  A first round is always taken whole, so a machine that is busy with other
things gets a whole profile too, with wide spreads and later than it should be.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from moeplan.quantity import format_bytes
from reference_runtime.forward import rms_norm
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.probe.figures import profile_of
from reference_runtime.probe.in_situ import ModelInMemory, models_in_memory
from reference_runtime.probe.issue import open_issues
from reference_runtime.probe.machine import stolen_s, this_machine
from reference_runtime.probe.plan import KINDS, MIB, Plan
from reference_runtime.probe.products import RowKey, Weights, expert_cases, product_cases, type_name
from reference_runtime.probe.rows import product_times, rest_times
from reference_runtime.probe.sampling import Case, Samples
from reference_runtime.probe.sharing import WAITS_S, Reads, share, wake
from reference_runtime.probe.storage import Bursts, burst_keys, check_room, closed_loop, loop_cells, probe_file

SLOW_S, SLOW_ROUNDS = 0.03, 3  # a sample that takes longer is taken in the first rounds only
CHUNK_ROUNDS = 2  # whole prompts in memory
SMALL_SHAPE = (256, 1536)  # a product of some tens of microseconds
STREAM_SHAPE = (1536, 1536)  # the product that runs beside reads and between bursts
OnProgress = Callable[[int, int], object]  # seconds that have passed, seconds in all


@dataclass(frozen=True, eq=False)
class Part:
    """Some samples of a round; none after most_rounds."""

    take: Callable[[int], object]  # told the round
    most_rounds: int = 2**20


def announcement(plan: Plan) -> str:
    """What the probe is going to do to the disk, in one line."""
    return f"writes {plan.file_bytes / 1e6:.0f} MB to {plan.directory} and removes them"


def probe(plan: Plan, name: str, on_progress: OnProgress = lambda done, total: None) -> dict[str, Any]:
    """
    The profile of this machine, as the mapping of its YAML.

    Raises InputError: a folder that cannot be written, a disk with too little room, too little memory.
    """
    check_room(plan.directory, plan.file_bytes)
    load = os.getloadavg()[0]
    machine, samples, began, stolen = this_machine(plan.directory), Samples(), perf_counter(), stolen_s()

    def progress(_: object = None) -> None:
        on_progress(int(min(plan.seconds, perf_counter() - began)), int(plan.seconds))

    with _parts(plan, samples, progress) as parts:
        n_rounds = _rounds(parts, began + plan.seconds, progress)
    products = product_times(samples)
    times = products | rest_times(plan, samples, products)
    seconds = perf_counter() - began
    noise = f"{_noise(plan, samples)}{_load(load)}{_stolen(stolen)}"
    notes = f"{machine.description}; {n_rounds} rounds in {seconds:.0f} s; {noise}"
    return profile_of(plan, machine, samples, times, name, notes)


def _rounds(parts: list[Part], until: float, progress: Callable[[], object]) -> int:
    """Whole rounds while there is time for another; the number of them."""
    n, longest = 0, 0.0
    while not n or perf_counter() + longest < until:
        began = perf_counter()
        for part in parts:
            if n < part.most_rounds:
                part.take(n)
                progress()
        longest = (
            perf_counter() - began if n in (0, CHUNK_ROUNDS, SLOW_ROUNDS) else max(longest, perf_counter() - began)
        )
        n += 1
    return n


@contextmanager
def _parts(plan: Plan, samples: Samples, progress: Callable[[object], object]) -> Iterator[list[Part]]:
    """Everything that a round takes, with all that it needs open."""
    kernels = [FastKernels(n) for n in plan.threads]
    kernels[0].warm_up()
    with probe_file(plan.directory, plan.file_bytes, progress) as file:
        weights = Weights(plan)
        progress(None)
        stream = weights.arena.cycle(KINDS[0], STREAM_SHAPE, plan.arena_bytes)
        x = np.ones((1, STREAM_SHAPE[1]), np.float32)
        small = weights.arena.cycle(KINDS[0], SMALL_SHAPE, plan.arena_bytes)
        x_small, norm = np.ones((1, SMALL_SHAPE[1]), np.float32), np.ones(SMALL_SHAPE[0], np.float32)
        most = kernels[-1]
        bursts, reads, issues = Bursts(plan, file), Reads(file), open_issues(file, plan)
        try:
            with models_in_memory(plan, weights.arena) as models:
                progress(None)
                cells, bursts_of = loop_cells(plan, file), burst_keys(plan)

                def compute() -> None:
                    most.matmul(x, stream())

                def products_of(one: FastKernels) -> Callable[[], object]:
                    def compute() -> None:  # a product between steps in numpy, as in a layer
                        rms_norm(one.matmul(x_small, small()), norm, 1e-6)

                    return compute

                def loops(seed: int) -> None:
                    for cell in cells:
                        closed_loop(cell, file, plan.cell_s, seed, samples)

                def all_bursts(_: int) -> None:
                    for key in bursts_of:
                        samples.add(key, float(np.median([bursts.seconds(key, compute) for _ in range(plan.n_bursts)])))

                def together(_: int) -> None:
                    with threadpool_limits(most.n_threads, user_api="blas"):
                        share(reads, compute, samples)
                        for wait_s in WAITS_S:
                            wake(file, wait_s, samples)
                    for one in kernels:
                        with threadpool_limits(one.n_threads, user_api="blas"):
                            for issue in issues:
                                issue.measure(products_of(one), one.n_threads, samples)

                yield [
                    *(part for one in kernels for part in _compute_parts(plan, weights, models, one, samples)),
                    Part(loops),
                    Part(all_bursts),
                    Part(together),
                    Part(lambda _: samples.add("copy", _copied_bytes_per_s(weights, most.n_threads))),
                ]
        finally:
            bursts.close()
            reads.close()
            for issue in issues:
                issue.close()


def _compute_parts(
    plan: Plan, weights: Weights, models: list[ModelInMemory], kernels: FastKernels, samples: Samples
) -> Iterator[Part]:
    cases = product_cases(plan, weights, kernels)
    rows = [(pool, expert_cases(plan, spec, kind, pool, kernels)) for spec, kind, pool in weights.pools]

    def products(n: int) -> None:
        with threadpool_limits(kernels.n_threads, user_api="blas"):
            samples.take(_of_round(cases, n, samples))
            for pool, own in rows:
                pool.fill()
                samples.take(own)

    def whole(model: ModelInMemory, n_tokens: int) -> Callable[[int], None]:
        def take(_: int) -> None:
            with threadpool_limits(kernels.n_threads, user_api="blas"):
                model.measure(kernels, n_tokens, samples)

        return take

    yield Part(products)
    yield from (Part(whole(model, 1)) for model in models)
    yield from (Part(whole(model, n), CHUNK_ROUNDS) for model in models[:2] for n in plan.chunks)


def _of_round(cases: list[Case], n: int, samples: Samples) -> list[Case]:
    """All cases in the first rounds, later without the slow ones."""
    if n < SLOW_ROUNDS:
        return cases
    return [case for case in cases if case.key.op == "gemv" or samples.median(case.key) < SLOW_S]  # type: ignore[attr-defined]


def _copied_bytes_per_s(weights: Weights, n_threads: int) -> float:
    """Bytes read and written in a second by a copy in memory, far larger than the caches."""
    with ThreadPoolExecutor(n_threads) as pool:
        began = perf_counter()
        copies = [pool.submit(weights.arena.copy, part, n_threads) for part in range(n_threads)]
        return sum(copy.result() for copy in copies) / (perf_counter() - began)


def _noise(plan: Plan, samples: Samples) -> str:
    """The same product at the start, in the middle and at the end."""
    key = max(
        (
            key
            for key in samples.values
            if isinstance(key, RowKey) and key.op == "gemv" and key.type == type_name(KINDS[0]) and key.size <= 2 * MIB
        ),
        key=lambda key: (key.working_set, key.threads == plan.threads[0], key.size),
    )
    values = samples.values[key]
    shown = [values[0], values[len(values) // 2], values[-1]]
    rates = ", ".join(f"{key.size / one / 1e9:.3g}" for one in shown)
    return f"noise: {format_bytes(key.size)} products from RAM at {rates} GB/s at the start, the middle and the end"


def _load(before: float) -> str:
    """How busy other programs kept the machine; the probe itself adds about one."""
    return f"; load average {before:.1f} before and {os.getloadavg()[0]:.1f} after"


def _stolen(before: float | None) -> str:
    after = stolen_s()
    if before is None or after is None:
        return ""
    return f"; {after - before:.1f} s of core time were taken by other guests of the host"
