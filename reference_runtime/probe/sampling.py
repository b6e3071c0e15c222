"""
Samples in rounds: every case once a round, the rounds spread over the whole probe, so that a disturbed second spoils
one sample of a case and no more.

The spread of a case is half the width of the 80 % of a log-normal that has the samples' standard deviation: of a few
rounds their own quantiles would give two thirds of it.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from hardware_profiles.schema_base import MOST_UNCERTAINTY, Z_80

SAMPLE_S = 0.004  # a sample repeats its call for so long
MOST_CALLS, N_BATCHES = 256, 5
TRIM_FRAC = 0.1  # of the rounds, at each end
HICCUP_FRAC = 0.02  # of single operations: more would take off the tail that a run's sum has too
LEAST_UNCERTAINTY = 0.02  # no figure of a shared machine is better known
UNKNOWN_SPREAD = 0.15  # log_spread of a single sample: what a shared machine showed from minute to minute


@dataclass(frozen=True, eq=False)
class Case:
    """Something to time: sample() gives seconds, of one call where it repeats a call."""

    key: Hashable
    sample: Callable[[], float]


class Samples:
    """Values by key, one for each round in which the key was measured."""

    def __init__(self) -> None:
        self.values: dict[Hashable, list[float]] = defaultdict(list)

    def add(self, key: Hashable, value: float) -> None:
        """One more value."""
        self.values[key].append(value)

    def take(self, cases: Iterable[Case]) -> None:
        """One sample of each case."""
        for case in cases:
            self.add(case.key, case.sample())

    def merge(self, other: "Samples") -> None:
        """The values of another one after those of this one."""
        for key, values in other.values.items():
            self.values[key].extend(values)

    def mean(self, key: Hashable) -> float:
        """See trimmed_mean."""
        return trimmed_mean(self.values[key])

    def last(self, key: Hashable) -> float:
        """The latest value."""
        return self.values[key][-1]

    def median(self, key: Hashable) -> float:
        """The middle value of all rounds."""
        return float(np.median(self.values[key]))

    def spread_frac(self, key: Hashable) -> float:
        """See the top of this file."""
        return spread_frac(self.values[key])


def repeated(call: Callable[[], object], sample_s: float = SAMPLE_S) -> Callable[[], float]:
    """
    A sampler of the seconds of a call: the mean of N_BATCHES means but the lowest and the highest, so that a moment in
    which another program had the core does not count.  How often it repeats follows from its first two calls.
    """
    n_calls = 0

    def sample() -> float:
        nonlocal n_calls
        if n_calls == 0:
            seconds = [_seconds(call, 1) for _ in range(2)]
            n_calls = int(min(MOST_CALLS, max(1, round(sample_s / max(1e-9, min(seconds))))))
            if n_calls == 1:
                return min(seconds)
        n = max(1, n_calls // N_BATCHES)
        return trimmed_mean([_seconds(call, n) / n for _ in range(min(N_BATCHES, n_calls))])

    return sample


def _seconds(call: Callable[[], object], n_calls: int) -> float:
    began = perf_counter()
    for _ in range(n_calls):
        call()
    return perf_counter() - began


def trimmed_mean(values: Sequence[float], trim_frac: float = TRIM_FRAC) -> float:
    """
    Mean without so many of the lowest and as many of the highest, one at least of three and more values.

    A run's time is the sum of its operations, so the mean is what predicts it; single hiccups are kept out.
    """
    ordered, n = np.sort(np.asarray(values, float)), int(trim_frac * len(values))
    if len(ordered) > 2:
        n = max(1, n)
    return float(ordered[n : len(ordered) - n].mean())


def spread_frac(values: Sequence[float]) -> float:
    """Of values above zero, as a factor less 1; see the top of this file."""
    return factor_80(log_spread(values))


def log_spread(values: Sequence[float]) -> float:
    """Standard deviation of the values' logarithm, at most MOST_UNCERTAINTY; UNKNOWN_SPREAD for a single value."""
    return min(MOST_UNCERTAINTY, float(np.std(np.log(values), ddof=1))) if len(values) > 1 else UNKNOWN_SPREAD


def factor_80(sigma: float) -> float:
    """The uncertainty that a profile writes for a standard deviation of the logarithm: half the width of its 80 %."""
    return min(MOST_UNCERTAINTY, float(np.expm1(Z_80 * sigma)))


def root_mean_square_80(log_spreads: Sequence[float]) -> float:
    """The uncertainty, in three digits, of figures whose own log_spread differs only by chance."""
    return round(factor_80(float(np.sqrt(np.mean(np.square(log_spreads))))), 3)


def uncertainty(*spreads: float) -> float:
    """
    Independent spreads as one factor in three digits, at least LEAST_UNCERTAINTY and at most what a profile can say: on
    a machine that is busy with other things a figure says nothing, and the others are kept.
    """
    whole = round(float(np.sqrt(sum(one**2 for one in spreads))), 3)
    return min(MOST_UNCERTAINTY, max(LEAST_UNCERTAINTY, whole))


def drift_frac(samples: Samples, keys: Iterable[Hashable]) -> float:
    """Spread of what all keys have in common from round to round: the machine's own drift."""
    rows = [np.log(samples.values[key]) for key in keys]
    n_rounds = min(map(len, rows))
    common = np.mean([row[:n_rounds] - np.median(row) for row in rows], axis=0)
    return spread_frac(np.exp(common).tolist())
