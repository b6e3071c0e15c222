"""The interpolated trigram baseline and the evaluation of a model against it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forward_oracle import SMALL, random_weights, vocabulary

from moeplan.errors import InputError
from reference_runtime.quality.perplexity import token_losses
from reference_runtime.training import evaluate
from reference_runtime.training.baseline import component_probabilities, count_trigrams, fit_trigram, fit_weights
from reference_runtime.training.corpus import DOMAINS
from reference_runtime.training.export import F32, write_gguf
from reference_runtime.training.routing_statistics import DomainRouting, divergence_bits, entropy_bits, routing_report


def chain(n: int, seed: int, n_symbols: int = 6) -> np.ndarray:
    """A stream whose next symbol is (the last two, summed) with 80 % and any with 20 %."""
    rng = np.random.default_rng(seed)
    ids = [0, 1]
    for noise, other in zip(rng.random(n), rng.integers(0, n_symbols, n), strict=True):
        ids.append(int(other) if noise < 0.2 else (ids[-1] + ids[-2] + 1) % n_symbols)
    return np.array(ids, dtype=np.uint16)


def test_components_by_hand() -> None:
    """In 0 1 2 0 1 3: p(2)=1/6, p(2|1)=1/2, p(2|0 1)=1/2, p(0|2)=1, and an unseen context gives 0."""
    counts = count_trigrams(np.array([0, 1, 2, 0, 1, 3]), 4)
    a, b, c = np.array([0, 1, 3]), np.array([1, 2, 2]), np.array([2, 0, 0])
    expected = [[1 / 4, 1 / 6, 1 / 2, 1 / 2], [1 / 4, 1 / 3, 1, 1], [1 / 4, 1 / 3, 1, 0]]
    np.testing.assert_allclose(component_probabilities(counts, a, b, c), expected)


def test_probabilities_sum_to_one() -> None:
    """Over the whole vocabulary, for contexts seen often, seldom and never."""
    trigram = fit_trigram(chain(400, 0, 9), chain(400, 1, 9), 9)
    a, b, c = (axis.ravel() for axis in np.meshgrid(np.arange(9), np.arange(9), np.arange(9), indexing="ij"))
    np.testing.assert_allclose(trigram.probabilities(a, b, c).reshape(81, 9).sum(axis=1), 1, rtol=1e-12)


def test_em_finds_the_mixture() -> None:
    """On text drawn from a known chain the loss comes within 1 % of the chain's own entropy."""
    stream = chain(20_000, 2)
    trigram = fit_trigram(chain(200_000, 0), chain(50_000, 1), 6)
    right, wrong = 0.8 + 0.2 / 6, 0.2 / 6
    entropy = -(right * np.log(right) + 5 * wrong * np.log(wrong))
    assert trigram.losses(stream, np.arange(2, len(stream))).mean() == pytest.approx(entropy, rel=0.01)


def test_em_weights_are_the_best() -> None:
    """No other weights on a grid of the simplex fit the development tokens better, within a bucket of them all."""
    development, counts = chain(3000, 1), count_trigrams(chain(300, 0), 6)
    parts = component_probabilities(counts, development[:-2], development[1:-1], development[2:])
    fitted = fit_weights(parts, np.full(len(parts), 100))[100]
    best = np.log(parts @ fitted).mean()
    grid = [(i, j, k, 10 - i - j - k) for i in range(11) for j in range(11 - i) for k in range(11 - i - j)]
    others = [parts @ (np.array(w) / 10) for w in grid]
    assert all(np.log(p[p > 0]).mean() <= best + 1e-4 for p in others if (p > 0).all())
    assert fitted.sum() == pytest.approx(1)


def test_token_losses_by_hand() -> None:
    """Logits ln(1, 2, 5) give -ln(5/8) for token 2; a shift of all logits changes nothing."""
    logits = np.log(np.array([[1, 2, 5], [1, 2, 5]])) + np.array([[0], [900]])
    np.testing.assert_allclose(token_losses(logits, np.array([2, 0])), [-np.log(5 / 8), np.log(8)])


