"""Choosing the next token."""

import numpy as np
import pytest

from moeplan.errors import InputError
from reference_runtime.sampling import greedy, nucleus_probabilities, seeded

LOGITS = np.log(np.array([0.1, 0.5, 0.15, 0.25], dtype=np.float32))


def test_greedy_takes_the_best() -> None:
    """The highest logit wins, the lowest id among equals; temperature 0 is greedy."""
    assert greedy(LOGITS) == 1
    assert greedy(np.array([1, 3, 3])) == 1
    assert seeded(0, temperature=0)(LOGITS) == 1


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.4, [0, 1, 0, 0]),
        (0.51, [0, 2 / 3, 0, 1 / 3]),
        (0.8, [0, 5 / 9, 1 / 6, 5 / 18]),
        (1.0, [0.1, 0.5, 0.15, 0.25]),
    ],
)
def test_nucleus_by_hand(top_p: float, expected: list[float]) -> None:
    """The fewest most probable tokens that hold top_p, the one that crosses it included, renormalised."""
    np.testing.assert_allclose(nucleus_probabilities(LOGITS, 1.0, top_p), expected, rtol=1e-6, atol=1e-12)


def test_temperature_sharpens() -> None:
    """Temperature 0.5 squares the probabilities, up to their sum."""
    squares = np.array([0.01, 0.25, 0.0225, 0.0625])
    np.testing.assert_allclose(nucleus_probabilities(LOGITS, 0.5, 1.0), squares / squares.sum(), rtol=1e-6)


def test_same_seed_same_tokens() -> None:
    """A seed fixes the tokens, another seed gives others, and the frequencies are the probabilities."""
    draws = {seed: [choose(LOGITS) for _ in range(4000)] for seed in (1, 2) for choose in [seeded(seed, 1.0, 1.0)]}
    assert draws[1] == [choose(LOGITS) for choose in [seeded(1, 1.0, 1.0)] for _ in range(4000)]
    assert draws[1] != draws[2]
    np.testing.assert_allclose(np.bincount(draws[1]) / 4000, [0.1, 0.5, 0.15, 0.25], atol=0.03)


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.1}])
def test_bad_settings_are_refused(bad: dict) -> None:
    """Temperature is at least 0, top-p above 0 and at most 1."""
    with pytest.raises(InputError, match=r"--t"):
        seeded(0, **bad)
