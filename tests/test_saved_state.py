"""A saved state: a run that begins from it is the run that fed the prompt itself; everything else is refused."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import make_trace
from forward_oracle import SMALL, random_tokens, random_weights, vocabulary
from safetensors.numpy import load_file

from moeplan.errors import InputError
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.weight_loading import open_model
from reference_runtime.routing_replay import WRAPS, ReplayRouter
from reference_runtime.run import RunOutput, Task, run
from reference_runtime.runtime import open_runtime
from reference_runtime.runtime_options import RuntimeOptions, prepare_store
from reference_runtime.saved_state import open_state, save_state
from reference_runtime.session import Session
from reference_runtime.training.export import Q8_0, write_gguf
from traces.routing_trace import DECODE

CONFIG = replace(SMALL, hidden_size=64, head_dim=32, expert_ffn_size=64, context_length=128)  # a window of 8
N_PROMPT, N_DECODE = 21, 14
TOKENS = random_tokens(N_PROMPT + N_DECODE, CONFIG).tolist()
CAP_BYTES = 470_000


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model as Q8_0, with its store."""
    path = tmp_path_factory.mktemp("state") / "small.gguf"
    write_gguf(random_weights(CONFIG), vocabulary(CONFIG.vocab_size), path, Q8_0)
    prepare_store(RuntimeOptions(path), lambda done, total: None)
    return path


@pytest.fixture(scope="module")
def state_file(gguf: Path) -> Path:
    """The prompt's state, fed in chunks of 8 with all experts resident."""
    path = gguf.with_name("prompt.state")
    output = run_once(gguf, 0, save_state=path)
    assert output.result.n_prompt_tokens == N_PROMPT
    return path


def run_once(gguf: Path, n_decode: int = N_DECODE, cap: int | None = None, **task: object) -> RunOutput:
    options = RuntimeOptions(gguf, cap, chunk_tokens=8, n_threads=1)
    with open_runtime(options, N_PROMPT + n_decode) as runtime:
        return run(runtime, Task(TOKENS[:N_PROMPT], n_decode, **task))  # type: ignore[arg-type]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("cap", [None, CAP_BYTES])
def test_a_run_from_a_state_is_the_run_that_fed_the_prompt(
    gguf: Path, state_file: Path, forced: bool, cap: int | None
) -> None:
    """The very same tokens, experts and weights, sampled or forced, capped or not."""
    task = {"forced": TOKENS[N_PROMPT:]} if forced else {}
    whole = run_once(gguf, **task)
    part = run_once(gguf, cap=cap, state=open_state(state_file), **task)
    assert part.result.token_ids == whole.result.token_ids
    np.testing.assert_array_equal(part.trace.expert_ids, whole.trace.expert_ids[N_PROMPT:])
    np.testing.assert_array_equal(part.trace.weights, whole.trace.weights[N_PROMPT:])


def test_logits_are_exactly_those_of_the_fed_prompt(gguf: Path, state_file: Path) -> None:
    """After the prompt and after each forced token, to the last bit."""
    with open_runtime(RuntimeOptions(gguf, n_threads=1), len(TOKENS)) as runtime:
        fed, loaded = (Session(runtime.model, len(TOKENS), chunk_tokens=8) for _ in range(2))
        rows = [fed.feed(TOKENS[:N_PROMPT])]
        again = [open_state(state_file).load_into(loaded.cache, runtime.model_file)]
        for token in TOKENS[N_PROMPT:]:
            rows.append(fed.feed([token]))
            again.append(loaded.feed([token]))
    np.testing.assert_array_equal(again, rows)


def test_the_record_holds_what_ran(gguf: Path, state_file: Path) -> None:
    """Decode tokens alone, positions go on behind the prompt, operations from token 0, figures of the counted ones."""
    output = run_once(gguf, cap=CAP_BYTES, state=open_state(state_file), forced=TOKENS[N_PROMPT:], n_warm_up=4)
    trace, result, records = output.trace, output.result, output.records
    assert trace.phase.tolist() == [DECODE] * N_DECODE
    assert trace.position.tolist() == list(range(N_PROMPT, N_PROMPT + N_DECODE))
    assert trace.token_id.tolist() == TOKENS[N_PROMPT:]
    assert sorted(records["token"].unique()) == list(range(N_DECODE))
    assert (result.n_prompt_tokens, result.n_decode_tokens, result.n_counted_tokens) == (0, N_DECODE, N_DECODE - 4)
    assert result.prompt_s == 0
    reads = records[(records["op"] == "read") & (records["token"] >= 4)]
    assert (result.misses, result.bytes_read) == (reads["n_misses"].sum(), reads["n_bytes"].sum())
    first_reads = records[(records["op"] == "read") & (records["token"] == 0)]
    assert first_reads["n_hits"].sum() == 0  # the expert cache is not part of the state
    said = trace.header.conditions["context_at_start"]
    assert said.startswith(f"saved state of {N_PROMPT} tokens")
    assert "prefill_chunk 8" in said
    assert run_once(gguf).result.conditions["context_at_start"] == "empty"


