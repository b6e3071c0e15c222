"""Medians of works that take turns, wall time and peak memory of a process tree, exponents of growth."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import numpy as np

from moeplan.errors import InputError

SAMPLE_S = 0.05  # between two looks at a process tree's memory; a peak that is shorter may be missed


def medians(works: Mapping[str, Callable[[], object]], n_rounds: int) -> dict[str, float]:
    """
    Median seconds of each work, in CPU time of this thread, so that other work on the machine disturbs it less.

    The works take turns, so that a machine that changes its speed changes it for all.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(n_rounds):
        for name, work in works.items():
            times[name].append(cpu_s(work))
    return {name: median(found) for name, found in times.items()}


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this thread for one call."""
    start = thread_time()
    work()
    return thread_time() - start


@dataclass(frozen=True)
class Run:
    """wall_s: from start to exit of a process; peak_bytes: most memory of it and its children, None if unknown."""

    wall_s: float
    peak_bytes: int | None


def run_process(command: Sequence[str], cwd: Path) -> Run:
    """
    Run a command to its end.

    Memory is the sum of proportional set sizes, which counts a page that several processes share once.
    Raises InputError with the command's last line where it fails.
    """
    with tempfile.TemporaryFile("w+") as said:
        start = perf_counter()
        running = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=said)
        peak_bytes = 0
        while running.poll() is None:
            peak_bytes = max(peak_bytes, sum(map(_pss_bytes, _tree(running.pid))))
            time.sleep(SAMPLE_S)
        wall_s = perf_counter() - start
        said.seek(0)
        lines = said.read().strip().splitlines() or [f"status {running.returncode}"]
    if running.returncode:
        raise InputError(" ".join(command[2:5]), "must succeed", lines[-1])
    return Run(wall_s, peak_bytes or None)


def _tree(pid: int) -> list[int]:
    """A process and all below it; those that ended meanwhile are left out."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text().split()]
            except OSError:
                continue
    return found


def _pss_bytes(pid: int) -> int:
    """0 for a process that has ended, or where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def exponent(sizes: Sequence[float], costs: Sequence[float], n_last: int = 3) -> float:
    """
    p of costs ~ sizes ** p, by least squares in logarithms over the n_last largest sizes: 1 is linear.

    The smallest sizes are left out because a fixed cost weighs most there.
    """
    slope, _ = np.polyfit(np.log(sizes[-n_last:]), np.log(costs[-n_last:]), 1)
    return float(slope)
