"""
Decode fixed token ids with llama.cpp and print one JSON line; a process of its own, so that it can be put in a limit.

    python -m parity.decode_llama_cpp MODEL TOKENS.json --n-prompt 16 --threads 2 [--no-repack] [--no-read-ahead]

Beside the speed it says what the process itself was charged for the counted tokens: bytes read from storage and pages
missed, and what its control group holds beside file pages.
"""

import argparse
import ctypes
import json
import os
import re
import time
from itertools import pairwise
from pathlib import Path

import llama_cpp

from parity.llama_cpp_engine import patched_defaults
from parity.speed import CGROUP

MADV_RANDOM = 1  # <bits/mman-linux.h>


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--n-prompt", type=int, default=16)
    parser.add_argument("--n-warm-up", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-repack", action="store_true")
    parser.add_argument("--no-read-ahead", action="store_true", help="madvise(MADV_RANDOM) once it is loaded")
    args = parser.parse_args()
    tokens = json.loads(args.tokens.read_text())
    with patched_defaults(None, not args.no_repack):
        llama = llama_cpp.Llama(
            model_path=str(args.model),
            n_ctx=-(-len(tokens) // 256) * 256,
            n_threads=args.threads,
            n_threads_batch=args.threads,
            flash_attn=False,
            verbose=False,
        )
    if args.no_read_ahead:
        _without_read_ahead(args.model)
    llama.eval(tokens[: args.n_prompt])
    seconds, read, misses = [], [_bytes_read()], [_misses()]
    for token in tokens[args.n_prompt :]:
        began = time.perf_counter()
        llama.eval([token])
        seconds.append(time.perf_counter() - began)
        read.append(_bytes_read())
        misses.append(_misses())
    n_warm, n_counted = args.n_warm_up, len(seconds) - args.n_warm_up
    result = {
        "tokens_per_s": n_counted / sum(seconds[n_warm:]),
        "n_counted_tokens": n_counted,
        "bytes_read_per_token": (read[-1] - read[n_warm]) / n_counted,
        "misses_per_token": (misses[-1] - misses[n_warm]) / n_counted,
        "held_bytes": _held_bytes(),
        "seconds": seconds,
        "bytes_read": [after - before for before, after in pairwise(read)],
    }
    print(json.dumps(result))


def _without_read_ahead(model: Path) -> None:
    """Take the read-ahead of this process's mapping of the model away."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(model.resolve())):
            start, stop = (int(text, 16) for text in line.split()[0].split("-"))
            if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), MADV_RANDOM):
                raise OSError(ctypes.get_errno(), "madvise")


def _bytes_read() -> int:
    """What this process made storage read; page cache hits are not in it."""
    return int(re.search(r"read_bytes: (\d+)", Path("/proc/self/io").read_text())[1])  # type: ignore[index]


def _misses() -> int:
    """Pages that were touched and not in the page cache: of the control group, of the system outside of one."""
    return _count("pgmajfault", _group_file("memory.stat") or Path("/proc/vmstat"))


def _held_bytes() -> int | None:
    """What the control group is charged for beside file pages: the process, its page tables, the kernel's own."""
    usage, counts = _group_file("memory.usage_in_bytes"), _group_file("memory.stat")
    return int(usage.read_text()) - _count("cache", counts) if usage and counts else None


def _group_file(name: str) -> Path | None:
    """A file of this process's control group, None where it is in none that can be seen."""
    group = re.search(r"^\d+:memory:(/.+)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    path = CGROUP / group[1].lstrip("/") / name if group else None
    return path if path and path.exists() else None


def _count(name: str, path: Path) -> int:
    """A line `name number`."""
    return int(re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)[1])  # type: ignore[index]


if __name__ == "__main__":
    assert os.name == "posix"
    main()
