"""Perplexity by hand, windows that score each token once, the LM-head predictor and the table of variants."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moeplan.errors import InputError
from reference_runtime.forward import forward
from reference_runtime.kv_cache import KVCache
from reference_runtime.model import Model
from reference_runtime.quality import table as quality_module
from reference_runtime.quality.lm_head_predictor import LmHeadPredictor, MaskedHead, PredictorFit
from reference_runtime.quality.perplexity import (
    TokenScores,
    join_texts,
    quality,
    score_tokens,
    standard_error,
    token_losses,
    windows,
)
from reference_runtime.quality.table import TextOptions, evaluate_text, fit_predictor, quality_table, resident_model
from reference_runtime.synthetic_model import Q8_0, write_synthetic
from simulator.model.catalog import load_model_spec

OPTIONS = TextOptions(n_context=8, window_tokens=24)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model: 3 layers, 128 tokens, 8 experts of which 3 a token."""
    spec = load_model_spec("tiny-smallthinker")
    experts = spec.experts.model_copy(update={"n_experts": 8, "top_k": 3})
    path = tmp_path_factory.mktemp("quality") / "small.gguf"
    spec = spec.model_copy(update={"n_layers": 3, "vocab_size": 128, "experts": experts})
    write_synthetic(spec, path, Q8_0)
    return path


@pytest.fixture(scope="module")
def model(gguf: Path) -> Model:
    """That model in memory."""
    return resident_model(gguf)


def text(n: int, seed: int = 0) -> np.ndarray:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, 128, n)


def scored(losses: list[float], window: list[int], targets: list[int] | None = None) -> TokenScores:
    """Scores with these losses."""
    ids = np.array(targets or [0] * len(losses))
    return TokenScores(np.array(losses), np.zeros(len(losses), dtype=int), ids, np.array(window))


# Windows


@pytest.mark.parametrize(("n_tokens", "n_context", "length"), [(2, 1, 2), (24, 8, 24), (25, 8, 24), (100, 7, 16)])
def test_windows_score_each_token_once_with_its_context(n_tokens: int, n_context: int, length: int) -> None:
    """Tokens 1 to n - 1 are scored once each, in order, with n_context before them or all there are."""
    places = []
    for window in windows(n_tokens, n_context, length):
        assert window.end - window.start <= length
        for token in range(window.first_scored, window.end):
            assert token - window.start >= min(n_context, token)
            places.append(token)
    assert places == list(range(1, n_tokens))


def test_windows_by_hand() -> None:
    """10 tokens in windows of 6 with 2 of context."""
    assert [tuple(window) for window in windows(10, 2, 6)] == [(0, 1, 6), (4, 6, 10)]


@pytest.mark.parametrize(("n_tokens", "n_context", "message"), [(1, 2, "at least 2 tokens"), (9, 6, "must be 1 to 5")])
def test_windows_that_score_nothing_are_refused(n_tokens: int, n_context: int, message: str) -> None:
    """One token has nothing before it; a window of context alone would never end."""
    with pytest.raises(InputError, match=message):
        list(windows(n_tokens, n_context, 6))


# Scores


def test_uniform_logits_give_the_vocabulary(model: Model) -> None:
    """A model that says nothing: ln 128 nat per token, perplexity 128, no error, log2(128) bits over 2-byte tokens."""
    silent = replace(model, dense=replace(model.dense, output_norm=np.zeros(96, dtype=np.float32)))
    found = evaluate_text(silent, text(150), np.full(128, 2), OPTIONS)
    assert found.n_tokens == 149
    assert found.nat_per_token == pytest.approx(np.log(128))
    assert found.perplexity == pytest.approx(128)
    assert found.bits_per_byte == pytest.approx(7 / 2)
    assert found.standard_error_nat == pytest.approx(0, abs=1e-9)


