"""
The noise within one run: how sure its mean token time is, and how near two of its times are to being equal.

Standard error of the mean of n token times:

    sqrt(variance of the residuals x tau / n)      tau = 1 + 2 x sum of the autocorrelations

A residual is a token's measured time less that of the least-squares line in the token's own number of misses, so that
tokens with more misses are no noise; where all tokens have as many, less the mean.  Misses are counts, and no
predicted time enters: a wrong prediction is no noise.  What bends the line is counted as noise.  The sum goes up to the
first autocorrelation that is not positive, at most to n / 4.

Noise of t_attention and t_prefetch: spread of the measured times of rows with a miss about the median of their like,
rows of the same layer for attention and rows with as many misses for the reads.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

CLEAR_Z = 1.645  # standard deviations: beyond them noise alone turns at most 5 % of the verdicts
ONE_SIGMA = (0.1587, 0.8413)  # quantiles of a normal distribution one standard deviation from its middle


def standard_error_frac(measured_s: np.ndarray, n_misses: np.ndarray) -> float:
    """
    Standard error of the mean of the measured token times (n,) over that mean; n_misses (n,): of each token.

    0 where there are no more tokens than the line has parameters.
    """
    centred_s, centred = measured_s - measured_s.mean(), n_misses - n_misses.mean()
    weight, n_parameters = float((centred**2).sum()), 1
    residual = centred_s / measured_s.mean()
    if weight > 0:
        residual = residual - float((centred * residual).sum()) / weight * centred
        n_parameters = 2
    n = len(residual)
    if n <= n_parameters:
        return 0.0
    variance = float((residual**2).sum()) / (n - n_parameters)
    return float(np.sqrt(variance * _autocorrelation_time(residual) / n))


def _autocorrelation_time(residual: np.ndarray) -> float:
    """Tokens that tell as much as one that knows nothing of the others; at least 1."""
    centred, n = residual - residual.mean(), len(residual)
    power = float((centred**2).sum())
    total = 1.0
    for lag in range(1, n // 4 + 1):
        correlation = float((centred[:-lag] * centred[lag:]).sum()) / power if power > 0 else 0.0
        if correlation <= 0:
            break
        total += 2 * correlation
    return total


def boundary_noise(rows: "pd.DataFrame") -> float:
    """
    Standard deviation of ln(t_prefetch / t_attention) among rows that are alike, from measured rows with attention,
    read and n_misses.

    0 where no two rows are alike: their noise is not known.
    """
    missed = timed_rows(rows)
    attention = _spread(missed["attention"], missed.index.get_level_values("layer").to_numpy())
    return float(np.hypot(attention, _spread(missed["read"], missed["n_misses"].to_numpy())))


def timed_rows(rows: "pd.DataFrame") -> "pd.DataFrame":
    """The rows with a miss, where both times are above zero."""
    return rows[(rows["n_misses"] > 0) & (rows["attention"] > 0) & (rows["read"] > 0)]


def _spread(times: "pd.Series", kinds: np.ndarray) -> float:
    """One standard deviation of the logarithm of times about the median of their kind."""
    groups = np.log(times).groupby(kinds)
    about = (np.log(times) - groups.transform("median"))[groups.transform("size") > 1]
    if about.empty:
        return 0.0
    low, high = np.quantile(about, ONE_SIGMA)
    return float(high - low) / 2
