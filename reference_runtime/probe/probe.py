"""
The probe from end to end: a plan, rounds of samples until the time is over, and the profile that they make.

Each number of threads is measured in a process of its own, as it runs; a round asks each process for every kind of
sample once, in turn, so that what happens to the machine happens to all alike.  A first round is always taken whole, so
a machine that is busy with other things gets a whole profile too, with wide spreads and later than it should be.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from moeplan.progress import OnProgress, ignore_progress
from moeplan.quantity import format_bytes
from reference_runtime.probe.bench import open_bench
from reference_runtime.probe.figures import contention_of, profile_of
from reference_runtime.probe.machine import check_memory, this_machine
from reference_runtime.probe.miss_rows import miss_times
from reference_runtime.probe.plan import KINDS, MIB, N_ARENAS, Plan
from reference_runtime.probe.products import RowKey, type_name
from reference_runtime.probe.rows import Disagreement, Times, product_times, rest_times
from reference_runtime.probe.sampling import Samples, log_spread
from reference_runtime.probe.spot_checks import SpotChecks
from reference_runtime.probe.storage import check_room, open_probe_file, probe_file
from reference_runtime.probe.worker import Worker
from reference_runtime.processor_time import ProcessorTimes, load_average, processor_times

SLACK_ROUNDS = (1, 3, 4, 6)  # after these the rounds become shorter: see bench.py
MOST_OFF_FRAC = 0.25  # by which the products of an operation may take longer than the operation
LEAST_OFF_FRAC = -0.5  # the same of the experts of a chunk, which stand for the whole; passes of a few layers run cold
AGAIN_ROUNDS = 2  # of one number of threads, where they do
MOST_LATE = 1.05  # of the plan's seconds, after which nothing is measured again


@dataclass(frozen=True, eq=False)
class Benches:
    """The processes, by their number of threads, and what they gave; spots: of the spot checks."""

    workers: dict[int, Worker]
    checks: SpotChecks
    samples: Samples
    spots: Samples

    def take_round(self, n_round: int, progress: Callable[[], object]) -> None:
        """One sample of everything."""
        for name, seconds in self.checks.take().items():
            self.spots.add(name, seconds)
        for n_threads in self.workers:
            self.take(n_threads, n_round, progress)

    def take(self, n_threads: int, n_round: int, progress: Callable[[], object]) -> None:
        """The parts of a round of one number of threads."""
        worker = self.workers[n_threads]
        for name in worker.call("names", n_round):
            self.samples.merge(worker.call("take", name, n_round))
            progress()


def announcement(plan: Plan) -> str:
    """What the probe is going to do to the disk, in one line."""
    if plan.read_file is not None:
        return f"reads {plan.read_file} and writes nothing"
    return f"writes {plan.file_bytes / 1e6:.0f} MB to {plan.directory} and removes them"


def probe(plan: Plan, name: str, on_progress: OnProgress = ignore_progress) -> dict[str, Any]:
    """
    The profile of this machine, as the mapping of its YAML; on_progress is told seconds.

    Raises InputError: a folder that cannot be written, a disk with too little room, too little memory.
    """
    if plan.read_file is None:
        check_room(plan.directory, plan.file_bytes)
    load = load_average()
    machine, began, counts = this_machine(plan.directory), perf_counter(), processor_times()
    check_memory(machine, N_ARENAS * plan.arena_bytes * len(plan.threads))

    def progress(_: object = None) -> None:
        on_progress(int(min(plan.seconds, perf_counter() - began)), int(plan.seconds))

    with _open(plan, progress) as bench:
        n_rounds = _rounds(bench, began + plan.seconds, progress)
        times, off = _times_or_again(plan, bench, began + plan.seconds * MOST_LATE, progress)
    seconds = perf_counter() - began
    noise = f"{_noise(plan, bench)}{_off(off)}{_load(load)}{_stolen(counts)}"
    rounds = "rounds" if n_rounds > 1 else "round, so spreads are assumed and not measured,"
    read = "a new file" if plan.read_file is None else f"{plan.read_file.name}, {format_bytes(plan.file_bytes)}"
    notes = f"{machine.description}; disk: read from {read}; {n_rounds} {rounds} in {seconds:.0f} s; {noise}"
    return profile_of(plan, machine, bench.samples, bench.spots, times, name, notes)


@contextmanager
def _open(plan: Plan, progress: Callable[[object], object]) -> Iterator[Benches]:
    with ExitStack() as opened:
        of_plan = probe_file(plan.directory, plan.file_bytes, progress)
        file = opened.enter_context(of_plan if plan.read_file is None else open_probe_file(plan.read_file))
        workers = {n: opened.enter_context(Worker(open_bench, plan, n, file.path)) for n in plan.threads}
        checks = SpotChecks(file.path, plan.directory, plan.threads, plan.spot_arena_bytes)
        opened.callback(checks.close)
        for worker in workers.values():  # all are ready before the first is measured
            worker.call("names", 0)
            progress(None)
        yield Benches(workers, checks, Samples(), Samples())


def _rounds(bench: Benches, until: float, progress: Callable[[], object]) -> int:
    """Whole rounds while there is time for another; the number of them."""
    n, longest = 0, 0.0
    while not n or perf_counter() + longest < until:
        began = perf_counter()
        bench.take_round(n, progress)
        seconds = perf_counter() - began
        longest = seconds if n in SLACK_ROUNDS else max(longest, seconds)
        n += 1
    return n


def _times_or_again(
    plan: Plan, bench: Benches, until: float, progress: Callable[[], object]
) -> tuple[Times, list[Disagreement]]:
    """
    The rows of the kernel table.  Where the products of an operation take far longer than it as a whole, or the experts
    of a chunk far less, one of both was disturbed: they are measured again, and what stays so is told.
    """
    for n_again in range(AGAIN_ROUNDS + 1):
        times, off = _times(plan, bench.samples)
        far = [one for one in off if not LEAST_OFF_FRAC <= one.frac <= MOST_OFF_FRAC]
        if not far or n_again == AGAIN_ROUNDS or perf_counter() > until:
            break
        for n_threads in sorted({one.threads for one in far}):
            bench.take(n_threads, 0, progress)
    return times, far


def _times(plan: Plan, samples: Samples) -> tuple[Times, list[Disagreement]]:
    products, contention = product_times(plan, samples), contention_of(samples)
    rest, off = rest_times(plan, samples, products)
    speeds = (contention["compute_speed"]["value"], contention["read_speed"]["value"])
    return products | rest | miss_times(plan, samples, *speeds), off


def _noise(plan: Plan, bench: Benches) -> str:
    """The same product at the start, in the middle and at the end; and how far the spot checks went."""
    key = max(
        (
            key
            for key in bench.samples.values
            if isinstance(key, RowKey) and key.op == "gemv" and key.type == type_name(KINDS[0]) and key.size <= 2 * MIB
        ),
        key=lambda key: (key.working_set, key.threads == plan.threads[0], key.size),
    )
    values = bench.samples.values[key]
    shown = [values[0], values[len(values) // 2], values[-1]]
    rates = ", ".join(f"{key.size / one / 1e9:.3g}" for one in shown)
    spots = ", ".join(f"{name} {log_spread(one):.1%}" for name, one in bench.spots.values.items())
    return (
        f"noise: {format_bytes(key.size)} products from RAM at {rates} GB/s at the start, the middle and the end; "
        f"standard deviation over the rounds: {spots}"
    )


def _off(off: list[Disagreement]) -> str:
    """Operations that took less time than their products, and experts of a chunk that took more."""
    return "".join(
        f"; products alone take {word} than the whole operation: {', '.join(map(_off_text, some))}"
        for word, some in (
            ("longer", [one for one in off if one.frac > 0]),
            ("less", [one for one in off if one.frac < 0]),
        )
        if some
    )


def _off_text(one: Disagreement) -> str:
    return f"{one.op} of {one.shape}, {one.n_tokens} tokens, {one.threads} threads {abs(one.frac):.0%}"


def _load(before: float | None) -> str:
    """How busy other programs kept the machine; the probe itself adds about one."""
    after = load_average()
    return "" if before is None or after is None else f"; load average {before:.1f} before and {after:.1f} after"


def _stolen(before: ProcessorTimes | None) -> str:
    after = processor_times()
    if before is None or after is None:
        return ""
    return f"; {after.steal_s - before.steal_s:.1f} s of core time were taken by other guests of the host"