def test_strided_scores_are_those_of_one_plain_pass(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window equals a forward pass over it, whatever the chunks."""
    monkeypatch.setattr("reference_runtime.quality.perplexity.CHUNK_TOKENS", 5)
    tokens = text(60)
    found = score_tokens(model, tokens, n_context=8, window_tokens=24)[""]
    expected = []
    for start, first, end in windows(60, 8, 24):
        logits = forward(model, tokens[start:end], KVCache(model.config, end - start)).logits
        expected += token_losses(logits[first - start - 1 : -1], tokens[first:end]).tolist()
    assert found.losses == pytest.approx(np.array(expected), rel=1e-4)
    assert np.array_equal(found.target_ids, tokens[1:])
    assert found.window[0] == 0
    assert found.window[-1] == len(list(windows(60, 8, 24))) - 1


def test_losses_by_hand() -> None:
    """-ln softmax, also for large logits and for a token that cannot come."""
    logits = np.array([[0, np.log(3)], [1000, 0], [-np.inf, 0]], dtype=np.float32)
    assert token_losses(logits, np.array([1, 0, 0])) == pytest.approx([np.log(4 / 3), 0, np.inf])


def test_the_error_by_hand() -> None:
    """
    Six windows of two tokens, means 1 and 3 by turns: deviations of the sums -2 and 2, sqrt(6 / 5 * 6 * 4) / 12; too
    few windows say nothing.
    """
    values, windows = np.tile([1.0, 1, 3, 3], 3), np.repeat(np.arange(6), 2)
    assert standard_error(values, windows) == pytest.approx(np.sqrt(6 / 5 * 24) / 12)
    assert standard_error(values, windows % 4) is None
    assert standard_error(np.where(windows == 0, np.inf, values), windows) is None


def test_texts_keep_their_windows_apart() -> None:
    """The first window of the second text is not the first window of the first."""
    joined = join_texts([scored([1, 2], [0, 1]), scored([3], [0])])
    assert joined.window.tolist() == [0, 1, 2]
    assert joined.losses.tolist() == [1, 2, 3]


def test_quality_by_hand() -> None:
    """Bits per byte counts the bytes of the tokens that came; unknown bytes give None."""
    scores = scored([np.log(2), np.log(8)], [0, 1], targets=[0, 3])
    found = quality(scores, np.array([1, 9, 9, 3]))
    assert found.bits_per_byte == pytest.approx(4 / 4)
    assert found.perplexity == pytest.approx(4)
    assert found.top_1_accuracy == 0.5
    assert quality(scores).bits_per_byte is None


# The LM-head predictor


def test_a_predictor_finds_rows_that_are_linear_in_the_state() -> None:
    """State (s, |s|), logits s * a with a symmetric: the bar is linear in the state, so rank 2 is exact."""
    s = np.random.default_rng(0).standard_normal(400)
    hidden = np.stack([s, np.abs(s)], axis=-1).astype(np.float32)
    logits = np.outer(s, np.arange(-20, 21)).astype(np.float32)  # 41 rows; the best are 20, 19, ... or -20, -19, ...
    fit = PredictorFit(2, 41, active_frac=0.1)
    fit.add(hidden[:150], logits[:150])
    fit.add(hidden[150:], logits[150:])
    predictor = fit.solve(2)
    active = predictor.scores(hidden) > 1e-3 * hidden[:, 1:]  # the bar's own score is 0 but for rounding
    best = np.argsort(-logits, axis=-1)[:, :4]
    assert (active.sum(axis=-1) == 4).all()
    assert np.take_along_axis(active, best, axis=-1).all()


def test_the_fit_is_the_best_of_its_rank() -> None:
    """Eckart and Young: no other product of that rank is nearer to the targets; more rank is never worse."""
    rng = np.random.default_rng(1)
    hidden = rng.standard_normal((300, 8)).astype(np.float32)
    logits = rng.standard_normal((300, 20)).astype(np.float32) + hidden @ rng.standard_normal((8, 20))
    fit = PredictorFit(8, 20, active_frac=0.2)
    fit.add(hidden, logits)
    target = logits - np.sort(logits, axis=-1)[:, -5, None]  # the fifth best is the bar of 4 active rows

    def error(predictor: LmHeadPredictor) -> float:
        return float(np.square(predictor.scores(hidden) - target).sum())

    errors = [error(fit.solve(rank)) for rank in (1, 2, 4, 8)]
    assert errors == sorted(errors, reverse=True)
    best = fit.solve(2)
    for _ in range(20):
        near = LmHeadPredictor(
            best.w1 + 0.01 * rng.standard_normal(best.w1.shape), best.w2 + 0.01 * rng.standard_normal(best.w2.shape)
        )
        assert error(near) > errors[1]
    with pytest.raises(InputError, match="must be 1 to 8"):
        fit.solve(9)


def test_masking_by_hand() -> None:
    """Scores above the threshold keep their logits; the others are 0, or -inf but for the best score of a token."""
    predictor = LmHeadPredictor(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32))
    scores = np.array([[1, -1, 0], [-3, -2, -4]], dtype=np.float32)
    logits = np.array([[5, 6, 7], [5, 6, 7]], dtype=np.float32)
    authors = MaskedHead(predictor, fill=0.0)
    assert authors(scores, logits).tolist() == [[5, 0, 0], [0, 0, 0]]
    assert (authors.active_frac, authors.missed_frac) == (1 / 6, 1)
    strict = MaskedHead(predictor, fill=-np.inf)
    assert strict(scores, logits).tolist() == [[5, -np.inf, -np.inf], [-np.inf, 6, -np.inf]]
    lower = MaskedHead(predictor, fill=0.0, threshold=-2.5)
    assert lower(scores, logits).tolist() == [[5, 6, 7], [0, 6, 0]]


def test_a_predictor_is_stored_and_checked(tmp_path: Path) -> None:
    """What is saved is read back; another model's or another file is refused in one line."""
    rng = np.random.default_rng(0)
    predictor = LmHeadPredictor(*(rng.random(shape).astype(np.float32) for shape in ((2, 8), (20, 2))))
    path = tmp_path / "predictor.npz"
    predictor.save(path)
    again = LmHeadPredictor.load(path, 8, 20)
    assert np.array_equal(again.w1, predictor.w1)
    assert np.array_equal(again.w2, predictor.w2)
    with pytest.raises(InputError, match="another model's"):
        LmHeadPredictor.load(path, 8, 21)
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"must be an \.npz"):
        LmHeadPredictor.load(tmp_path / "bad.npz", 8, 20)


