"""
The simulator against llama.cpp: in RAM, and on a mapped file under a memory limit.

    python -m parity.validate_llama_cpp MODEL.gguf [--only in-ram mapped routing] [--profile FILE] [--output FILE.json]

In RAM the prediction is `simulate` on llama.cpp's kernel times, which parity.ggml_kernels measures one by one; under a
limit it is the simulator's mmap mode with what parity.fault_costs measures on another file.  Token ids are random,
do not repeat and are forced on both engines; routing is recorded by our runtime on the same file.  Nothing is fitted
to the runs that are compared.  Limits need root and control groups v1; elsewhere that part is left out with one line.
Beside FILE.json lies the same as a page, FILE.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema import HardwareProfile
from parity.ggml_kernels import Kernels
from parity.llama_cpp_engine import LlamaCpp, version
from parity.llama_cpp_in_ram import ROOM, InRam, distinct_tokens
from parity.llama_cpp_mapped import LIMITS, MOST_TOKENS, N_THREADS, mapped_rows, why_not
from parity.llama_cpp_profile import Step, measured_beside
from parity.llama_cpp_rows import HEAD, Row, as_document, as_line, as_markdown
from parity.speed import N_PROMPT
from parity.table import same_experts_frac
from reference_runtime.conditions import machine_conditions
from simulator.model.catalog import load_model_spec
from simulator.model.imports.dispatch import import_model
from simulator.model.spec import ModelSpec
from simulator.question import Question
from simulator.simulate import simulate
from traces.routing_trace import RoutingTrace
from traces.store import read_trace

TINY = Path(__file__).parents[2] / "reference_runtime" / "weights" / "tiny-smallthinker-q8_0.gguf"
TINY_SPEC = "tiny-smallthinker"
PARTS = ("routing", "in-ram", "mapped")
CONTEXTS = (16, 512, 2048)  # the first one stands for an empty cache
THREADS = [1, 2]
SHIPPED = "epyc-4344p"  # for what in-RAM decode does not depend on: storage, peaks


def in_ram_rows(path: Path, spec: ModelSpec, trace: RoutingTrace, machine: HardwareProfile) -> Iterator[Row]:
    """Contexts x threads, weights repacked where the type is, and not repacked."""
    states, step = None, Step(load_model_spec(TINY_SPEC))
    tokens = distinct_tokens(spec.vocab_size, max(CONTEXTS) + ROOM)
    for repack in (True, False) if spec.tensor_types.experts == "q4_0" else (False,):
        kernels, llama = Kernels(spec, repack), InRam(path, len(tokens), repack)
        states = llama.read(tokens, CONTEXTS, states)
        profile, seconds = measured_beside(llama.turns(THREADS), machine, kernels, step, THREADS)
        llama.close()
        kernels.close()
        for (context, n_threads), runs_s in seconds.items():
            question = Question(
                spec, profile, trace, context=context, n_threads=n_threads, ram_cap_bytes=2**40, start="warm",
                warm_up_tokens=0,
            )  # fmt: skip
            result = simulate(question, engine="fast", n_samples=0)
            assert result.tokens_per_s is not None
            speed, runs = result.tokens_per_s.value, tuple(1 / run_s for run_s in runs_s)
            case = f"{spec.name}, context {context}, {n_threads} threads, {'' if repack else 'not '}repacked"
            yield Row("in RAM", case, "tokens/s", speed, median(runs), runs, result.seconds_per_token)
    step.close()


def mapped_profile(spec: ModelSpec, machine: HardwareProfile) -> HardwareProfile:
    """The machine with llama.cpp's kernels on as many threads as the mapped runs have."""
    kernels, step = Kernels(spec, repack=False), Step(load_model_spec(TINY_SPEC))
    profile, _ = measured_beside({}, machine, kernels, step, [N_THREADS])
    kernels.close()
    step.close()
    return profile


def their_routing(path: Path, trace: RoutingTrace) -> RoutingTrace:
    """What llama.cpp, which rounds activations to Q8_0, chooses on the same token ids, seen through its callback."""
    assert trace.token_id is not None
    llama = LlamaCpp(path, trace.n_tokens, repack=False)
    llama.logits(trace.token_id.tolist())
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
    is_mapped = "mapped" in only and path.stat().st_size > min(LIMITS)
    with tempfile.TemporaryDirectory() as temporary:
        trace = recorded(path, distinct_tokens(spec.vocab_size, MOST_TOKENS), Path(temporary))
        theirs = their_routing(path, trace) if is_mapped or "routing" in only else trace
        if "routing" in only:
            yield from routing_rows(trace, theirs, spec.name)
        if "in-ram" in only:
            yield from in_ram_rows(path, spec, trace, machine)
        if is_mapped and why_not():
            print(f"mapped: left out, {why_not()}", file=sys.stderr)
        elif is_mapped:
            profile, traces = mapped_profile(spec, machine), {"ours": trace, "theirs": theirs}
            yield from mapped_rows(path, spec, traces, profile, Path(temporary), n_runs)


def main() -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="*", help="beside the shipped tiny model")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--profile", default=SHIPPED, help="of this machine, from moeplan hardware probe")
    parser.add_argument("--n-runs", type=int, default=1, help="of each memory limit")
    parser.add_argument("--output", type=Path, default=Path("output/validate-llamacpp.json"))
    args = parser.parse_args()
    machine, rows = load_profile(args.profile), list[Row]()
    print(HEAD, flush=True)
    for path in (TINY, *args.model):
        for row in rows_of_model(path, machine, set(args.only), args.n_runs):
            rows.append(row)
            print(as_line(row), flush=True)
    command = f"python -m parity.validate_llama_cpp {' '.join(sys.argv[1:])}"
    conditions = {"command": f"`{command}`", "date": date.today().isoformat(), "engine": version()} | {
        name: text for name, text in machine_conditions().items() if name in ("cpu", "cores", "ram_bytes", "system")
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(as_document(rows, conditions), indent=1))
    page = args.output.with_suffix(".md")
    page.write_text(as_markdown(rows, conditions))
    print(f"\nwrote {args.output} and {page}")


if __name__ == "__main__":
    main()