def test_the_file_is_plain_safetensors(state_file: Path) -> None:
    """Any reader of the format finds keys, values, logits and token ids; nothing is left beside the file."""
    parts = load_file(state_file)
    shape = (CONFIG.n_layers, CONFIG.n_kv_heads, N_PROMPT, CONFIG.head_dim)
    assert parts["keys"].shape == parts["values"].shape == shape
    assert parts["logits"].shape == (CONFIG.vocab_size,)
    assert parts["token_ids"].tolist() == TOKENS[:N_PROMPT]
    assert not list(state_file.parent.glob("*.part"))


def test_another_prompt_is_refused(state_file: Path) -> None:
    """The state's tokens must be the prompt's, each of them."""
    state = open_state(state_file)
    other = [*TOKENS[:3], TOKENS[3] + 1, *TOKENS[4:N_PROMPT]]
    with pytest.raises(InputError, match=r"got token \d+ at position 3, the state has"):
        Task(other, 1, state=state)
    with pytest.raises(InputError, match=f"it holds {N_PROMPT} tokens, got one of {N_PROMPT - 1} tokens"):
        Task(TOKENS[: N_PROMPT - 1], 1, state=state)
    with pytest.raises(InputError, match="must be at least 1 from a saved state"):
        Task(TOKENS[:N_PROMPT], 0, state=state)


def test_another_model_is_refused(gguf: Path, state_file: Path, tmp_path: Path) -> None:
    """A model file of other bytes is named; the cache stays empty."""
    path = tmp_path / "other.gguf"
    shutil.copy(gguf, path)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x3e")  # the norm's last value, from 0.5-2 to 0.12-0.5
    cache = KVCache(CONFIG, 64)
    with pytest.raises(InputError, match=r"must have been made from .*other\.gguf as it is now, got other contents"):
        open_state(state_file).load_into(cache, open_model(path))
    assert cache.n_tokens == 0


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"routing": "routing replayed from t"}, "routing routing replayed from t, got routing the model's own"),
        ({"top_k": "1 of the model's 2"}, "top_k 1 of the model's 2, got top_k 2 of the model's 2"),
    ],
)
def test_a_prompt_of_other_experts_is_refused(gguf: Path, state_file: Path, other: dict[str, str], words: str) -> None:
    """Routing and top-k must be the run's; chunks, kernels and where a replayed trace begins again may differ."""
    state, model_file, cache = open_state(state_file), open_model(gguf), KVCache(CONFIG, 64)
    same = state.fed_with | {"kernels": "plain", "prefill_chunk": "1"}
    state.load_into(cache, model_file, same | {"routing": f"{same['routing']}{WRAPS}"})
    cache.n_tokens = 0
    with pytest.raises(InputError, match=f"must have been fed with {words}"):
        state.load_into(cache, model_file, same | other)
    assert cache.n_tokens == 0


def replayed(gguf: Path, seed: int, name: str = "t", **task: object) -> RunOutput:
    """A short run whose experts are those of a made-up trace."""
    ids = np.random.default_rng(seed).permuted(
        np.tile(np.arange(CONFIG.n_experts), (N_PROMPT + 2, CONFIG.n_layers, 1)), axis=-1
    )[..., : CONFIG.top_k]
    router = ReplayRouter(make_trace(ids, CONFIG.n_experts), CONFIG, name)
    return run_once(gguf, 2, router=router, label=router.label, **task)


def test_a_replayed_routing_is_known_by_what_it_chose(gguf: Path, tmp_path: Path) -> None:
    """Another trace of the same name is refused in one line; the same one under another name is taken."""
    path = tmp_path / "replayed.state"
    replayed(gguf, 0, save_state=path)
    forced = {"state": open_state(path), "forced": TOKENS[N_PROMPT:]}
    with pytest.raises(InputError, match=r"experts of routing replayed from t, .*got other experts of that name") as no:
        replayed(gguf, 1, **forced)
    assert "\n" not in str(no.value)
    assert replayed(gguf, 0, "renamed", **forced).result.n_decode_tokens == 2
    with pytest.raises(InputError, match="must have been fed with routing the model's own, got routing routing repl"):
        run_once(gguf, 2, **forced)


