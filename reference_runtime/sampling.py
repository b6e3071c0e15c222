"""How the next token is chosen from logits: the best one, or a seeded draw."""

from collections.abc import Callable

import numpy as np

from moeplan.errors import InputError

Chooser = Callable[[np.ndarray], int]


def greedy(logits: np.ndarray) -> int:
    """The token of the highest logit, the lowest id among equals; logits: (vocab,)."""
    return int(np.argmax(logits))


def nucleus_probabilities(logits: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """
    softmax(logits / temperature) cut to the fewest most probable tokens that hold top_p together; float64 (vocab,).

    The token that crosses top_p is kept, so at least one remains (Holtzman et al., arXiv:1904.09751).
    """
    below_best = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):  # a temperature near 0 leaves minus infinity to all but the best
        probabilities = np.exp(below_best / temperature)
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]  # mass of the better ones
    probabilities[order[before >= top_p]] = 0
    return probabilities / probabilities.sum()


def seeded(seed: int, temperature: float = 0.6, top_p: float = 0.95) -> Chooser:
    """
    A chooser that draws from the nucleus; the same seed gives the same tokens. Temperature 0 is greedy.

    Raises InputError for a negative temperature or a top_p outside (0, 1].
    """
    if not 0 <= temperature < float("inf"):
        raise InputError("--temperature", "must be a number of at least 0", temperature)
    if not 0 < top_p <= 1:
        raise InputError("--top-p", "must be above 0 and at most 1", top_p)
    if temperature == 0:
        return greedy
    rng = np.random.default_rng(seed)

    def choose(logits: np.ndarray) -> int:
        probabilities = nucleus_probabilities(logits, temperature, top_p)
        return int(rng.choice(len(probabilities), p=probabilities))

    return choose
