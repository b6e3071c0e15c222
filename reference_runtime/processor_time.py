"""What the machine's processors did, as Linux counts it: who was busy, and what a host gave to other guests."""

import os
from pathlib import Path
from typing import NamedTuple

PROC_STAT = Path("/proc/stat")


class ProcessorTimes(NamedTuple):
    """
    Seconds of all processors together since the machine started, in the order of proc(5).

    Guest times behind these are part of user and nice.
    """

    user_s: float
    nice_s: float
    system_s: float
    idle_s: float
    io_wait_s: float
    irq_s: float
    soft_irq_s: float
    steal_s: float

    @property
    def busy_s(self) -> float:
        """All but waiting: what the host gave to others counts as busy."""
        return sum(self) - self.idle_s - self.io_wait_s


def processor_times() -> ProcessorTimes | None:
    """The counts now, None where the system does not keep them all."""
    try:
        words = PROC_STAT.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    ticks = words[1 : 1 + len(ProcessorTimes._fields)]
    if words[0] != "cpu" or len(ticks) < len(ProcessorTimes._fields):
        return None
    return ProcessorTimes(*(int(tick) / os.sysconf("SC_CLK_TCK") for tick in ticks))


def steal_frac(before: ProcessorTimes | None, after: ProcessorTimes | None) -> float | None:
    """Share of all processor time that the host gave to others between two counts, None where one is not known."""
    if before is None or after is None:
        return None
    spent_s = sum(after) - sum(before)
    return (after.steal_s - before.steal_s) / spent_s if spent_s > 0 else 0.0


def load_average() -> float | None:
    """Mean number of runnable processes over the last minute, None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