def test_a_small_cache_and_another_shape_are_refused(gguf: Path, state_file: Path) -> None:
    """Capacity and shapes are checked before anything is read."""
    state, model_file = open_state(state_file), open_model(gguf)
    with pytest.raises(InputError, match=f"must fit the cache's {N_PROMPT - 1} tokens, got {N_PROMPT}"):
        state.load_into(KVCache(CONFIG, N_PROMPT - 1), model_file)
    with pytest.raises(InputError, match="must hold keys of shape"):
        state.load_into(KVCache(replace(CONFIG, n_layers=5), 64), model_file)


def _cut(content: bytearray) -> bytes:
    return bytes(content[:-1])


def _flip(content: bytearray) -> bytes:
    content[len(content) // 2] ^= 1  # in the values
    return bytes(content)


def _version(content: bytearray) -> bytes:
    return bytes(content.replace(b'"version": "2"', b'"version": "1"'))


def _other_token(content: bytearray) -> bytes:
    content[-4] ^= 1  # of the last token id
    return bytes(content)


def _other_model(content: bytearray) -> bytes:
    return bytes(content.replace(b'"n_bytes\\": ', b'"n_bytes\\":9'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, "must be a whole moeplan saved state"),
        (_flip, "must have its checksum, got other bytes"),
        (_version, "of version 2, got moeplan saved state 1"),
        (_other_token, "must have its checksum, got other tokens or metadata"),
        (_other_model, "must have its checksum, got other tokens or metadata"),
        (lambda content: b"", "must be a whole moeplan saved state"),
        (lambda content: b"GGUF" * 100, "must be a whole moeplan saved state"),
    ],
)
def test_a_damaged_file_is_refused(
    gguf: Path, state_file: Path, tmp_path: Path, damage: Callable[[bytearray], bytes], words: str
) -> None:
    """Cut short, one bit off, of another version or no state at all: one line each."""
    path = tmp_path / "bad.state"
    path.write_bytes(damage(bytearray(state_file.read_bytes())))
    with pytest.raises(InputError, match=words):
        open_state(path).load_into(KVCache(CONFIG, 64), open_model(gguf))


def test_a_failed_save_leaves_what_was_there(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails half way keeps the old file and no part of the new one."""
    path = tmp_path / "s.state"
    path.write_bytes(b"old")
    monkeypatch.setattr("reference_runtime.saved_state._header", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(InputError, match="full"):
        save_state(path, KVCache(CONFIG, 4), [1, 2], np.zeros(CONFIG.vocab_size, np.float32), open_model(gguf), {})
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.state"]


# The command


def command(*arguments: object) -> subprocess.CompletedProcess:
    call = [sys.executable, "-m", "command_line.app", "run", *map(str, arguments), "--threads", "1"]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent.parent)


def test_the_command_saves_and_goes_on(gguf: Path, tmp_path: Path) -> None:
    """--save-state with the prompt, --load-state without one: the tokens of the run that did both."""
    prompt, state = tmp_path / "prompt.json", tmp_path / "a.state"
    prompt.write_text(json.dumps(TOKENS[:N_PROMPT]))
    model = ("--model", gguf, "--json")
    first = command(*model, "--token-ids", prompt, "--max-tokens", 9, "--save-state", state)
    assert first.returncode == 0, first.stderr
    second = command(*model, "--load-state", state, "--max-tokens", 9, "--ram-cap", f"{CAP_BYTES} B")
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["token_ids"] == json.loads(first.stdout)["token_ids"]
    both = command(*model, "--load-state", state, "--save-state", tmp_path / "b.state")
    assert (both.returncode, both.stdout, both.stderr.count("\n")) == (2, "", 1)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak can be reset on Linux only")
def test_loading_takes_no_second_copy(gguf: Path, tmp_path: Path) -> None:
    """The peak of a run from a long state is the cache's own bytes and little more."""
    n_tokens = 40_000
    code = f"""
import numpy as np
from dataclasses import replace
from pathlib import Path
from forward_oracle import SMALL
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.weight_loading import open_model
from reference_runtime.process_memory import peak_rss_bytes, reset_peak, rss_bytes
from reference_runtime.saved_state import open_state, save_state
config = replace(SMALL, head_dim=32, context_length={n_tokens})
model_file, path = open_model(Path({str(gguf)!r})), Path({str(tmp_path / "long.state")!r})
cache = KVCache(config, {n_tokens})
cache.keys += 1
save_state(path, cache, range({n_tokens}), np.zeros(config.vocab_size, np.float32), model_file, {{}})
del cache
state, cache = open_state(path), KVCache(config, {n_tokens})
reset_peak()
before = rss_bytes()
state.load_into(cache, model_file)
print(peak_rss_bytes() - before, cache.keys.nbytes + cache.values.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    grown, cache_bytes = map(int, done.stdout.split())
    assert cache_bytes > 100e6
    assert 0.9 * cache_bytes < grown < 1.1 * cache_bytes
