"""`moeplan run --evaluate`: no speed without its quality; and `moeplan model synthesize`."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, assert_one_line
from forward_oracle import SMALL, oracle, plain_model, random_tokens, random_weights, vocabulary, with_config

from moeplan.errors import InputError
from reference_runtime.loading.gguf_weights import Weights
from reference_runtime.loading.token_files import read_token_ids
from reference_runtime.quality.lm_head_predictor import LmHeadPredictor
from reference_runtime.quality.perplexity import score_tokens
from reference_runtime.training.export import F32, write_gguf
from simulator.model.catalog import load_model_spec
from traces.store import read_trace

Command = Callable[..., Outcome]
CONFIG = replace(SMALL, n_layers=3, window=4096, context_length=128)
TOKENS = random_tokens(40, replace(CONFIG, vocab_size=CONFIG.vocab_size - 1)) + 1  # all but the control token
MERGED = CONFIG.vocab_size - 1  # the token of two characters
CAP = "400 kB"
FAST_START = ("--kernels", "plain", "--threads", "1")


@pytest.fixture(scope="module")
def weights() -> Weights:
    """A small random model."""
    return random_weights(CONFIG)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Path:
    """That model as F32, whose numbers the float64 oracle has too."""
    path = tmp_path_factory.mktemp("evaluate") / "small.gguf"
    write_gguf(weights, vocabulary(CONFIG.vocab_size), path, F32)
    return path


@pytest.fixture(scope="module")
def ids(gguf: Path) -> Path:
    """The held-out text as token ids."""
    path = gguf.with_name("text.npy")
    np.save(path, TOKENS.astype(np.uint16))
    return path


@pytest.fixture
def evaluated(moeplan: Command, gguf: Path, ids: Path) -> Callable[..., dict]:
    """The JSON of a run that scores the text."""

    def run(*arguments: object, text: Path = ids) -> dict:
        call = ("run", "--model", gguf, "--evaluate", text, "--max-tokens", "4", *FAST_START, *arguments, "--json")
        outcome = moeplan(*map(str, call))
        assert outcome.status == 0, outcome.err
        return json.loads(outcome.out)

    return run


def oracle_nat(weights: Weights, tokens: np.ndarray) -> float:
    """Mean of -ln p over one window, from the oracle's float64 logits."""
    logits = oracle(weights, tokens)[0][:-1]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return float(-np.log(shares[np.arange(len(shares)), tokens[1:]] / shares.sum(axis=1)).mean())


@pytest.mark.parametrize("cap", [None, CAP])
def test_the_quality_is_the_oracles(evaluated: Callable, weights: Weights, cap: str | None) -> None:
    """The streamed model's loss is the float64 oracle's, perplexity is e^loss, bits per byte follow; all are there."""
    answer = evaluated(*([] if cap is None else ["--ram-cap", cap]))
    found = answer["quality"]
    assert answer["conditions"]["verdict"] == ("resident" if cap is None else "streams")
    assert found["nat_per_token"] == pytest.approx(oracle_nat(weights, TOKENS), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(found["nat_per_token"]))
    n_bytes = 39 + (TOKENS[1:] == MERGED).sum()
    assert found["bits_per_byte"] == pytest.approx(found["nat_per_token"] * 39 / np.log(2) / n_bytes)
    assert (found["n_tokens"], found["standard_error_nat"], found["window_tokens"]) == (39, None, 40)
    assert found["scored_tokens_per_s"] == pytest.approx(39 / found["scoring_s"])
    assert found["scoring_bytes"] is None or 0 <= found["scoring_bytes"] < 20_000_000
    assert found["lm_head_predictor"] == []


def test_the_speed_beside_it_is_of_the_texts_own_tokens(evaluated: Callable, ids: Path) -> None:
    """Without a prompt the text is decoded, teacher-forced; with one the prompt is, and the quality stays."""
    own = evaluated()
    assert own["token_ids"] == TOKENS[36:].tolist()
    assert own["conditions"]["decode"] == "teacher-forced"
    assert own["tokens_per_s"] > 0
    prompted = evaluated("--token-ids", ids, "--ram-cap", CAP)
    assert prompted["conditions"]["decode"] == "the model's own tokens"
    assert prompted["quality"]["nat_per_token"] == pytest.approx(own["quality"]["nat_per_token"], rel=1e-6)


def test_long_texts_have_windows_and_an_error(evaluated: Callable, tmp_path: Path) -> None:
    """A text longer than the context is scored in windows of it; --evaluate-tokens cuts it."""
    np.save(tmp_path / "long.npy", np.tile(TOKENS, 12))
    whole = evaluated(text=tmp_path / "long.npy")["quality"]
    assert (whole["n_tokens"], whole["n_context"]) == (479, 64)
    assert whole["standard_error_nat"] > 0
    assert evaluated("--evaluate-tokens", 30, text=tmp_path / "long.npy")["quality"]["n_tokens"] == 29