# The table


def test_the_table_compares_each_variant_with_the_full_model(gguf: Path, model: Model) -> None:
    """The full row is the model; top-k 2 and 1, Q4_0 and the predictor's heads follow, on the same tokens."""
    predictor = fit_predictor(model, [text(60, seed=1)], rank=96, options=OPTIONS)
    texts = [text(60), text(40, seed=2)]
    rows = {row.variant: row for row in quality_table(gguf, texts, options=OPTIONS, predictor=predictor, also=[gguf])}
    assert list(rows)[:5] == ["as in the file", "small.gguf", "rounded to Q4_0", "top-2 experts", "top-1 experts"]
    full = rows["as in the file"]
    assert (full.difference_nat, full.top_1_agreement) == (0, 1)
    assert rows["small.gguf"].quality == full.quality
    assert {row.quality.n_tokens for row in rows.values()} == {98}
    assert 0 < rows["rounded to Q4_0"].top_1_agreement < 1
    fewer = replace(model, config=replace(model.config, top_k=1))
    expected = score_tokens(fewer, texts[0], n_context=8, window_tokens=24)[""].losses.sum()
    expected += score_tokens(fewer, texts[1], n_context=8, window_tokens=24)[""].losses.sum()
    assert rows["top-1 experts"].quality.nat_per_token == pytest.approx(expected / 98)
    assert rows["the same, others -inf"].quality.perplexity == np.inf
    assert "of rows exact" in rows["LM-head predictor, others 0"].note
    assert all(len(quality_module.format_row(row).splitlines()) == 1 for row in rows.values())


def test_texts_are_read_and_refused(tmp_path: Path) -> None:
    """Token arrays are cut to length; what is no array of ids is one line."""

    class Bytes:
        vocab_size = 256

        def encode(self, written: str) -> list[int]:
            return list(written.encode())

    def read(path: Path, n: int | None = None) -> np.ndarray:
        return quality_module.text_tokens(path, Bytes(), n)  # type: ignore[arg-type]

    np.save(tmp_path / "a.npy", np.arange(9, dtype=np.uint16))
    np.save(tmp_path / "b.npy", np.array([3, 256]))
    np.save(tmp_path / "c.npy", np.array([0.5]))
    (tmp_path / "d.txt").write_text("abc", encoding="utf-8")
    assert read(tmp_path / "a.npy", 4).tolist() == [0, 1, 2, 3]
    assert read(tmp_path / "d.txt").tolist() == [97, 98, 99]
    for name, message in {"b.npy": "ids of 0 to 255", "c.npy": "whole numbers", "e.npy": "must be an"}.items():
        with pytest.raises(InputError, match=message):
            read(tmp_path / name)


@pytest.mark.parametrize("n_tokens", [1, 0, -3])
def test_a_text_of_no_length_is_refused(n_tokens: int) -> None:
    """A negative number would silently cut the end off."""
    with pytest.raises(InputError, match="must be at least 2"):
        TextOptions(n_tokens=n_tokens)
