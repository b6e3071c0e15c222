"""
The noise within one run: how sure its mean token time is, and how near two of its times are to being equal.

Standard error of the mean of n token times:

    sqrt(variance of the residuals x tau / n)      tau = 1 + 2 x sum of the autocorrelations

A residual is a token's measured share of the mean less its predicted one, so that tokens with more misses are no noise;
the sum goes up to the first autocorrelation that is not positive, at most to n / 4.

Noise of t_attention and t_prefetch: spread of the measured times of rows with a miss about the median of their like,
rows of the same layer for attention and rows with as many misses for the reads.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

CLEAR_Z = 1.645  # standard deviations: beyond them noise alone turns at most 5 % of the verdicts
ONE_SIGMA = (0.1587, 0.8413)  # quantiles of a normal distribution one standard deviation from its middle


def standard_error_frac(measured_s: np.ndarray, predicted_s: np.ndarray) -> float:
    """Standard error of the mean of the measured token times (n,) over that mean; 0 for a single token."""
    residual = measured_s / measured_s.mean() - predicted_s / predicted_s.mean()
    n = len(residual)
    if n < 2:
        return 0.0
    return float(np.sqrt(residual.var(ddof=1) * _autocorrelation_time(residual) / n))


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


def boundary_margin(rows: "pd.DataFrame") -> float:
    """
    The least |ln(t_prefetch / t_attention)| of a clear verdict, from measured rows with attention, read and n_misses.

    0 where no two rows are alike: their noise is not known.
    """
    missed = rows[(rows["n_misses"] > 0) & (rows["attention"] > 0) & (rows["read"] > 0)]
    attention = _spread(missed["attention"], missed.index.get_level_values("layer").to_numpy())
    return CLEAR_Z * float(np.hypot(attention, _spread(missed["read"], missed["n_misses"].to_numpy())))


def _spread(times: "pd.Series", kinds: np.ndarray) -> float:
    """One standard deviation of the logarithm of times about the median of their kind."""
    groups = np.log(times).groupby(kinds)
    about = (np.log(times) - groups.transform("median"))[groups.transform("size") > 1]
    if about.empty:
        return 0.0
    low, high = np.quantile(about, ONE_SIGMA)
    return float(high - low) / 2
