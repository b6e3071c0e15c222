"""Resident memory of this process, as the operating system counts it."""

import resource
import sys
from pathlib import Path

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def rss_bytes() -> int:
    """Resident set size now; 0 where the system does not say (it is Linux that does)."""
    return _status("VmRSS")


def reset_peak() -> bool:
    """Let the peak start from now; False where the system cannot, then the peak is of the process's whole life."""
    try:
        CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """Highest resident set size since reset_peak, or of the process's life."""
    peak = _status("VmHWM")
    if peak:
        return peak
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def _status(name: str) -> int:
    try:
        text = STATUS.read_text()
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith(name + ":")), None)
    return 0 if line is None else int(line.split()[1]) * 1024  # kB there are KiB
