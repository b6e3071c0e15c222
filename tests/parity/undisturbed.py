"""
Timing on a machine that others use too: a batch of runs counts only if the rest of the machine was idle meanwhile.

Where the system allows it (root), a batch runs at the highest normal priority, a tenth of a second at a time.  A second
thread that waits at a barrier for one that another program pushed aside makes a graph tens of times slower, so a
disturbed batch is no noisier figure of the same thing but a figure of something else.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

BATCH_S = 0.12  # the kernel counts busy time in steps of 10 ms
N_BATCHES = 3
MOST_DISTURBED_FRAC = 0.08  # of one core, by others, in a batch that counts
PATIENCE_S = 1.5  # then the least disturbed batches count
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def undisturbed_s(once: Callable[[], object], n_batches: int = N_BATCHES, patience_s: float = PATIENCE_S) -> float:
    """Median seconds of one call over the undisturbed batches, the first call not counted."""
    once()
    batches: list[tuple[float, list[float]]] = []
    until = time.perf_counter() + patience_s
    while True:
        batches.append(_batch(once))
        quiet = [runs for others_frac, runs in batches if others_frac <= MOST_DISTURBED_FRAC]
        if len(quiet) >= n_batches:
            return median(run for runs in quiet for run in runs)
        if time.perf_counter() > until:
            best = sorted(batches, key=lambda batch: batch[0])[:n_batches]
            return median(run for _, runs in best for run in runs)


def _batch(once: Callable[[], object]) -> tuple[float, list[float]]:
    """(share of one core that others used, seconds of the runs)."""
    began, others_began, runs = time.perf_counter(), others_busy_s(), list[float]()
    with favoured():
        while not runs or time.perf_counter() - began < BATCH_S:
            start = time.perf_counter()
            once()
            runs.append(time.perf_counter() - start)
    return (others_busy_s() - others_began) / (time.perf_counter() - began), runs


@contextlib.contextmanager
def favoured() -> Iterator[None]:
    """All threads of this process before those of others, where the system allows it; at nice 0 afterwards."""
    try:
        _set_nice(-20)
        yield
    finally:
        _set_nice(0)


def _set_nice(nice: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)


def others_busy_s() -> float:
    """Seconds that all processors spent on anything but this process, since the machine started."""
    user, nice, system, _, _, irq, soft_irq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    own = os.times()
    return (user + nice + system + irq + soft_irq + steal) * _TICK_S - own.user - own.system


def wait_until_quiet(patience_s: float = 120.0) -> bool:
    """Wait for half a second in which others use little; False where that did not come."""
    until = time.perf_counter() + patience_s
    while time.perf_counter() < until:
        before = others_busy_s()
        time.sleep(0.5)
        if others_busy_s() - before < 0.5 * MOST_DISTURBED_FRAC:
            return True
    return False
