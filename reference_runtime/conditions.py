"""Under which conditions a run was made: what a reader must know to compare two figures."""

import hashlib
import os
import platform
from pathlib import Path

import numpy as np

from reference_runtime.core_affinity import all_cores

THREAD_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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


def code_fingerprint() -> str:
    """
    12 hexadecimal digits of the code whose times are measured: kernels, forward pass, expert streaming, threads.

    Figures of two runs are comparable where they are the same.
    """
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    names = ("forward.py", "runtime.py", "packing.py", "matrix.py", "core_affinity.py", "routing_replay.py")
    files = (folder / name for name in names)
    for path in (*sorted((folder / "kernels").glob("*.py")), *sorted((folder / "streaming").glob("*.py")), *files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def thread_settings() -> dict[str, str]:
    """What decides how idle threads wait, by the variable's name; only what is set."""
    return {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}


def clock_governor() -> str:
    """How the system chooses the clock of the first core, "not told" where it does not tell."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return "not told"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(all_cores()) or os.cpu_count() or 1


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
