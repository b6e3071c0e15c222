"""
The first value of a grid that reaches a target: by bisection where that is proven to be exact, by a scan elsewhere.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def first_reaching(
    runs: Sequence[Sequence[Value]], reaches: Callable[[Value], bool], *, is_monotone: bool
) -> Value | None:
    """
    The first value, in the order of the runs, that reaches; None where none does.

    is_monotone: within each run every value after one that reaches does too, so a run is bisected; from run to run
    nothing is assumed.  Otherwise the values are tried one by one.
    """
    for run in runs:
        found = _bisected(run, reaches) if is_monotone else next((value for value in run if reaches(value)), None)
        if found is not None:
            return found
    return None


def _bisected(run: Sequence[Value], reaches: Callable[[Value], bool]) -> Value | None:
    if not run or not reaches(run[-1]):
        return None
    low, high = 0, len(run) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(run[middle]) else (middle + 1, high)
    return run[high]


def thinned(values: Sequence[Value], most: int) -> list[Value]:
    """At most so many (2 or more) of the values, evenly spaced, both ends included."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]
