"""
From single spot checks to the machine's state: what of their scatter is the machine, and what is the check itself?

A check lasts a fraction of a second, so one of them scatters although the machine's state has not changed.  The
logarithms of all takes in their order are read as a random walk, the state, with independent noise on top:

    state(i + 1) = state(i) + N(0, walk)        take(i) = state(i) + N(0, noise)

Both variances are those that make the series likeliest; the state half-way between two takes is its mean given all of
them, with the standard deviation that is left.  Where the noise is small that is the geometric mean of the two takes
around a run, where the walk is small that of many.  A take that lies OUTLIER_SIGMAS from what all others say is left
out.  Below FEWEST_TAKES it is the two takes themselves, each one standard deviation from their middle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_TAKES = 8  # two variances cannot be told apart with fewer
WALK_SHARES = np.concatenate([[0.0], np.logspace(-4, 2, 49)])  # walk / noise that are tried
START_SHARE = 1e6  # variance of the first state / noise: it may be anything
LEAST_NOISE = 1e-12  # variance: of takes that are all alike
OUTLIER_SIGMAS = 4.0
CHI_SQUARE_MEDIAN = 0.4549  # of the square of a standard normal variable


@dataclass(frozen=True, eq=False)
class States:
    """
    The logarithm of a check's state between takes i and i + 1, (n - 1,) each: mean and standard deviation.

    n_outliers: takes that were left out.
    """

    mean: np.ndarray
    sigma: np.ndarray
    n_outliers: int = 0


def states_by_check(takes: Sequence[Mapping[str, float]], references: Mapping[str, float]) -> dict[str, States]:
    """The states of each check that all takes have, over the probe's seconds by name: references."""
    common = [name for name in references if len(takes) > 1 and all(name in take for take in takes)]
    return {name: states(np.log([take[name] / references[name] for take in takes])) for name in common}


def states(logs: np.ndarray) -> States:
    """The states between takes whose logarithms (n,) are given, n >= 2; see the top of this file."""
    if len(logs) < FEWEST_TAKES:
        return States((logs[1:] + logs[:-1]) / 2, np.abs(np.diff(logs)) / 2)
    at = np.arange(len(logs), dtype=float)
    kept = _without_outliers(at, logs)
    at_kept, logs_kept, between = at[kept], logs[kept], at[:-1] + 0.5
    share, noise = _likeliest(at_kept, logs_kept)
    middle, cross = float(np.median(logs_kept)), _walk(between, at_kept, share)  # cross: (n - 1, kept)
    weights = np.linalg.solve(_covariance(at_kept, share), cross.T)  # (kept, n - 1)
    left = START_SHARE + share * between - np.einsum("ij,ji->i", cross, weights)
    sigma = np.sqrt(noise * np.maximum(left, 0.0))
    return States(middle + (logs_kept - middle) @ weights, sigma, int((~kept).sum()))


def _without_outliers(at: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Which takes lie near what all others say of them; the noise is told by their median, which no outlier moves."""
    share, _ = _likeliest(at, logs)
    inverse = np.linalg.inv(_covariance(at, share))
    variance = 1 / np.diag(inverse)
    squares = (inverse @ (logs - np.median(logs)) * variance) ** 2 / variance
    noise = max(LEAST_NOISE, float(np.median(squares)) / CHI_SQUARE_MEDIAN)
    return squares <= OUTLIER_SIGMAS**2 * noise


def _likeliest(at: np.ndarray, logs: np.ndarray) -> tuple[float, float]:
    """
    walk / noise and the noise's variance that make the takes likeliest.

    With C = L L', the covariance without a walk, and the walk's own in L's coordinates as V diag(w) V', that of any
    share s has the variances 1 + s w in the coordinates V' inv(L), so one decomposition serves all shares.
    """
    factor = np.linalg.cholesky(_covariance(at, 0.0))
    half = np.linalg.solve(factor, np.minimum.outer(at, at))
    own, axes = np.linalg.eigh(np.linalg.solve(factor, half.T))
    squares = (axes.T @ np.linalg.solve(factor, logs - np.median(logs))) ** 2  # (n,)
    variances = 1 + np.outer(WALK_SHARES, np.maximum(own, 0.0))  # (shares, n)
    noises = np.maximum(LEAST_NOISE, (squares / variances).mean(axis=1))
    likelihoods = -(len(logs) * np.log(noises) + np.log(variances).sum(axis=1)) / 2
    best = int(np.argmax(likelihoods))
    return float(WALK_SHARES[best]), float(noises[best])


def _covariance(at: np.ndarray, share: float) -> np.ndarray:
    """Of the takes, in units of the noise's variance."""
    return _walk(at, at, share) + np.eye(len(at))


def _walk(at: np.ndarray, others: np.ndarray, share: float) -> np.ndarray:
    return START_SHARE + share * np.minimum.outer(at, others)
