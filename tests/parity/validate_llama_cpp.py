"""
The simulator against llama.cpp: in RAM, and on a mapped file under a memory limit.

    python -m parity.validate_llama_cpp MODEL.gguf [--only in-ram mapped routing] [--profile FILE] [--output FILE.json]

In RAM the prediction is `simulate` on llama.cpp's kernel times, which parity.ggml_kernels measures one by one; under a
limit it is the simulator's mmap mode with what parity.fault_costs measures on another file.  Token ids are random,
do not repeat and are forced on both engines; routing is recorded by our runtime on the same file.  Nothing is fitted
to the runs that are compared.  Limits need root and control groups v1; elsewhere that part is left out with one line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema import HardwareProfile
from parity.fault_costs import device_as_faults_see_it
from parity.llama_cpp_engine import LlamaCpp
from parity.llama_cpp_in_ram import InRam, distinct_tokens
from parity.llama_cpp_profile import llama_cpp_profile, step_seconds
from parity.speed import CGROUP, drop_pages, llama_cpp, measured, memory_limit, read_ahead
from parity.table import same_experts_frac
from parity.undisturbed import wait_until_quiet
from reference_runtime.conditions import cpu_name, read_ahead_bytes
from simulator.mapped import MappedEngine, Mapping
from simulator.model.catalog import load_model_spec
from simulator.model.imports.dispatch import import_model
from simulator.model.spec import ModelSpec
from simulator.question import Question, prepare
from simulator.result import PageCacheResult
from simulator.simulate import simulate, simulate_mapped
from traces.routing_trace import RoutingTrace
from traces.store import read_trace

TINY = Path(__file__).parents[2] / "reference_runtime" / "weights" / "tiny-smallthinker-q8_0.gguf"
PARTS = ("routing", "in-ram", "mapped")
CONTEXTS = (16, 512, 2048)  # the first one stands for an empty cache
THREADS = [1, 2]
N_PROMPT, N_WARM_UP = 16, 8  # under a limit
LIMITS = (2_000_000_000, 1_500_000_000, 1_000_000_000)
READ_AHEADS_KIB = (8192, 128, None)
N_COUNTED = {8192: 16, 128: 24, None: 10}  # tokens; without read-ahead and with a large one a token takes seconds
PAGE_TABLE_FRAC = 1 / 512  # 8 bytes for each mapped page of 4 KiB, charged to the group
SHIPPED = "epyc-4344p"  # for what in-RAM decode does not depend on: storage, peaks


@dataclass(frozen=True)
class Row:
    """One figure, predicted and measured."""

    part: str
    case: str
    figure: str
    predicted: float
    measured: float
    runs: tuple[float, ...] = ()
    seconds_per_token: dict[str, float] | None = None

    @property
    def error_frac(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1 if self.measured else float("inf")


HEAD = "| part | case | figure | predicted | measured | error |\n|---|---|---|---:|---:|---:|"


def as_line(row: Row) -> str:
    """A line of Markdown under HEAD."""
    cells = (row.part, row.case, row.figure, f"{row.predicted:,.4g}", f"{row.measured:,.4g}", f"{row.error_frac:+.1%}")
    return f"| {' | '.join(cells)} |"


def in_ram_rows(path: Path, spec: ModelSpec, trace: RoutingTrace, machine: HardwareProfile) -> Iterator[Row]:
    """Contexts x threads, weights not repacked and repacked where the type is."""
    step_s = step_seconds(load_model_spec("tiny-smallthinker"), THREADS)
    for repack in (False, True) if spec.tensor_types.experts == "q4_0" else (False,):
        profile = llama_cpp_profile(machine, spec, THREADS, repack, step_s)
        llama = InRam(path, max(CONTEXTS) + 64, repack)
        speeds = llama.speeds(distinct_tokens(spec.vocab_size, max(CONTEXTS) + 64), CONTEXTS, THREADS)
        llama.close()
        for context in CONTEXTS:
            for n_threads in THREADS:
                question = Question(
                    spec, profile, trace, context=context, n_threads=n_threads, ram_cap_bytes=2**40, start="warm",
                    warm_up_tokens=0,
                )  # fmt: skip
                result = simulate(question, engine="fast", n_samples=0)
                assert result.tokens_per_s is not None
                runs = speeds[context, n_threads]
                case = f"{spec.name}, context {context}, {n_threads} threads, {'' if repack else 'not '}repacked"
                yield Row(
                    "in RAM", case, "tokens/s", result.tokens_per_s.value, median(runs), tuple(runs),
                    result.seconds_per_token,
                )  # fmt: skip


def mapped_rows(
    path: Path, spec: ModelSpec, traces: dict[str, RoutingTrace], profile: HardwareProfile, folder: Path, n_runs: int
) -> Iterator[Row]:
    """
    Memory limits x read-ahead, on two threads; weights not repacked, since repacking copies them.

    traces: the routing that our runtime recorded, which is what predicts, and llama.cpp's own, to tell the two apart.
    """
    costs = {kib: device_as_faults_see_it(path, kib) for kib in READ_AHEADS_KIB}
    for kib, storage in costs.items():
        print(f"read-ahead {_kib(kib)}: {storage}", file=sys.stderr)
    held = _held_bytes(path, traces["ours"], folder)
    for limit in LIMITS:
        for kib in READ_AHEADS_KIB:
            n_tokens = N_PROMPT + N_WARM_UP + N_COUNTED[kib]
            cut = {name: trace.select(slice(0, n_tokens)) for name, trace in traces.items()}
            tokens = folder / "some.json"
            tokens.write_text(json.dumps(_token_ids(cut["ours"])))
            runs = [_mapped_run(path, tokens, limit, kib) for _ in range(n_runs)]
            mapping = Mapping(0 if kib is None else kib * 1024, load_bytes=_load_bytes(path, kib), storage=costs[kib])
            results = {name: _mapped_result(spec, profile, trace, limit, mapping, held) for name, trace in cut.items()}
            case = f"{limit / 1e9} GB, read-ahead {_kib(kib)}"
            (ours, speed, seconds), (theirs, _, _) = results["ours"], results["theirs"]
            for figure, predicted, name, unit in (
                ("MB read a token", ours.bytes_read_per_token, "bytes_read_per_token", 1e6),
                ("MB read a token, by its own routing", theirs.bytes_read_per_token, "bytes_read_per_token", 1e6),
                ("misses, major faults a token", ours.misses_per_token, "faults_per_token", 1),
                ("tokens/s", speed, "tokens_per_s", 1),
            ):
                values = tuple(run[name] / unit for run in runs)
                yield Row("mapped", case, figure, predicted / unit, median(values), values, seconds)


def _mapped_result(
    spec: ModelSpec, profile: HardwareProfile, trace: RoutingTrace, limit: int, mapping: Mapping, held_bytes: int
) -> tuple[PageCacheResult, float, dict[str, float]]:
    """The page cache's figures, tokens/s, seconds of a token; held_bytes: see _held_bytes."""
    question = Question(
        spec, profile, trace, ram_cap_bytes=limit, n_threads=THREADS[-1], layout="mmap", warm_up_tokens=N_WARM_UP,
        prefetch_policy="none",
    )  # fmt: skip
    prepared = prepare(question)
    memory = prepared.plan.memory  # keys, values and activations are part of what the process holds
    mapping = replace(mapping, other_bytes=held_bytes - memory.kv_bytes - memory.activation_bytes)
    result = simulate_mapped(MappedEngine(prepared, mapping), n_samples=0)
    assert result.page_cache is not None
    assert result.tokens_per_s is not None
    return result.page_cache, result.tokens_per_s.value, result.seconds_per_token


