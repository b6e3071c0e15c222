"""
Spot checks: short measurements that tell the machine's state, made by the probe in every round and by anyone later.

    small_token_tN    a decode token of the small shape, everything resident: it runs in the caches
    large_token_tN    a decode token of some layers of the middle shape, which come from RAM
    burst_64KiB, burst_2MiB    so many bytes in each of 4 reads at once, after 2 ms of products from RAM

Each is a mean without its lowest and highest tenth, in seconds.  The ratio of two takes is how much slower or faster
the machine has become.  For that the takes must be alike: the same shapes, the same bytes of weights, and for each
number of threads a process of its own that lives from the first take to the last and sleeps between them.  The file
that is read may be another one on the same disk; it must be far larger than a drive's own cache, at least some 64 MB.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from moeplan.errors import InputError
from moeplan.quantity import format_bytes
from reference_runtime.conditions import ram_bytes, usable_cores
from reference_runtime.core_affinity import bound_threads
from reference_runtime.kernels.fast import BLAS_THREADS, MOST_THREADS, FastKernels
from reference_runtime.probe.bursts import BurstKey, Bursts
from reference_runtime.probe.in_situ import ModelInMemory
from reference_runtime.probe.memory import WeightArena, touch
from reference_runtime.probe.plan import KIB, MIB, SHAPES, arena_bytes_of, spec_that_fits
from reference_runtime.probe.products import products_from_ram
from reference_runtime.probe.sampling import trimmed_mean
from reference_runtime.probe.storage import probe_file
from reference_runtime.probe.worker import Worker
from reference_runtime.streaming.direct_reads import DirectFile
from simulator.model.catalog import load_model_spec

N_SMALL_TOKENS, N_LARGE_TOKENS = 24, 10  # of a take, after two that are left out
BURST_BYTES = {"burst_64KiB": 64 * KIB, "burst_2MiB": 2 * MIB}
BURST_READS, BURST_IDLE_S, N_BURSTS = 4, 0.002, 40
OWN_FILE_BYTES = 128 * MIB  # written where there is no file to read


class SpotChecks:
    """Processes that take the checks.  Use it as a context manager, or close it."""

    def __init__(
        self, expert_file: Path | None, directory: Path, threads: Sequence[int], arena_bytes: int | None = None
    ) -> None:
        """
        expert_file: a file that is read and not written; None: one is made in the directory, without a name where the
        system can, and gone when the checks are closed.  threads: the numbers of threads.  arena_bytes: bytes of the
        large shape's experts and as much of dense weights; None: what a whole probe of this machine takes.

        Raises InputError.
        """
        n_bytes = arena_bytes_of(ram_bytes(), min(usable_cores(), MOST_THREADS)) if arena_bytes is None else arena_bytes
        with ExitStack() as opened:
            path = expert_file or opened.enter_context(probe_file(directory, OWN_FILE_BYTES, lambda _: None)).path
            self._workers = [
                opened.enter_context(Worker(open_spot_work, n, n_bytes, path if n == threads[0] else None))
                for n in threads
            ]
            self._opened = opened.pop_all()

    def __enter__(self) -> "SpotChecks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self) -> dict[str, float]:
        """Seconds of each check by its name; see the top of this file.  Raises InputError when a read fails."""
        return {name: seconds for worker in self._workers for name, seconds in worker.call("take").items()}

    def close(self) -> None:
        """End the processes.  May be called twice."""
        self._opened.close()


@dataclass(frozen=True, eq=False)
class SpotWork:
    """What the process of one number of threads holds."""

    kernels: FastKernels
    small: ModelInMemory
    large: ModelInMemory
    bursts: Bursts | None
    memory: tuple[np.ndarray, ...]

    def take(self) -> dict[str, float]:
        """Seconds of each check of this number of threads."""
        suffix = f"_token_t{self.kernels.n_threads}"
        touch(self.memory)
        with threadpool_limits(BLAS_THREADS, user_api="blas"):
            found = {
                f"small{suffix}": trimmed_mean(self.small.token_seconds(self.kernels, N_SMALL_TOKENS)),
                f"large{suffix}": trimmed_mean(self.large.token_seconds(self.kernels, N_LARGE_TOKENS)),
            }
            if self.bursts is not None:
                for name, n_bytes in BURST_BYTES.items():
                    key = BurstKey(n_bytes, BURST_READS, BURST_IDLE_S)
                    found[name] = trimmed_mean([self.bursts.seconds(key) for _ in range(N_BURSTS)])
        return found


@contextmanager
def open_spot_work(n_threads: int, arena_bytes: int, file: Path | None) -> Iterator[SpotWork]:
    """The object of a process; with bursts where there is a file.  Raises InputError."""
    kernels = FastKernels(n_threads)
    kernels.warm_up()
    small, large = (spec_that_fits(load_model_spec(name), arena_bytes) for name in SHAPES[:2])
    arena = WeightArena(arena_bytes)
    with ExitStack() as opened:
        opened.enter_context(bound_threads(n_threads))
        models = [ModelInMemory(spec, arena_bytes, arena) for spec in (small, large)]
        for model in models:
            opened.callback(model.close)
        bursts = None
        if file is not None:
            direct = DirectFile(file)
            opened.callback(direct.close)
            if direct.n_bytes < max(BURST_BYTES.values()):
                must = f"must have {format_bytes(max(BURST_BYTES.values()))} to be read"
                raise InputError(str(file), must, format_bytes(direct.n_bytes))
            bursts = Bursts(direct, arena.for_experts, products_from_ram(kernels, arena, arena_bytes))
            opened.callback(bursts.close)
        memory = (*arena.arrays, *(model.experts.arena for model in models))
        yield SpotWork(kernels, models[0], models[1], bursts, memory)