def test_domain_loss_by_hand() -> None:
    """Model ln 2 and trigram ln 4 on 4 tokens of 8 bytes: margin ln 2, 1/2 and 1 bit a byte."""
    loss = evaluate.domain_loss("d", np.full((2, 2), np.log(2)), np.full((2, 2), np.log(4)), 8)
    assert (loss.margin_nat, loss.standard_error_nat) == (pytest.approx(np.log(2)), 0)
    assert (loss.model_bits_per_byte, loss.trigram_bits_per_byte) == (pytest.approx(0.5), pytest.approx(1))


def test_windows_fit_the_stream() -> None:
    """Windows lie inside the stream with two tokens before the first and a target behind the last input."""
    assert evaluate.window_starts(103, 3, 50, 0).tolist() == [2, 27, 52]
    assert evaluate.window_starts(103, 3, 40, 10).tolist() == [10, 36, 62]
    with pytest.raises(InputError, match="must be at most 49"):
        evaluate.window_starts(52, 3, 50, 0)


def test_entropy_and_divergence_by_hand() -> None:
    """Uniform over 8: 3 bits; the same twice: 0; nothing in common: 1 bit; (1, 0) and (1/2, 1/2): 0.3113 bits."""
    assert entropy_bits(np.full(8, 5)) == pytest.approx(3)
    assert divergence_bits(np.array([3, 1]), np.array([6, 2])) == pytest.approx(0)
    assert divergence_bits(np.array([3, 0]), np.array([0, 7])) == pytest.approx(1)
    assert divergence_bits(np.array([4, 0]), np.array([1, 1])) == pytest.approx(0.3113, abs=1e-4)


def test_routing_report_tells_domains_from_chance() -> None:
    """Domains of one distribution differ no more than their own halves; domains of two differ far more."""
    rng = np.random.default_rng(0)

    def domain(low: int) -> DomainRouting:
        return DomainRouting.of(rng.integers(low, low + 8, (8, 500, 2, 1)), np.array([0.5, 0.7]), 16)

    same = routing_report({"a": domain(0), "b": domain(0)})
    other = routing_report({"a": domain(0), "b": domain(4)})
    assert same.between_bits["a / b"] < 2 * np.mean(list(same.within_bits.values())) < 0.01
    assert other.between_bits["a / b"] == pytest.approx(0.5, abs=0.02)
    assert other.domain_load_bits["a"] == pytest.approx(3, abs=0.01)
    assert other.layer_zero_gate_frac == pytest.approx([0.5, 0.7])


def test_evaluate_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Text and JSON for every domain; an untrained model loses to the trigram on text with structure."""
    config = replace(SMALL, n_layers=2, context_length=512)
    write_gguf(random_weights(config), vocabulary(config.vocab_size), tmp_path / "m.gguf", F32)
    for seed, domain in enumerate(DOMAINS):
        for shift, (split, n) in enumerate({"train": 20_000, "development": 4000, "validation": 1500}.items()):
            np.save(tmp_path / f"{domain}.{split}.npy", chain(n, 3 * seed + shift))
    args = [str(tmp_path / "m.gguf"), str(tmp_path), "--n-windows", "4", "--n-tokens", "32"]
    evaluate.main(args)
    text = capsys.readouterr().out
    assert all(domain in text for domain in DOMAINS)
    assert "Jensen-Shannon" in text
    evaluate.main([*args, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert [loss["domain"] for loss in result["loss"]] == list(DOMAINS)
    assert all(loss["margin_nat"] < -0.5 and loss["n_tokens"] == 128 for loss in result["loss"])
    assert len(result["routing"]["layer_load_bits"]) == 2
    with pytest.raises(SystemExit) as caught:
        evaluate.main([str(tmp_path / "m.gguf"), str(tmp_path / "nowhere")])
    assert caught.value.code == 2