def _load_bytes(path: Path, kib: int | None) -> int | None:
    """Without read-ahead the file is loaded with the drive's own, and advised as random afterwards."""
    return read_ahead_bytes(path) if kib is None else kib * 1024


def _kib(kib: int | None) -> str:
    return "none" if kib is None else f"{kib} KiB"


def _token_ids(trace: RoutingTrace) -> list[int]:
    assert trace.token_id is not None
    return trace.token_id.tolist()


def _held_bytes(path: Path, trace: RoutingTrace, folder: Path) -> int:
    """What the process holds beside the file's pages, seen in a run without a limit, which nothing is predicted of."""
    tokens = folder / "few.json"
    tokens.write_text(json.dumps(_token_ids(trace)[: N_PROMPT + N_WARM_UP + min(N_COUNTED.values())]))
    run = measured(llama_cpp(path, tokens, THREADS[-1], "--no-repack"))
    return round(run["anonymous_bytes"] + PAGE_TABLE_FRAC * path.stat().st_size)


def _mapped_run(path: Path, tokens: Path, limit: int, kib: int | None) -> dict:
    wait_until_quiet(20)
    own = read_ahead_bytes(path)
    options = ("--no-repack",) if kib is not None else ("--no-repack", "--no-read-ahead")
    call = llama_cpp(path, tokens, 2, *options)
    with read_ahead(path, kib):
        drop_pages(path)
        with memory_limit(limit) as enter:
            result = measured(call, enter)
        if kib is not None and read_ahead_bytes(path) != kib * 1024:
            raise SystemExit(f"{path}: the drive's read-ahead was changed by another program during the run")
    assert read_ahead_bytes(path) == own
    return result


