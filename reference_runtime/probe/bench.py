"""
What the process of one number of threads measures: all compute on so many threads, and the process of the fewest
threads, which leave the readers most room, the disk as well.

A round asks for every part once; a part gives its samples.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
from threadpoolctl import threadpool_limits

from reference_runtime.core_affinity import bound_threads, free_this_thread
from reference_runtime.kernels.fast import BLAS_THREADS, FastKernels
from reference_runtime.probe.bursts import BurstKey, Bursts
from reference_runtime.probe.in_situ import ModelInMemory, models_in_memory
from reference_runtime.probe.memory import WeightArena, touch
from reference_runtime.probe.plan import Plan
from reference_runtime.probe.products import Weights, expert_cases, product_cases, products_from_ram
from reference_runtime.probe.sampling import Case, Samples
from reference_runtime.probe.sharing import WAITS_S, Reads, share, wake
from reference_runtime.probe.storage import ProbeFile, closed_loop, loop_cells, open_probe_file
from reference_runtime.probe.with_reads import ModelWithReads, models_with_reads

SLOW_S, SLOW_ROUNDS = 0.03, 3  # a sample that takes longer is taken in the first rounds only
CHUNK_ROUNDS = 6  # whole prompts in memory
LOOP_ROUNDS = 4  # closed loops over request size and depth
EVERY_ROUND = 2**20


@dataclass(frozen=True, eq=False)
class Part:
    """Some samples of a round; none after most_rounds."""

    take: Callable[[int, Samples], object]  # told the round
    most_rounds: int = EVERY_ROUND


class Bench:
    """The parts by name, and what they need, open; memory: what they work on."""

    def __init__(self, parts: dict[str, Part], memory: list[np.ndarray]) -> None:
        self._parts, self._memory = parts, memory

    def names(self, n_round: int) -> list[str]:
        """The parts of a round, which begins: its memory is used, so that no page has been left alone for long."""
        touch(self._memory)
        return [name for name, part in self._parts.items() if n_round < part.most_rounds]

    def take(self, name: str, n_round: int) -> Samples:
        """The samples of a part.  Raises InputError when a read fails."""
        samples = Samples()
        with threadpool_limits(BLAS_THREADS, user_api="blas"):
            self._parts[name].take(n_round, samples)
        return samples


@contextmanager
def open_bench(plan: Plan, n_threads: int, path: Path) -> Iterator[Bench]:
    """The object of a process; path: of the file that is read.  Raises InputError."""
    kernels = FastKernels(n_threads)
    kernels.warm_up()
    with ExitStack() as opened:
        opened.enter_context(bound_threads(n_threads))
        file, weights = opened.enter_context(open_probe_file(path)), Weights(plan)
        models = opened.enter_context(models_in_memory(plan, weights.arena))
        reading = opened.enter_context(models_with_reads(plan.shapes[:2], plan.arena_bytes, weights.arena, file.direct))
        parts = dict(_compute_parts(plan, weights, models, reading, kernels))
        if n_threads == plan.threads[0]:
            reads = Reads(file)
            opened.callback(reads.close)
            compute = products_from_ram(kernels, weights.arena, plan.arena_bytes)
            bursts = Bursts(file.direct, weights.arena.for_experts, compute)
            opened.callback(bursts.close)
            parts |= _disk_parts(plan, file, bursts, reads, compute)
        if n_threads == plan.threads[-1]:
            parts["copy"] = Part(lambda _, samples: samples.add("copy", copied_bytes_per_s(weights.arena, n_threads)))
        slots = [*(model.experts.arena for model in models), *(model.experts.arena for model in reading)]
        yield Bench(parts, [*weights.arrays, *slots])


def _compute_parts(
    plan: Plan, weights: Weights, models: list[ModelInMemory], reading: list[ModelWithReads], kernels: FastKernels
) -> Iterator[tuple[str, Part]]:
    cases, slow = product_cases(plan, weights, kernels), set[Case]()
    rows = [(pool, expert_cases(plan, spec, kind, pool, kernels)) for spec, kind, pool in weights.pools]

    def products(n_round: int, samples: Samples) -> None:
        samples.take(case for case in cases if case not in slow)
        if n_round == SLOW_ROUNDS - 1:
            slow.update(case for case in cases if case.key.op != "gemv" and samples.last(case.key) > SLOW_S)  # type: ignore[attr-defined]

    def experts(_: int, samples: Samples) -> None:
        for pool, own in rows:
            pool.fill()
            samples.take(own)

    def whole(model: ModelInMemory, n_tokens: int, _: int, samples: Samples) -> None:
        model.measure(kernels, n_tokens, samples)

    def keys(model: ModelInMemory, context: int, _: int, samples: Samples) -> None:
        model.measure_context(kernels, context, samples)

    def misses(model: ModelWithReads, _: int, samples: Samples) -> None:
        model.measure(kernels, samples)

    yield "products", Part(products)
    yield "experts", Part(experts)
    for model in models:
        yield f"token of {model.spec.name}", Part(partial(whole, model, 1))
    for model in models[:2]:
        for n in plan.chunks:
            yield f"{n} tokens of {model.spec.name}", Part(partial(whole, model, n), CHUNK_ROUNDS)
    for model in models[:2]:
        for context in plan.contexts[1:]:
            yield f"{context} keys of {model.spec.name}", Part(partial(keys, model, context))
    for with_reads in reading:
        yield f"misses of {with_reads.spec.name}", Part(partial(misses, with_reads))


def _disk_parts(
    plan: Plan, file: ProbeFile, bursts: Bursts, reads: Reads, compute: Callable[[], object]
) -> dict[str, Part]:
    cells, keys = loop_cells(plan, file), burst_keys(plan)

    def loops(n_round: int, samples: Samples) -> None:
        for cell in cells:
            closed_loop(cell, file, plan.cell_s, n_round, samples)

    def all_bursts(_: int, samples: Samples) -> None:
        for _again in range(plan.n_bursts):
            for key in keys:
                samples.add(key, bursts.seconds(key))

    def together(_: int, samples: Samples) -> None:
        share(reads, compute, samples)
        for wait_s in WAITS_S:
            wake(file, wait_s, samples)

    return {"loops": Part(loops, LOOP_ROUNDS), "bursts": Part(all_bursts), "sharing": Part(together)}


def burst_keys(plan: Plan) -> list[BurstKey]:
    """Every burst of the plan that fits into its file."""
    return [
        BurstKey(size, n, idle_s)
        for size in plan.burst_bytes
        for n in plan.burst_requests
        for idle_s in plan.burst_idle_s
        if size <= min(plan.file_bytes, plan.arena_bytes)
    ]


def copied_bytes_per_s(arena: WeightArena, n_threads: int) -> float:
    """Bytes read and written in a second by a copy in memory, far larger than the caches."""
    with ThreadPoolExecutor(n_threads, initializer=free_this_thread) as pool:
        began = perf_counter()
        copies = [pool.submit(arena.copy, part, n_threads) for part in range(n_threads)]
        return sum(copy.result() for copy in copies) / (perf_counter() - began)
