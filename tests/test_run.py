"""`moeplan run`: the same tokens whatever the memory, counts equal to the simulator's, every operation on record."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import device_rates
from forward_oracle import SMALL, oracle, random_tokens, random_weights, vocabulary

from moeplan.errors import InputError
from reference_runtime.loading.gguf_weights import Weights
from reference_runtime.run import RunOutput, Task, run
from reference_runtime.runtime import open_runtime
from reference_runtime.runtime_options import RuntimeOptions, prepare_store
from reference_runtime.training.export import F32, Q8_0, write_gguf
from simulator.engine_fast import decide
from simulator.expert_layout import ExpertLayout
from simulator.model.imports.dispatch import import_model
from simulator.policies import POLICIES
from simulator.scenario import Scenario, steps_of
from traces.routing_trace import DECODE
from traces.store import read_trace

CONFIG = replace(SMALL, hidden_size=64, head_dim=32, expert_ffn_size=64, window=4096, context_length=128)
N_PROMPT, N_DECODE = 12, 20
CAPS = (None, 990_000, 564_000, 470_000)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights(CONFIG)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Path:
    """A small random model as Q8_0."""
    path = tmp_path_factory.mktemp("run") / "small.gguf"
    write_gguf(weights, vocabulary(CONFIG.vocab_size), path, Q8_0)
    prepare_store(RuntimeOptions(path), lambda done, total: None)
    return path


def run_once(options: RuntimeOptions, forced: bool = False, **task: object) -> RunOutput:
    tokens = random_tokens(N_PROMPT + N_DECODE, CONFIG).tolist()
    with open_runtime(options, len(tokens)) as runtime:
        forced_ids = tokens[N_PROMPT:] if forced else None
        return run(runtime, Task(tokens[:N_PROMPT], N_DECODE, forced=forced_ids, **task))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def uncapped(gguf: Path) -> RunOutput:
    return run_once(RuntimeOptions(gguf, chunk_tokens=8, n_threads=1))


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("layout", ["bundle", "split"])
@pytest.mark.parametrize("prefetch", ["none", "pre-attention"])
@pytest.mark.parametrize("cap", CAPS)
def test_tokens_never_depend_on_memory(
    gguf: Path, uncapped: RunOutput, policy: str, layout: str, prefetch: str, cap: int | None
) -> None:
    """Every cap, policy, layout and prefetch setting gives the very same tokens, experts and weights."""
    options = RuntimeOptions(
        gguf, cap, cache_policy=policy, layout=layout, prefetch=prefetch, chunk_tokens=8, n_threads=1
    )
    output = run_once(options)
    assert output.result.token_ids == uncapped.result.token_ids
    np.testing.assert_array_equal(output.trace.expert_ids, uncapped.trace.expert_ids)
    np.testing.assert_array_equal(output.trace.weights, uncapped.trace.weights)
    if cap is not None:
        assert output.result.conditions["verdict"] == "streams"
        assert output.result.misses > 0


def test_the_caps_differ(gguf: Path) -> None:
    """The caps of these tests mean different numbers of slots, from few to nearly all."""
    slots = [run_once(RuntimeOptions(gguf, cap)).result.memory["slots"] for cap in CAPS]
    assert slots[0] == CONFIG.n_layers * CONFIG.n_experts > slots[1] > slots[2] > slots[3] >= 0


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_the_tokens_are_the_oracles(weights: Weights, tmp_path: Path, kernels: str) -> None:
    """An F32 file, streamed, routes as the float64 oracle does and greedy decode takes the oracle's best token."""
    path = tmp_path / "f32.gguf"
    write_gguf(weights, vocabulary(CONFIG.vocab_size), path, F32)
    output = run_once(RuntimeOptions(path, 1_300_000, kernels=kernels, n_threads=1))
    logits, ids = oracle(weights, output.trace.token_id)
    np.testing.assert_array_equal(output.trace.expert_ids, ids)
    assert output.result.token_ids == logits[N_PROMPT - 1 : -1].argmax(axis=1).tolist()


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("cap", CAPS[1:])
def test_counts_and_bytes_are_the_simulators(gguf: Path, policy: str, cap: int) -> None:
    """Hits and misses of every row, prefill included, and the bytes are those of a simulated replay of the trace."""
    output = run_once(RuntimeOptions(gguf, cap, cache_policy=policy, layout="bundle", chunk_tokens=8, n_threads=1))
    spec = import_model(gguf).spec
    steps = steps_of(output.trace, context=None, chunk_tokens=8)
    layout = ExpertLayout("bundle", 1, 0)
    n_slots = output.result.memory["slots"]
    decisions = decide(Scenario(spec, device_rates(), steps, n_slots, cache_policy=policy, layout=layout))
    reads = output.records[output.records["op"] == "read"]
    shape = decisions.n_misses.shape
    np.testing.assert_array_equal(reads["n_misses"].to_numpy().reshape(shape), decisions.n_misses)
    np.testing.assert_array_equal((reads["n_hits"] + reads["n_misses"]).to_numpy().reshape(shape), decisions.n_used)
    padded = output.result.memory["buffer_bytes"] // CONFIG.top_k
    np.testing.assert_array_equal(reads["n_bytes"], reads["n_misses"] * padded)