def their_routing(path: Path, trace: RoutingTrace) -> RoutingTrace:
    """What llama.cpp, which rounds activations to Q8_0, chooses on the same token ids, seen through its callback."""
    llama = LlamaCpp(path, trace.n_tokens, repack=False)
    llama.logits(_token_ids(trace))
    ids = llama.expert_ids(trace.top_k).astype(np.int16)
    llama.close()
    return replace(trace, expert_ids=ids, weights=None, predicted={})


def routing_rows(ours: RoutingTrace, theirs: RoutingTrace, case: str) -> Iterator[Row]:
    """How often both engines choose the same experts."""
    both = (ours.expert_ids[:, :, :, None] == theirs.expert_ids[:, :, None, :]).any(axis=-1).mean()
    rows = same_experts_frac(ours.expert_ids, theirs.expert_ids)
    yield Row("routing", case, "rows with the same experts", 1.0, float(rows))
    yield Row("routing", case, "experts chosen by both", 1.0, float(both))


def recorded(path: Path, token_ids: list[int], folder: Path) -> RoutingTrace:
    """The routing of our runtime on forced token ids."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(token_ids))
    record = folder / "record"
    subprocess.run(
        [sys.executable, "-m", "command_line.app", "run", "--model", str(path), "--token-ids", str(tokens), "--forced",
         "--max-tokens", str(len(token_ids) - N_PROMPT), "--prefill-chunk", str(N_PROMPT), "--record", str(record),
         "--json"], check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return read_trace(record / "trace.parquet")


def rows_of_model(path: Path, machine: HardwareProfile, only: set[str], n_runs: int) -> Iterator[Row]:
    """All parts for one model file; limits only for files larger than the smallest one."""
    spec = import_model(path).spec
    spec = spec.model_copy(update={"name": spec.name.split("-random")[0]})
    with tempfile.TemporaryDirectory() as temporary:
        token_ids = distinct_tokens(spec.vocab_size, N_PROMPT + N_WARM_UP + max(N_COUNTED.values()))
        trace = recorded(path, token_ids, Path(temporary))
        theirs = their_routing(path, trace)
        if "routing" in only:
            yield from routing_rows(trace, theirs, spec.name)
        if "in-ram" in only:
            yield from in_ram_rows(path, spec, trace, machine)
        if "mapped" in only and path.stat().st_size > min(LIMITS):
            if os.geteuid() or not (CGROUP / "memory.limit_in_bytes").exists():
                print("mapped: left out, a memory limit needs root and control groups v1", file=sys.stderr)
                return
            step_s = step_seconds(load_model_spec("tiny-smallthinker"), THREADS)
            profile = llama_cpp_profile(machine, spec, THREADS, False, step_s)
            traces = {"ours": trace, "theirs": theirs}
            yield from mapped_rows(path, spec, traces, profile, Path(temporary), n_runs)


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="*", help="beside the shipped tiny model")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=["routing", "in-ram", "mapped"])
    parser.add_argument("--profile", default=SHIPPED, help="of this machine, from moeplan hardware probe")
    parser.add_argument("--n-runs", type=int, default=1, help="of each memory limit")
    parser.add_argument("--output", type=Path, default=Path("output/validate-llamacpp.json"))
    args = parser.parse_args()
    machine = load_profile(args.profile)
    rows = []
    print(f"{cpu_name()}, {os.cpu_count()} cores\n\n{HEAD}", flush=True)
    for path in (TINY, *args.model):
        for row in rows_of_model(path, machine, set(args.only), args.n_runs):
            rows.append(row)
            print(as_line(row), flush=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    document = [asdict(row) | {"error_frac": row.error_frac} for row in rows]
    args.output.write_text(json.dumps({"cpu": cpu_name(), "arguments": sys.argv[1:], "rows": document}, indent=1))
    print(f"\nwrote {args.output}")


if __name__ == "__main__":
    main()
