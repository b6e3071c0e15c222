"""Names, sizes and settings of the machine, as far as the system tells without root."""

import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numba
from llvmlite.binding import get_host_cpu_name

from moeplan.errors import InputError
from moeplan.quantity import format_bytes
from reference_runtime.conditions import (
    clock_governor,
    code_fingerprint,
    cpu_name,
    file_system,
    machine_conditions,
    read_ahead_bytes,
    thread_settings,
    usable_cores,
)

DEFAULT_CACHE_BYTES = 8 * 2**20  # a last-level cache where the system does not tell
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CPU0 = Path("/sys/devices/system/cpu/cpu0")


@dataclass(frozen=True)
class Machine:
    """What does not have to be measured; ram_available_bytes: what programs could take when the probe began."""

    cpu: str
    n_cores: int
    ram_bytes: int
    ram_available_bytes: int | None
    capacity_bytes: int
    free_bytes: int
    read_ahead_bytes: int | None
    rotational: bool | None
    device: str
    file_system: str
    description: str


def this_machine(directory: Path) -> Machine:
    """The machine, and the disk that holds a directory."""
    found, usage = machine_conditions(), shutil.disk_usage(directory)
    system = f"{found['system']}, Python {found['python']}, numpy {found['numpy']} with {found['blas']}"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    queue = _queue(directory)
    rotational = _text(queue / "rotational") if queue else None
    return Machine(
        cpu=cpu_name(),
        n_cores=usable_cores(),
        ram_bytes=int(found["ram_bytes"]),
        ram_available_bytes=_available_bytes(),
        capacity_bytes=usage.total,
        free_bytes=usage.free,
        read_ahead_bytes=read_ahead_bytes(directory),
        rotational=None if rotational is None else rotational == "1",
        device=queue.parent.name if queue else "a disk that the system does not name",
        file_system=file_system(directory),
        description=f"{now}; {found['cpu']}, {usable_cores()} cores, {format_bytes(int(found['ram_bytes']))}; "
        f"{system}; clock governor {clock_governor()}; "
        f"{_code()}",
    )


def check_memory(machine: Machine, n_bytes: int) -> None:
    """Raises InputError where programs can take less than n_bytes now."""
    if machine.ram_available_bytes is not None and machine.ram_available_bytes < n_bytes:
        got = format_bytes(machine.ram_available_bytes)
        raise InputError("memory", f"must have {format_bytes(n_bytes)} free", got, "give fewer numbers to --threads")


def _code() -> str:
    """Whose times these are: another state of the code has others."""
    threads = ", ".join(f"{name}={value}" for name, value in thread_settings().items()) or "no thread settings"
    target = numba.config.CPU_NAME or get_host_cpu_name()  # type: ignore[attr-defined]
    layer = f"{numba.config.THREADING_LAYER} threads"  # type: ignore[attr-defined]
    compiled = f"numba {numba.__version__} for {target} with {layer}"
    setting = re.search(r"\[(\w+)\]", _text(HUGE_PAGES) or "")  # pages decide how scattered a read's target is
    threads += f", huge pages {setting.group(1) if setting else 'not told'}"
    return f"moeplan {version('moeplan')}, kernels and forward pass {code_fingerprint()}, {compiled}, {threads}"


def last_level_cache_bytes() -> int:
    """The largest cache of the first core, DEFAULT_CACHE_BYTES where the system does not tell."""
    sizes = [_text(path) or "" for path in CPU0.glob("cache/index*/size")]
    return max([int(size[:-1]) * 1024 for size in sizes if size[:-1].isdecimal()], default=DEFAULT_CACHE_BYTES)


def _available_bytes() -> int | None:
    for line in (_text(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _queue(directory: Path) -> Path | None:
    try:
        device = os.stat(directory).st_dev
        link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    except OSError:
        return None
    return next((folder / "queue" for folder in (link, link.parent) if (folder / "queue").is_dir()), None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
