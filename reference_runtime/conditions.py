"""Under which conditions a run was made: what a reader must know to compare two figures."""

import os
import platform
from pathlib import Path

import numpy as np


def machine_conditions() -> dict[str, str]:
    """Processor, cores, RAM, system, Python, numpy and its BLAS."""
    return {
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "ram_bytes": str(ram_bytes()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas(),
    }


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's own name, or the machine type where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.partition(":")[::2] for line in text.splitlines() if ":" in line)
    names = {key.strip(): value.strip() for key, value in fields.items()}
    return names.get("model name") or names.get("Model") or platform.machine()


def file_system(path: Path) -> str:
    """Type of the file system that holds a path, "unknown" where the system does not tell."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    real = os.path.realpath(path)
    mounts = [(line.split()[1].replace("\\040", " "), line.split()[2]) for line in lines]
    holding = [(point, kind) for point, kind in mounts if real == point or real.startswith(point.rstrip("/") + "/")]
    return max(holding, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def read_ahead_bytes(path: Path) -> int | None:
    """Read-ahead of the block device that holds a path, None where the system does not tell."""
    try:
        device = os.stat(path).st_dev
        link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        for folder in (link, link.parent):  # a partition has no queue of its own
            setting = folder / "queue" / "read_ahead_kb"
            if setting.is_file():
                return int(setting.read_text()) * 1024
    except (OSError, ValueError):
        return None
    return None


def ram_bytes() -> int:
    """Bytes of RAM that the machine has, 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _blas() -> str:
    found = np.show_config(mode="dicts")
    blas = (found or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
