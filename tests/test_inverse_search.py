"""Searching a grid: bisection is the scan where nothing falls after it rose; grids have the steps that they say."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.inverse.search import first_reaching, thinned
from simulator.inverse.storage_grid import rate_grid


def test_a_rate_has_three_digits_and_one_percent_steps() -> None:
    """What is printed is what was tried; no two rates are alike."""
    rates = rate_grid(1e10)
    assert all(float(f"{rate:.3g}") == rate for rate in rates)
    assert (np.diff(rates) > 0).all()
    assert max(b / a for a, b in pairwise(rates)) < 1.021
    assert rate_grid(1.0) == (1e6,)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_bisection_equals_the_scan_on_runs_that_only_rise(flags: list[bool]) -> None:
    """Each run false, then true; any order of runs."""
    runs = [sorted(flags[start : start + 7]) for start in range(0, len(flags), 7)]
    places = [[(index, place) for place in range(len(run))] for index, run in enumerate(runs)]

    def reaches(at: tuple[int, int]) -> bool:
        return runs[at[0]][at[1]]

    scanned = first_reaching(places, reaches, is_monotone=False)
    assert first_reaching(places, reaches, is_monotone=True) == scanned


def test_thinning_keeps_both_ends() -> None:
    """As many as there may be, the first and the last one among them, evenly apart."""
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert thinned(range(11), 4) == [0, 3, 7, 10]
    assert thinned(range(3), 4) == [0, 1, 2]
    for n in range(2, 60):
        some = thinned(range(n), 7)
        assert (some[0], some[-1], len(some)) == (0, n - 1, min(n, 7))
        assert some == sorted(set(some))
