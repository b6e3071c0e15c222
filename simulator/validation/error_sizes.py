"""How large errors are: the median, and how large the large ones are."""

from collections.abc import Sequence

import numpy as np

from simulator.validation.result import FEWEST_FOR_A_PERCENTILE


def typical_and_high(errors: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Median and 90th percentile of |error|; of fewer than FEWEST_FOR_A_PERCENTILE the largest."""
    sizes = np.abs(errors)
    high = sizes.max() if len(sizes) < FEWEST_FOR_A_PERCENTILE else np.quantile(sizes, 0.9)
    return float(np.median(sizes)), float(high)
