"""The forward pass is the paper's, whatever the chunking: held against a naive float64 oracle."""

from dataclasses import replace

import numpy as np
import pytest
from forward_oracle import SMALL, oracle, plain_model, random_tokens, random_weights, with_config

from moeplan.errors import InputError
from reference_runtime.forward import forward, route
from reference_runtime.kernels.plain import attend
from reference_runtime.kv_cache import KVCache
from reference_runtime.loading.gguf_weights import Weights

TOLERANCE = 1e-5


def run(weights: Weights, tokens: np.ndarray, chunks: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, expert ids and expert weights of the tokens fed in chunks of the given sizes."""
    model, cache = plain_model(weights), KVCache(weights.config, len(tokens))
    parts = [forward(model, part, cache) for part in np.split(tokens, np.cumsum(chunks)[:-1])]
    return tuple(np.concatenate([getattr(p, f) for p in parts]) for f in ("logits", "expert_ids", "expert_weights"))


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
@pytest.mark.parametrize("window", [8, None])
@pytest.mark.parametrize("tied", [True, False])
def test_equals_the_oracle(scoring: str, window: int | None, tied: bool) -> None:
    """Logits within 1e-5 of the oracle and the same experts, for every kind of SmallThinker model."""
    weights = random_weights(replace(SMALL, scoring=scoring, window=window, nope_period=window and 4), tied=tied)
    tokens = random_tokens(24)
    logits, ids, _ = run(weights, tokens, [24])
    expected, expected_ids = oracle(weights, tokens)
    assert relative(logits, expected) < TOLERANCE
    np.testing.assert_array_equal(ids, expected_ids)


@pytest.mark.parametrize("chunks", [[1] * 24, [5, 1, 11, 7], [23, 1], [3] * 8])
def test_chunks_change_nothing(chunks: list[int]) -> None:
    """Prefill in chunks, token by token and at once give the same logits, experts and weights."""
    weights, tokens = random_weights(), random_tokens(24)
    whole, parts = run(weights, tokens, [24]), run(weights, tokens, chunks)
    assert relative(parts[0], whole[0]) < TOLERANCE
    np.testing.assert_array_equal(parts[1], whole[1])
    assert relative(parts[2], whole[2]) < TOLERANCE


@pytest.mark.parametrize("first_position", [0, 12])
def test_window_edge(first_position: int) -> None:
    """With a window of 8 the key at distance 7 is seen and the one at distance 8 is not."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((20 - first_position, 4, 8)).astype(np.float32)
    keys, values = rng.standard_normal((2, 2, 20, 8)).astype(np.float32)
    positions = np.arange(first_position, 20)
    before = attend(q, keys, values, positions, 8)[-1]  # the query at 19
    for distance, is_seen in [(0, True), (7, True), (8, False), (19, False)]:
        changed = values.copy()
        changed[:, 19 - distance] += 1
        assert np.array_equal(attend(q, keys, changed, positions, 8)[-1], before) is not is_seen


def test_window_only_matters_from_its_length_on() -> None:
    """A window of 8 changes no logit of positions 0 to 7 and does change that of position 8."""
    weights, tokens = random_weights(), random_tokens(12)
    narrow, wide = (run(with_config(weights, window=w), tokens, [12])[0] for w in (8, 4096))
    np.testing.assert_allclose(narrow[:8], wide[:8], rtol=1e-5, atol=1e-5)
    assert np.abs(narrow[8] - wide[8]).max() > 1e-3


def test_the_router_sees_the_raw_residual() -> None:
    """Layer 0 chooses from the bare embedding; neither its norm nor its attention has a say."""
    weights, tokens = random_weights(), random_tokens(12)
    ids = run(weights, tokens, [12])[1][:, 0]
    scores = weights.token_embd[tokens] @ weights.layers[0].router.T
    np.testing.assert_array_equal(ids, np.argsort(-scores, axis=1)[:, : SMALL.top_k])
    other = replace(weights.layers[0], attn_norm=-weights.layers[0].attn_norm, q=weights.layers[0].q[::-1])
    changed = replace(weights, layers=(other, *weights.layers[1:]))
    np.testing.assert_array_equal(run(changed, tokens, [12])[1][:, 0], ids)


def test_routing_weights_by_hand() -> None:
    """Scores 0, ln 3, -50, ln 1/3: sigmoid gives 3/4 and 1/2, so 0.6 and 0.4; softmax over the two 0.75 and 0.25."""
    scores = np.array([[0, np.log(3), -50, -np.log(3)]], dtype=np.float32)
    config = replace(SMALL, n_experts=4)
    ids, weights = route(scores, config)
    assert ids.tolist() == [[1, 0]]
    np.testing.assert_allclose(weights, [[0.6, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(route(scores, replace(config, scoring="softmax"))[1], [[0.75, 0.25]], rtol=1e-6)


def test_sigmoid_never_overflows() -> None:
    """Scores of +-200 give finite weights that sum to 1, without a warning."""
    scores = np.array([[-200, -201, -900, -900], [200, 900, 0, 0]], dtype=np.float32)
    weights = route(scores, replace(SMALL, n_experts=4))[1]
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(weights[0, 0], 1 / (1 + np.exp(-1)), rtol=1e-4)


def test_shut_gates_are_counted() -> None:
    """Gates of zero matrices are all shut; a negated gate matrix shuts what was open, in the first layer."""
    weights, tokens = random_weights(replace(SMALL, n_layers=1)), random_tokens(12)

    def zero_frac(gate: np.ndarray) -> float:
        changed = replace(weights, layers=(replace(weights.layers[0], gate=gate),))
        return forward(plain_model(changed), tokens, KVCache(weights.config, 12)).zero_gate_frac[0]

    gate = weights.layers[0].gate
    assert zero_frac(gate * 0) == 1
    assert 0.2 < zero_frac(gate) < 0.8
    assert zero_frac(-gate) == pytest.approx(1 - zero_frac(gate))


def test_damaged_weights_give_no_token() -> None:
    """A NaN in a norm reaches the logits and is an error there, never a token."""
    weights = random_weights()
    weights = replace(weights, output_norm=np.full_like(weights.output_norm, np.nan))
    with pytest.raises(FloatingPointError, match="finite"):
        forward(plain_model(weights), random_tokens(3), KVCache(weights.config, 3))


@pytest.mark.parametrize(
    ("tokens", "must"),
    [
        ([], "at least one"),
        ([40], "0 to 39"),
        ([-1], "0 to 39"),
        ([1.5], "whole number"),
        ([1] * 9, "cache's 8 tokens"),
    ],
)
def test_bad_tokens_are_refused(tokens: list, must: str) -> None:
    """Tokens outside the vocabulary, none at all or more than the cache holds: one line, the cache untouched."""
    weights = random_weights()
    cache = KVCache(weights.config, 8)
    with pytest.raises(InputError, match=must):
        forward(plain_model(weights), np.array(tokens), cache)
    assert cache.n_tokens == 0


@pytest.mark.parametrize("capacity", [0, 65])
def test_cache_beyond_the_context_is_refused(capacity: int) -> None:
    """A KV cache holds 1 to context_length tokens."""
    with pytest.raises(InputError, match="1 to 64 tokens"):
        KVCache(SMALL, capacity)
