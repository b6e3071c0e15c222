"""
llama.cpp on a mapped file under a memory limit, predicted by the simulator's mmap mode.

Limits need root and control groups v1.  Runs and the costs of page faults, measured on another file, take turns.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from hardware_profiles.schema import HardwareProfile
from hardware_profiles.storage import StorageModel
from parity.fault_costs import cold_file, device_as_faults_see_it, middle_of
from parity.llama_cpp_rows import Row
from parity.speed import CGROUP, N_PROMPT, N_WARM_UP, drop_pages, llama_cpp, measured, memory_limit, read_ahead
from parity.undisturbed import wait_until_quiet
from reference_runtime.conditions import read_ahead_bytes
from simulator.mapped import MappedEngine
from simulator.mapped import Mapping as FileMapping
from simulator.model.spec import ModelSpec
from simulator.question import Question, prepare
from simulator.result import PageCacheResult
from simulator.simulate import simulate_mapped
from traces.routing_trace import RoutingTrace

N_THREADS = 2
LIMITS = (2_000_000_000, 1_500_000_000, 1_000_000_000)
READ_AHEADS_KIB = (8192, 128, None)
N_COUNTED = {8192: 8, 128: 24, None: 8}  # tokens; without read-ahead and with a large one a token takes seconds
MOST_TOKENS = N_PROMPT + N_WARM_UP + max(N_COUNTED.values())
PATIENCE_S = 20.0  # for a quiet moment before a run

Case = tuple[int, int | None]  # limit in bytes, read-ahead in KiB


def why_not() -> str | None:
    """What keeps this machine from limiting memory, None where nothing does."""
    if os.geteuid() or not (CGROUP / "memory.limit_in_bytes").exists():
        return "a memory limit needs root and control groups v1"
    return None


def mapped_rows(
    path: Path, spec: ModelSpec, traces: Mapping[str, RoutingTrace], profile: HardwareProfile, folder: Path, n_runs: int
) -> Iterator[Row]:
    """
    Memory limits x read-ahead, on two threads; weights not repacked, since repacking copies them.

    traces: the routing that our runtime recorded, which is what predicts, and llama.cpp's own, to tell the two apart.
    """
    cases = [(limit, kib) for limit in LIMITS for kib in READ_AHEADS_KIB]
    costs, runs = _in_rounds(path, cases, _token_ids(traces["ours"]), folder, n_runs)
    held = _held_bytes(path, traces["ours"], folder)
    for limit, kib in cases:
        n_tokens = N_PROMPT + N_WARM_UP + N_COUNTED[kib]
        mapping = FileMapping(0 if kib is None else kib * 1024, load_bytes=_load_bytes(path, kib), storage=costs[kib])
        results = {
            name: _predicted(spec, profile, trace.select(slice(0, n_tokens)), limit, mapping, held)
            for name, trace in traces.items()
        }
        case = f"{limit / 1e9} GB, read-ahead {_kib(kib)}"
        (ours, speed, seconds), (theirs, _, _) = results["ours"], results["theirs"]
        for figure, predicted, name, unit in (
            ("MB read a token", ours.bytes_read_per_token, "bytes_read_per_token", 1e6),
            ("MB read a token, by its own routing", theirs.bytes_read_per_token, "bytes_read_per_token", 1e6),
            ("pages missed a token", ours.misses_per_token, "misses_per_token", 1),
            ("tokens/s", speed, "tokens_per_s", 1),
        ):
            values = tuple(run[name] / unit for run in runs[limit, kib])
            yield Row("mapped", case, figure, predicted / unit, median(values), values, seconds)


def _in_rounds(
    path: Path, cases: Sequence[Case], token_ids: list[int], folder: Path, n_runs: int
) -> tuple[dict[int | None, StorageModel], dict[Case, list[dict]]]:
    """The cost of faults under each read-ahead, and the runs of every case, round after round."""
    costs: dict[int | None, list[StorageModel]] = {kib: [] for kib in READ_AHEADS_KIB}
    runs: dict[Case, list[dict]] = {case: [] for case in cases}
    with cold_file(path) as cold:
        for _ in range(n_runs):
            for kib, of_one in costs.items():
                of_one.append(device_as_faults_see_it(cold, kib))
                print(f"read-ahead {_kib(kib)}: {of_one[-1]}", file=sys.stderr)
                for case in cases:
                    if case[1] == kib:
                        runs[case].append(_run(path, token_ids, folder, case))
                        print(f"{case}: {runs[case][-1]['tokens_per_s']:.3g} tokens/s", file=sys.stderr)
    return {kib: middle_of(of_one) for kib, of_one in costs.items()}, runs


def _run(path: Path, token_ids: list[int], folder: Path, case: Case) -> dict:
    limit, kib = case
    tokens = _token_file(token_ids, N_COUNTED[kib], folder)
    wait_until_quiet(PATIENCE_S)
    own = read_ahead_bytes(path)
    options = ("--no-repack",) if kib is not None else ("--no-repack", "--no-read-ahead")
    with read_ahead(path, kib):
        drop_pages(path)
        with memory_limit(limit) as enter:
            result = measured(llama_cpp(path, tokens, N_THREADS, *options), enter)
        if kib is not None and read_ahead_bytes(path) != kib * 1024:
            raise SystemExit(f"{path}: the drive's read-ahead was changed by another program during the run")
    assert read_ahead_bytes(path) == own
    return result


def _predicted(
    spec: ModelSpec, profile: HardwareProfile, trace: RoutingTrace, limit: int, mapping: FileMapping, held_bytes: int
) -> tuple[PageCacheResult, float, dict[str, float]]:
    """The page cache's figures, tokens/s, seconds of a token; held_bytes: see _held_bytes."""
    question = Question(
        spec, profile, trace, ram_cap_bytes=limit, n_threads=N_THREADS, layout="mmap", warm_up_tokens=N_WARM_UP,
        prefetch_policy="none",
    )  # fmt: skip
    prepared = prepare(question)
    memory = prepared.plan.memory  # keys, values and activations are part of what the process holds
    mapping = replace(mapping, other_bytes=held_bytes - memory.kv_bytes - memory.activation_bytes)
    result = simulate_mapped(MappedEngine(prepared, mapping), n_samples=0)
    assert result.page_cache is not None
    assert result.tokens_per_s is not None
    return result.page_cache, result.tokens_per_s.value, result.seconds_per_token


def _held_bytes(path: Path, trace: RoutingTrace, folder: Path) -> int:
    """
    What a limit holds beside file pages, seen in a run whose limit is twice the file, which nothing is predicted of.
    """
    tokens = _token_file(_token_ids(trace), min(N_COUNTED.values()), folder)
    drop_pages(path)
    with memory_limit(2 * path.stat().st_size) as enter:
        return int(measured(llama_cpp(path, tokens, N_THREADS, "--no-repack"), enter)["held_bytes"])


def _load_bytes(path: Path, kib: int | None) -> int | None:
    """Without read-ahead the file is loaded with the drive's own, and advised as random afterwards."""
    return read_ahead_bytes(path) if kib is None else kib * 1024


def _token_file(token_ids: list[int], n_counted: int, folder: Path) -> Path:
    path = folder / f"{n_counted}.json"
    path.write_text(json.dumps(token_ids[: N_PROMPT + N_WARM_UP + n_counted]))
    return path


def _token_ids(trace: RoutingTrace) -> list[int]:
    assert trace.token_id is not None
    return trace.token_id.tolist()


def _kib(kib: int | None) -> str:
    return "none" if kib is None else f"{kib} KiB"
