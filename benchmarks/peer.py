"""libcachesim on the same trace: the fastest public cache simulator, C++, one capacity at a time, misses in all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moeplan.errors import InputError
from simulator.cache_passes.rows import Rows

PEER_POLICIES = ("lru", "belady", "fifo", "clock", "s3-fifo", "sieve", "lfu")
ITS_OWN_HASH_POWER = 24  # its default: room for 16 million objects
REQUEST = np.dtype([("second", "<u4"), ("object", "<u8"), ("n_bytes", "<u4"), ("next_use", "<i8")])  # oracleGeneral


class PeerRate(NamedTuple):
    """One replay: CPU seconds and the share of accesses that missed."""

    seconds: float
    miss_ratio: float


def next_uses(keys: np.ndarray) -> np.ndarray:
    """int64 (n,): where each key comes next, -1 where it does not."""
    order = np.argsort(keys, kind="stable")
    found = np.full(len(keys), -1, np.int64)
    is_same = keys[order[1:]] == keys[order[:-1]]
    found[order[:-1][is_same]] = order[1:][is_same]
    return found


def write_requests(rows: Rows, path: Path) -> None:
    """The keys one by one as oracleGeneral, a second a token; kept objects are told apart by their key alone."""
    requests = np.zeros(len(rows.keys), REQUEST)
    requests["object"], requests["n_bytes"] = rows.keys, 1
    requests["second"] = np.arange(len(rows.keys)) // max(1, int(rows.offsets[rows.n_layers]))
    requests["next_use"] = next_uses(rows.keys)
    requests.tofile(path)


def fitted_hash_power(rows: Rows) -> int:
    """A table for just the keys of the trace, which is kinder to caches than its own default."""
    return max(8, int(np.ceil(np.log2(rows.n_keys))) + 1)


def peer_rates(python: Path, requests: Path, rows: Rows, slots: int, hash_power: int) -> dict[str, PeerRate]:
    """
    One replay of each of PEER_POLICIES at so many slots, in its own environment's process.

    Raises InputError with its last line where it fails.
    """
    worker = Path(__file__).with_name("peer_rates.py")
    command = [python, worker, requests, len(rows.keys), slots, hash_power, *PEER_POLICIES]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["nothing said"]
    if done.returncode:
        raise InputError("libcachesim", "must replay the trace", f"exit status {done.returncode}: {said[-1]}")
    try:
        found = json.loads(said[-1])
        return {name: PeerRate(found[name]["s"], found[name]["miss_ratio"]) for name in PEER_POLICIES}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("libcachesim", "must answer with its rates", repr(said[-1])) from error


def has_libcachesim(python: Path | None) -> bool:
    """Whether that Python can import it; says on stderr why its figures will be missing."""
    if python is None or not python.exists():
        print(f"libcachesim: no environment at {python}; its figures are left out", file=sys.stderr)
        return False
    done = subprocess.run([str(python), "-c", "import libcachesim"], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        print(f"libcachesim cannot be loaded ({said[-1]}); its figures are left out", file=sys.stderr)
    return done.returncode == 0
