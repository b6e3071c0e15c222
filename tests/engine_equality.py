"""
Hold the fast engine and the sweep equal to the SimPy engine on many random scenarios; `make test` takes a few hundred.

    python -m tests.engine_equality 10000 [seed]        half of them for the engine, half as rows of sweeps
"""

import itertools
import sys
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from simulator.scenario import Scenario
from tests.random_scenarios import RandomSweep, check_fast_engine, check_sweep, scenarios, sweeps

BATCH = 500  # examples a call of Hypothesis, which keeps what it has seen


def until(n_wanted: int, first_seed: int, batch: Callable[[int], int]) -> int:
    """Run batches until n_wanted scenarios agreed; how many did."""
    n_done, began = 0, time.monotonic()
    for number in itertools.count(first_seed):
        if n_done >= n_wanted:
            return n_done
        n_done += batch(number)
        print(f"  {n_done:,} of {n_wanted:,} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    raise AssertionError


def random_search(number: int) -> Callable:
    """Settings of a batch: fresh examples of a seed, nothing remembered."""
    chosen = settings(
        max_examples=BATCH, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda check: seed(number)(chosen(check))


def engine_batch(number: int) -> int:
    """Scenarios of random models, devices, traces and policies, each on both engines."""
    n_done = 0

    @random_search(number)
    @given(scenario=scenarios(), compiled=st.booleans())
    def check(scenario: Scenario, compiled: bool) -> None:
        nonlocal n_done
        check_fast_engine(scenario, compiled)
        n_done += 1

    check()
    return n_done


def sweep_batch(number: int) -> int:
    """Sweeps, each row on the SimPy engine too; rows that cannot run are checked and not counted."""
    n_done = 0

    @random_search(number)
    @given(sweep=sweeps())
    def check(sweep: RandomSweep) -> None:
        nonlocal n_done
        n_done += check_sweep(sweep)

    check()
    return n_done


def main(n_scenarios: int, first_seed: int = 0) -> None:
    """Stops at the first scenario that differs, with the smallest one like it."""
    began = time.monotonic()
    print("fast engine against SimPy engine", file=sys.stderr)
    n_engine = until(n_scenarios // 2, first_seed, engine_batch)
    print("rows of sweeps against SimPy engine", file=sys.stderr)
    n_rows = until(n_scenarios - n_scenarios // 2, first_seed, sweep_batch)
    print(
        f"{n_engine + n_rows:,} random scenarios equal to 1e-9 s: {n_engine:,} of the fast engine, {n_rows:,} rows of "
        f"sweeps, in {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