def test_records_tile_the_time(uncapped: RunOutput) -> None:
    """Operations of a chunk follow one another without a gap or an overlap; reads run beside them."""
    for _, ops in uncapped.records.groupby("token"):
        compute = ops[ops["op"] != "read"].sort_values("start_s")
        np.testing.assert_allclose(compute["start_s"].to_numpy()[1:], compute["end_s"].to_numpy()[:-1])
        assert (compute["end_s"] >= compute["start_s"]).all()
        assert set(compute["op"]) == {"embedding", "router", "attention", "wait", "expert_ffn", "lm_head"}


def test_reads_begin_at_the_known_topk(gguf: Path) -> None:
    """With prefetch a read begins with its layer's attention; without, when attention has ended."""
    for prefetch, edge in (("pre-attention", "start_s"), ("none", "end_s")):
        output = run_once(RuntimeOptions(gguf, 470_000, prefetch=prefetch, n_threads=1))
        by_row = output.records.set_index(["token", "layer"])
        reads = by_row[by_row["op"] == "read"]
        attention = by_row[by_row["op"] == "attention"].reindex(reads.index)
        delay_s = reads["start_s"] - attention[edge]
        assert delay_s.abs().median() < 2e-3


def test_a_limited_drive_is_as_slow_as_asked(gguf: Path) -> None:
    """At 1 MB/s the waits of decode take at least bytes / rate less what attention hides, and about that long."""
    rate = 2e6
    result = run_once(RuntimeOptions(gguf, 470_000, storage_bytes_per_s=rate, prefetch="none", n_threads=1)).result
    wait_s = result.seconds_per_token["wait"] * result.n_counted_tokens
    assert wait_s == pytest.approx(result.bytes_read / rate, rel=0.25)


def test_warm_up_is_not_counted(gguf: Path) -> None:
    """Figures are those of the tokens after the warm-up."""
    whole = run_once(RuntimeOptions(gguf, 470_000, n_threads=1), forced=True)
    part = run_once(RuntimeOptions(gguf, 470_000, n_threads=1), forced=True, n_warm_up=15)
    assert (whole.result.n_counted_tokens, part.result.n_counted_tokens) == (N_DECODE, N_DECODE - 15)
    reads = whole.records[(whole.records["op"] == "read") & (whole.records["token"] >= N_PROMPT + 15)]
    assert part.result.misses == reads["n_misses"].sum()


def test_forced_decode_feeds_the_given_tokens(gguf: Path) -> None:
    """Teacher forcing takes the given ids, and the record says so."""
    output = run_once(RuntimeOptions(gguf, n_threads=1), forced=True)
    assert output.result.token_ids == random_tokens(N_PROMPT + N_DECODE, CONFIG)[N_PROMPT:].tolist()
    assert output.result.conditions["decode"] == "teacher-forced"
    assert (output.trace.phase == DECODE).sum() == N_DECODE


