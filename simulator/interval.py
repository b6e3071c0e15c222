"""The 80 % interval of an answer: how many draws stand behind it, and where its ends lie."""

import numpy as np

from simulator.result import Interval

INTERVAL_FRAC = 0.80
N_SAMPLES = 200  # Monte Carlo draws; the ends of the interval move by about 2 % of its width from seed to seed


def interval_of(value: float, draws: list[float]) -> Interval:
    """The value with the ends of its 80 % interval over the draws, which always holds the value."""
    low, high = interval_ends(np.array(value), np.array(draws))
    return Interval(value, float(low), float(high))


def interval_ends(values: np.ndarray, draws: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The ends for many values at once: draws have one axis more than values, on which they may be none."""
    if not draws.shape[axis]:
        return values, values
    low, high = np.quantile(draws, [(1 - INTERVAL_FRAC) / 2, (1 + INTERVAL_FRAC) / 2], axis=axis)
    return np.minimum(low, values), np.maximum(high, values)
