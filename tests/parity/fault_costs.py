"""
What a page fault on a cold mapped file costs on this machine, as a StorageModel: the device as faults see it.

    python -m parity.fault_costs FILE {random,windows} --threads 2      one measurement, in a process of its own

`random`: pages of 4 KiB with read-ahead off, on one or several threads.  `windows`: one page in each read-ahead window,
so that a fault reads the whole window.  The process stands in a memory limit smaller than the file, so that every new
page takes an old one's place, as it does in the runs that are to be predicted.  FILE is no model.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from hardware_profiles.storage import StorageModel
from parity.speed import drop_pages, measured, memory_limit, read_ahead
from reference_runtime.conditions import read_ahead_bytes
from simulator.mapped import SEQUENTIAL_FACTOR
from simulator.page_cache import PAGE_BYTES

FILE_BYTES = 512 * 2**20
LIMIT_BYTES = 200_000_000
N_FAULTS = 2000  # of single pages, on each thread
PROT_READ, MAP_SHARED, MADV_RANDOM = 1, 1, 1
LANES = 2  # two threads are what is measured

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def device_as_faults_see_it(cold: Path, read_ahead_kib: int | None) -> StorageModel:
    """
    Measured on a file of cold_file; read_ahead_kib None: no read-ahead.

    A page takes t1 alone, and two threads together one every t2: the bus b = max(t2, t1 / 2), the latency t1 - b.
    A window of W bytes takes tW: (tW - t1) / (W - 4096) seconds per byte.
    """
    one, two = (_run(cold, "random", n_threads) for n_threads in (1, 2))
    bus_s = max(two, one / LANES)
    if read_ahead_kib is None:
        return StorageModel(one - bus_s, 0.0, bus_s, 0.0, LANES)
    with read_ahead(cold, read_ahead_kib):
        window_s = _run(cold, "windows", 1)
    n_bytes = SEQUENTIAL_FACTOR * read_ahead_kib * 1024
    per_byte_s = max(0.0, window_s - one) / (n_bytes - PAGE_BYTES)
    return StorageModel(one - bus_s, 0.0, bus_s, per_byte_s, 1)


def middle_of(models: Sequence[StorageModel]) -> StorageModel:
    """The median of each of the times of several measurements."""
    times = ("latency_s", "lane_s_per_byte", "request_overhead_s", "bus_s_per_byte")
    return replace(models[0], **{name: median(getattr(model, name) for model in models) for name in times})


@contextmanager
def cold_file(beside: Path) -> Iterator[Path]:
    """A file of random bytes on the disk of another one, removed afterwards."""
    path, block = beside.with_name("fault-costs.tmp"), os.urandom(2**24)
    try:
        with path.open("wb") as file:
            for _ in range(FILE_BYTES // len(block)):
                file.write(block)
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _run(path: Path, kind: str, n_threads: int) -> float:
    """Wall seconds for each read, all threads together."""
    drop_pages(path)
    call = [sys.executable, "-m", "parity.fault_costs", str(path), kind, "--threads", str(n_threads)]
    with memory_limit(LIMIT_BYTES) as enter:
        return float(measured(call, enter)["seconds_per_read"])


def _touch(base: int, pages: np.ndarray) -> None:
    one_byte = ctypes.create_string_buffer(1)
    for page in pages.tolist():
        _LIBC.memcpy(one_byte, base + page * PAGE_BYTES, 1)  # lets other threads run while it waits


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("kind", choices=("random", "windows"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    n_bytes = args.file.stat().st_size
    with args.file.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # as llama.cpp does
        base = _LIBC.mmap(None, n_bytes, PROT_READ, MAP_SHARED, file.fileno(), 0)
    if args.kind == "random":
        _LIBC.madvise(base, n_bytes, MADV_RANDOM)
        n_pages = min(args.threads * N_FAULTS, n_bytes // PAGE_BYTES)
        pages = np.random.default_rng(0).choice(n_bytes // PAGE_BYTES, n_pages, replace=False)
    else:
        window = SEQUENTIAL_FACTOR * (read_ahead_bytes(args.file) or 0) // PAGE_BYTES
        pages = np.arange(window // 2, n_bytes // PAGE_BYTES - window // 2 + 1, window)
    began = time.perf_counter()
    with ThreadPoolExecutor(args.threads) as pool:
        list(pool.map(lambda part: _touch(base, part), np.array_split(pages, args.threads)))
    print(json.dumps({"seconds_per_read": (time.perf_counter() - began) / len(pages), "n_reads": len(pages)}))


if __name__ == "__main__":
    main()