def test_a_post_attention_model_records_what_could_be_known_earlier(gguf: Path) -> None:
    """Such a model's trace carries two predictions; the one from the entering state is often right, never always."""
    tokens = random_tokens(N_PROMPT + N_DECODE, CONFIG).tolist()
    with open_runtime(RuntimeOptions(gguf, n_threads=1), len(tokens)) as runtime:
        config = replace(runtime.model.config, pre_attention_router=False)
        late = replace(runtime, model=replace(runtime.model, config=config))
        trace = run(late, Task(tokens[:N_PROMPT], N_DECODE, forced=tokens[N_PROMPT:])).trace
    assert set(trace.predicted) == {"previous-layer-state", "last-token"}
    np.testing.assert_array_equal(trace.predicted["last-token"][1:], trace.expert_ids[:-1])
    same = np.sort(trace.predicted["previous-layer-state"], axis=2) == np.sort(trace.expert_ids, axis=2)
    assert 0.3 < same.mean() < 1


def test_a_changed_file_gives_no_token(gguf: Path, tmp_path: Path) -> None:
    """A model file that is written to during the run is an error in one line."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.read_bytes())
    tokens = random_tokens(N_PROMPT + N_DECODE, CONFIG).tolist()

    def touch(token: int) -> None:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size - 1)
            file.write(b"x")

    with open_runtime(RuntimeOptions(path, 470_000, layout="split"), len(tokens)) as runtime:  # noqa: SIM117
        with pytest.raises(InputError, match="must not change"):
            run(runtime, Task(tokens[:N_PROMPT], N_DECODE), on_token=touch)


# The command


def command(*arguments: object) -> subprocess.CompletedProcess:
    call = [sys.executable, "-m", "command_line.app", "run", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent.parent)


def test_json_contract_and_record(gguf: Path, tmp_path: Path) -> None:
    """--json has the contract's fields; --record leaves a trace, the operations and the result, all readable."""
    done = command("--model", gguf, "--prompt", "#$%&", "--max-tokens", 6, "--ram-cap", "564 kB", "--threads", 1,
                   "--record", tmp_path / "out", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for field in ("token_ids", "text", "tokens_per_s", "hit_rate", "bytes_read", "hidden_frac", "baseline_rss_bytes",
                  "peak_rss_bytes", "ram_cap_bytes"):  # fmt: skip
        assert field in result
    assert result["ram_cap_bytes"] == 564_000
    assert len(result["token_ids"]) == result["n_decode_tokens"] <= 6
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == result
    trace = read_trace(tmp_path / "out" / "trace.parquet")
    assert trace.n_tokens == 4 + result["n_decode_tokens"]
    assert trace.header.conditions["threads"] == "1"
    records = pd.read_parquet(tmp_path / "out" / "ops.parquet")
    assert records["n_bytes"][records["token"] >= 4].sum() == result["bytes_read"]


def test_text_answer(gguf: Path) -> None:
    """The terminal answer has speed, hit rate, hidden share and memory against the cap."""
    done = command("--model", gguf, "--prompt", "#$%&", "--max-tokens", 6, "--ram-cap", "564 kB", "--threads", 1)
    assert done.returncode == 0, done.stderr
    for words in ("tokens/s", "hits", "hidden", "cap 551 KiB", "t_attention"):
        assert words in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "#", "--ram-cap", "50 kB"], ["--ram-cap", "missing"]),
        (["--prompt", "#", "--cache", "nearest"], ["--cache"]),
        (["--prompt", "#", "--layout", "bundles"], ["--layout", "bundle"]),
        (["--prompt", "#", "--prefetch", "early"], ["--prefetch"]),
        (["--prompt", "#", "--kernels", "quick"], ["--kernels"]),
        (["--prompt", "#", "--storage-limit", "3 GB"], ["--storage-limit"]),
        (["--prompt", "#", "--max-tokens", "500"], ["128 tokens"]),
        (["--prompt", "#", "--warm-up", "65"], ["--warm-up"]),
        (["--prompt", ""], ["--prompt"]),
        ([], ["--prompt", "given once"]),
        (["--prompt", "#", "--forced"], ["--forced"]),
        (["--token-ids", "nowhere.json"], ["nowhere.json"]),
        (["--prompt", "#", "--replay-routing", "tiny-smallthinker-prose"], ["tiny-smallthinker-prose"]),
    ],
)
def test_wrong_input_is_one_line(gguf: Path, arguments: list[str], words: list[str]) -> None:
    """Exit status 2, one line, no traceback, nothing on standard output."""
    done = command("--model", gguf, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