def test_text_and_ids_are_the_same(evaluated: Callable, tmp_path: Path) -> None:
    """A UTF-8 text, a JSON list and an .npy of its ids give one quality."""
    written = "".join('!"' if token == MERGED else chr(0x20 + token) for token in TOKENS)
    (tmp_path / "text.txt").write_text(written, encoding="utf-8")
    (tmp_path / "ids.json").write_text(json.dumps(TOKENS.tolist()), encoding="utf-8")
    expected = evaluated()
    for name in ("text.txt", "ids.json"):
        found = evaluated(text=tmp_path / name)
        assert found["quality"]["nat_per_token"] == expected["quality"]["nat_per_token"]
        assert found["token_ids"] == expected["token_ids"]


def test_fewer_experts_are_fewer_for_speed_and_quality(
    evaluated: Callable, weights: Weights, tmp_path: Path, moeplan: Command, gguf: Path, ids: Path
) -> None:
    """--top-k 1: the quality is the oracle's with one expert, the record says so and its trace has one a layer."""
    answer = evaluated("--top-k", 1, "--record", tmp_path / "out", "--ram-cap", CAP)
    expected = oracle_nat(with_config(weights, top_k=1), TOKENS)
    assert answer["quality"]["nat_per_token"] == pytest.approx(expected, rel=1e-5)
    assert answer["conditions"]["top_k"] == "1 of the model's 2"
    assert json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8")) == answer
    assert read_trace(tmp_path / "out" / "trace.parquet").top_k == 1
    assert answer["hits"] + answer["misses"] == 4 * CONFIG.n_layers
    call = ("run", "--model", gguf, "--evaluate", ids, "--top-k", 3, *FAST_START)
    assert_one_line(moeplan(*map(str, call)), "--top-k", "1 to 2")


def test_both_maskings_of_the_predictor(evaluated: Callable, tmp_path: Path) -> None:
    """
    A predictor that picks no row: logits of 0 are uniform, perplexity 40; with -inf only token 0 can come, which the
    text never has: the loss is infinite, null in JSON.
    """
    path = tmp_path / "predictor.npz"
    LmHeadPredictor(np.zeros((2, 32), np.float32), np.zeros((40, 2), np.float32)).save(path)
    answer = evaluated("--lm-head-predictor", path)["quality"]
    zero, strict = answer["lm_head_predictor"]
    assert (zero["masked_logits"], strict["masked_logits"]) == ("0", "-inf")
    assert zero["perplexity"] == pytest.approx(40)
    assert (zero["exact_frac"], zero["missed_frac"], zero["ruled_out_frac"]) == (0, 1, 0)
    assert (strict["nat_per_token"], strict["perplexity"], strict["ruled_out_frac"]) == (None, None, 1)
    assert strict["exact_frac"] == pytest.approx(1 / 40)
    assert answer["nat_per_token"] != pytest.approx(np.log(40))


def test_the_answer_in_words(moeplan: Command, gguf: Path, ids: Path, tmp_path: Path) -> None:
    """The quality stands right below the speed, memory and both maskings beside it; the given text is not printed."""
    LmHeadPredictor(np.zeros((2, 32), np.float32), np.zeros((40, 2), np.float32)).save(tmp_path / "p.npz")
    call = ("run", "--model", gguf, "--evaluate", ids, "--max-tokens", "4", "--ram-cap", CAP,
            "--lm-head-predictor", tmp_path / "p.npz", *FAST_START)  # fmt: skip
    outcome = moeplan(*map(str, call))
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    assert "tokens/s over 4 decode tokens" in lines[0]
    assert all(word in lines[1] for word in ("nat/token", "perplexity", "bits/byte"))
    for words in ("39 tokens of", "masked logits 0", "masked logits -inf", "100.0% of tokens ruled out", "memory"):
        assert words in " ".join(outcome.out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--evaluate", "nowhere.txt"], ["nowhere.txt"]),
        (["--evaluate", "nowhere.npy"], ["nowhere.npy"]),
        (["--evaluate", "{folder}/one.json"], ["one.json", "at least 2 tokens"]),
        (["--evaluate", "{folder}/far.json"], ["far.json", "0 to 39"]),
        (["--evaluate", "{folder}/text.npy", "--lm-head-predictor", "{folder}/text.npy"], ["text.npy", ".npz"]),
        (["--evaluate", "{folder}/text.npy", "--replay-routing", "tiny-smallthinker-prose"], ["--replay-routing"]),
        (["--evaluate", "{folder}/text.npy", "--ram-cap", "50 kB"], ["--ram-cap", "missing"]),
        (["--prompt", "#", "--evaluate-tokens", "9"], ["--evaluate-tokens", "--evaluate"]),
        (["--prompt", "#", "--lm-head-predictor", "p.npz"], ["--lm-head-predictor", "--evaluate"]),
    ],
)
def test_what_cannot_be_scored_is_one_line(
    moeplan: Command, gguf: Path, ids: Path, arguments: list[str], words: list[str]
) -> None:
    """Exit status 2 and nothing on standard output."""
    ids.with_name("one.json").write_text("[7]")
    ids.with_name("far.json").write_text("[7, 40]")
    given = [argument.format(folder=ids.parent) for argument in arguments]
    assert_one_line(moeplan("run", "--model", str(gguf), *FAST_START, *given), *words)


