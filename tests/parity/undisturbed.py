"""
Timing on a machine that others use too, and whose own speed drifts: short turns, round and round.

What is to be compared is timed in turns, one after the other in every round, so that a slow minute of the machine is
shared by all of it.  A turn counts if the rest of the machine was idle meanwhile, or, where too few such turns come, if
it is among the least disturbed ones.  Where the system allows it (root), a turn runs at the highest normal priority.  A
second thread that waits at a barrier for one that another program pushed aside makes a graph tens of times slower, so a
disturbed turn is no noisier figure of the same thing but a figure of something else.
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from reference_runtime.processor_time import processor_times

Name = TypeVar("Name", bound=Hashable)
Turn = Callable[[], Sequence[float]]  # does what is timed a few times: the seconds of each time that counts

TURN_S = 0.12  # the kernel counts busy time in steps of 10 ms
N_ROUNDS, N_MOST_ROUNDS = 12, 16
N_QUIET = 5  # undisturbed turns wanted of everything
MOST_DISTURBED_FRAC = 0.08  # of one core, by others, in a turn that counts


def take_turns(turns: Mapping[Name, Turn]) -> dict[Name, list[float]]:
    """The median seconds of every turn that counts, in the order of the rounds."""
    taken: dict[Name, list[tuple[float, float]]] = {name: [] for name in turns}
    for n_rounds in range(1, N_MOST_ROUNDS + 1):
        for name, turn in turns.items():
            taken[name].append(_timed(turn))
        if n_rounds >= N_ROUNDS and all(_n_quiet(of_one) >= N_QUIET for of_one in taken.values()):
            break
    return {name: _that_count(of_one) for name, of_one in taken.items()}


def repeated(once: Callable[[], object]) -> list[float]:
    """A turn of TURN_S seconds: the seconds of every call but the first."""
    once()
    began, seconds = time.perf_counter(), list[float]()
    while not seconds or time.perf_counter() - began < TURN_S:
        start = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - start)
    return seconds


def _timed(turn: Turn) -> tuple[float, float]:
    """(share of one core that others used, median seconds)."""
    began, others_began = time.perf_counter(), others_busy_s()
    with favoured():
        seconds = turn()
    return (others_busy_s() - others_began) / (time.perf_counter() - began), median(seconds)


def _n_quiet(taken: list[tuple[float, float]]) -> int:
    return sum(others_frac <= MOST_DISTURBED_FRAC for others_frac, _ in taken)


def _that_count(taken: list[tuple[float, float]]) -> list[float]:
    """All undisturbed turns, or the N_QUIET least disturbed ones."""
    limit = max(MOST_DISTURBED_FRAC, sorted(others_frac for others_frac, _ in taken)[N_QUIET - 1])
    return [seconds for others_frac, seconds in taken if others_frac <= limit]


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
    """
    Seconds that all processors spent on anything but this process, since the machine started.

    0 where the system does not count them: every turn is then undisturbed.
    """
    times, own = processor_times(), os.times()
    return 0.0 if times is None else times.busy_s - own.user - own.system


def wait_until_quiet(patience_s: float = 120.0) -> bool:
    """Wait for half a second in which others use little; False where that did not come."""
    until = time.perf_counter() + patience_s
    while time.perf_counter() < until:
        before = others_busy_s()
        time.sleep(0.5)
        if others_busy_s() - before < 0.5 * MOST_DISTURBED_FRAC:
            return True
    return False
