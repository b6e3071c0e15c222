"""
Decode speed of our runtime and of llama.cpp on one file: the same threads, the same fixed token ids, alternating runs.

    python -m parity.speed MODEL.gguf [--threads 1 2] [--n-runs 3] [--n-tokens 48]
    python -m parity.speed MODEL.gguf --memory-limit 1000000000 [--read-ahead-kb 128]     needs root and cgroup v1

Token ids are random and do not repeat, so that no cache lives on a repeated token.  With a memory limit both
processes, interpreter included, run inside the same control group and the page cache of the file is dropped first.
"""

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from reference_runtime.conditions import cpu_name, read_ahead_bytes
from reference_runtime.loading.weight_loading import open_model

CGROUP = Path("/sys/fs/cgroup/memory")
N_PROMPT, N_WARM_UP = 16, 8
# Interpreter, libraries and compiled kernels, beside --ram-cap: 85 MB of anonymous memory (smaps_rollup) and the pages
# of code that run; with 130 MB the process was killed at a limit of 1.0 GB.
OUR_BASELINE_BYTES = 170_000_000
MOST_LEFT_FRAC = 0.01  # of a file's pages in the page cache after it was given back

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def token_file(model: Path, n_tokens: int, folder: Path) -> Path:
    """Distinct random token ids of the model's vocabulary, as JSON."""
    vocab_size = open_model(model).config.vocab_size
    ids = np.random.default_rng(0).choice(vocab_size, N_PROMPT + N_WARM_UP + n_tokens, replace=False)
    path = folder / "tokens.json"
    path.write_text(json.dumps(ids.tolist()))
    return path


def ours(model: Path, tokens: Path, threads: int, *options: str) -> list[str]:
    """The command of our runtime."""
    n_decode = len(json.loads(tokens.read_text())) - N_PROMPT
    return [
        *(sys.executable, "-m", "command_line.app", "run", "--model", str(model), "--token-ids", str(tokens)),
        *("--forced", "--max-tokens", str(n_decode), "--warm-up", str(N_WARM_UP), "--threads", str(threads)),
        *("--prefill-chunk", str(N_PROMPT), "--json", *options),
    ]


def llama_cpp(model: Path, tokens: Path, threads: int, *options: str) -> list[str]:
    """The command of llama.cpp."""
    call = [sys.executable, "-m", "parity.decode_llama_cpp", str(model), str(tokens), "--threads", str(threads)]
    return [*call, "--n-prompt", str(N_PROMPT), "--n-warm-up", str(N_WARM_UP), *options]


def measured(call: list[str], enter: Callable[[], None] | None = None) -> dict:
    """Run a command and read its one JSON document."""
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=enter)
    return json.loads(done.stdout)


@contextlib.contextmanager
def memory_limit(n_bytes: int) -> Iterator[Callable[[], None]]:
    """A control group with a memory limit; yields what a child process calls to enter it."""
    group = CGROUP / f"moeplan-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(n_bytes))
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    finally:
        group.rmdir()


@contextlib.contextmanager
def read_ahead(model: Path, kib: int | None) -> Iterator[None]:
    """The block device of a file under another read-ahead, put back afterwards."""
    if kib is None:
        yield
        return
    device = os.stat(model).st_dev
    setting = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb")
    before = setting.read_text()
    setting.write_text(str(kib))
    try:
        yield
    finally:
        setting.write_text(before)


def drop_pages(*paths: Path) -> None:
    """
    Give the page cache of files back, so that a new process is charged for what it reads.

    Exits where the pages stay, which they do while another process has the file mapped.
    """
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if resident_frac(path) > MOST_LEFT_FRAC:
            raise SystemExit(f"{path}: stays in the page cache; another process has it mapped")


def resident_frac(path: Path) -> float:
    """Share of a file's pages that are in the page cache."""
    n_bytes = path.stat().st_size
    if not n_bytes:
        return 0.0
    with path.open("rb") as file, mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_READ) as mapped:
        pages = np.frombuffer(mapped, np.uint8)
        resident = np.zeros(-(-n_bytes // mmap.PAGESIZE), np.uint8)
        failed = _LIBC.mincore(pages.ctypes.data, n_bytes, resident.ctypes.data)
        del pages  # lets the mapping go
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return float((resident & 1).mean())


def compare_in_ram(model: Path, tokens: Path, threads: list[int], n_runs: int) -> None:
    """Alternate the engines with all weights in RAM and print medians and ratios."""
    for n in threads:
        calls = {
            "ours": ours(model, tokens, n),
            "llama.cpp, not repacked": llama_cpp(model, tokens, n, "--no-repack"),
            "llama.cpp, repacked": llama_cpp(model, tokens, n),
        }
        speeds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(n_runs):
            for name, call in calls.items():
                speeds[name].append(measured(call)["tokens_per_s"])
        own = median(speeds["ours"])
        for name, values in speeds.items():
            runs = ", ".join(f"{value:.2f}" for value in values)
            print(f"{n} threads  {name:<24} {median(values):7.2f} tokens/s  ours / this {own / median(values):.2f}"
                  f"  ({runs})", flush=True)  # fmt: skip


def compare_under_limit(
    model: Path, tokens: Path, threads: int, n_runs: int, limit: int, kib: int | None, cache: str
) -> None:
    """Alternate the engines under one memory limit for the whole process and print medians and the ratio."""
    cap = limit - OUR_BASELINE_BYTES
    store = model.with_name(f"{model.name}.experts") / "experts.bundle"
    measured_call = ours(model, tokens, threads, "--ram-cap", f"{cap} B", "--cache", cache)
    subprocess.run(
        [sys.executable, "-m", "command_line.app", "run", "--model", str(model), "--prepare"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    speeds: dict[str, list[float]] = {"ours": [], "llama.cpp, mmap": []}
    with read_ahead(model, kib):
        said = read_ahead_bytes(model)
        print(f"limit {limit} bytes for the whole process, read-ahead {said} bytes; ours: --ram-cap {cap} B, {cache}")
        for _ in range(n_runs):
            for name, call in (
                ("ours", measured_call),
                ("llama.cpp, mmap", llama_cpp(model, tokens, threads, "--no-repack")),
            ):
                drop_pages(model, store)
                with memory_limit(limit) as enter:
                    speeds[name].append(measured(call, enter)["tokens_per_s"])
    for name, values in speeds.items():
        runs = ", ".join(f"{value:.2f}" for value in values)
        print(f"{threads} threads  {name:<24} {median(values):7.2f} tokens/s  ({runs})")
    print(f"ours / llama.cpp: {median(speeds['ours']) / median(speeds['llama.cpp, mmap']):.2f}")


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--n-runs", type=int, default=3)
    parser.add_argument("--n-tokens", type=int, default=48)
    parser.add_argument("--memory-limit", type=int, help="bytes for each whole process")
    parser.add_argument("--read-ahead-kb", type=int, help="read-ahead of the drive while it runs (as root)")
    parser.add_argument("--cache", default="lru-per-layer", help="our cache policy under a limit")
    args = parser.parse_args()
    tokens = token_file(args.model, args.n_tokens, args.model.parent)
    print(f"{cpu_name()}, {os.cpu_count()} cores; {args.model.name}; {args.n_tokens} tokens counted")
    if args.memory_limit is None:
        compare_in_ram(args.model, tokens, args.threads, args.n_runs)
    else:
        limits = (args.memory_limit, args.read_ahead_kb, args.cache)
        for threads in args.threads:
            compare_under_limit(args.model, tokens, threads, args.n_runs, *limits)


if __name__ == "__main__":
    main()