def test_few_logits_are_in_memory_at_once(weights: Weights) -> None:
    """Scored five rows at a time the losses are the same, and no head ever sees more."""
    seen: list[int] = []

    def spy(hidden: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen.append(len(logits))
        return logits

    model = plain_model(weights)
    options = {"n_context": 16, "window_tokens": 32}
    whole = score_tokens(model, TOKENS, **options)[""]
    few = score_tokens(model, TOKENS, **options, chunk_tokens=12, logit_rows=5, heads={"spy": spy})
    assert few["spy"].losses == pytest.approx(whole.losses, rel=1e-5)
    assert (max(seen), sum(seen)) == (5, 39)


@pytest.mark.parametrize("content", ["[1, true]", "[[1]]", "[]", "[1.0]", '{"a": 1}', "[1", "[" * 100_000, "[1e400]"])
def test_files_that_hold_no_ids_are_refused(content: str, tmp_path: Path) -> None:
    """One line for whatever JSON may hold."""
    (tmp_path / "ids.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"ids\.json: must be"):
        read_token_ids(tmp_path / "ids.json")


# moeplan model synthesize


@pytest.fixture
def small_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped shapes with one layer and 64 tokens."""
    update = {"n_layers": 1, "vocab_size": 64}

    def small(name: str) -> object:
        return load_model_spec(name).model_copy(update=update)

    monkeypatch.setattr("simulator.model.catalog.load_model_spec", small)


@pytest.mark.usefixtures("small_shape")
def test_a_synthesized_model_runs_and_is_scored(moeplan: Command, tmp_path: Path) -> None:
    """The file replaces what stood there, is the seed's own, has no tokenizer and takes ids."""
    path = tmp_path / "m.gguf"
    path.write_text("old")
    shape = ("model", "synthesize", "--model", "tiny-smallthinker", "--quantisation", "Q8_0", "--output")
    outcome = moeplan(*shape, str(path))
    assert outcome.status == 0, outcome.err
    assert "RANDOM weights" in outcome.out
    moeplan(*shape, str(tmp_path / "other.gguf"), "--seed", "1")
    moeplan(*shape, str(tmp_path / "again.gguf"))
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes() != (tmp_path / "other.gguf").read_bytes()
    (tmp_path / "ids.json").write_text(json.dumps(list(range(64))))
    run = ("run", "--model", str(path), "--evaluate", str(tmp_path / "ids.json"), *FAST_START)
    scored = moeplan(*run, "--max-tokens", "2", "--json")
    assert scored.status == 0, scored.err
    found = json.loads(scored.out)["quality"]
    assert (found["bits_per_byte"], found["n_tokens"]) == (None, 63)
    assert np.isfinite(found["nat_per_token"])
    (tmp_path / "text.txt").write_text("a text")
    assert_one_line(moeplan("run", "--model", str(path), "--evaluate", str(tmp_path / "text.txt")), "token ids")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "{folder}/m.gguf", "--quantisation", "Q4_1"], ["--quantisation", "Q4_0"]),
        (["--output", "{folder}/m.bin"], ["m.bin", ".gguf"]),
        (["--output", "{folder}/m.gguf", "--model", "olmoe-1b-7b"], ["SmallThinker"]),
        (["--output", "{folder}/m.gguf", "--gate-sparsity", "nan"], ["--gate-sparsity"]),
    ],
)
def test_what_cannot_be_synthesized_is_one_line(
    moeplan: Command, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    """Exit status 2, and no file."""
    given = [argument.format(folder=tmp_path) for argument in arguments]
    assert_one_line(moeplan("model", "synthesize", *given), *words)
    assert not list(tmp_path.iterdir())
