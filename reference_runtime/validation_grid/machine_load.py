"""What else the machine did while a cell ran, so that a disturbed cell can be told from a quiet one."""

import os
from dataclasses import dataclass
from pathlib import Path

PROC_STAT = Path("/proc/stat")
STEAL = 7  # user, nice, system, idle, iowait, irq, softirq, steal: proc(5)
N_TIMES = 8  # guest times behind them are part of user and nice


@dataclass(frozen=True)
class LoadMark:
    """Ticks of all processors since the machine started; None where the system does not count them."""

    times: tuple[int, ...] | None

    def steal_frac_since(self, before: "LoadMark") -> float | None:
        """Share of all processor time that the host gave to others between two marks."""
        if self.times is None or before.times is None:
            return None
        spent = [now - then for now, then in zip(self.times, before.times, strict=True)]
        return spent[STEAL] / sum(spent) if sum(spent) > 0 else 0.0


def load_mark() -> LoadMark:
    """The counts now."""
    try:
        fields = PROC_STAT.read_text().splitlines()[0].split()
    except OSError:
        return LoadMark(None)
    return LoadMark(tuple(int(field) for field in fields[1 : 1 + N_TIMES]) if len(fields) > N_TIMES else None)


def load_average() -> float | None:
    """Mean number of runnable processes over the last minute, None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
