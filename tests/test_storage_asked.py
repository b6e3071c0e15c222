"""A storage speed that was asked for: a limiter is part of what bounds, a link's end is told, the RAM's is refused."""

from dataclasses import replace

import pytest
from conftest import assert_one_line
from test_sweep_rows import DEVICES, GIB, INPUTS, MODEL, PROFILES, TRACES, sweep_rows

from moeplan.errors import InputError
from simulator.question import Question, check_storage_read
from simulator.simulate import simulate
from simulator.sweeps.in_memory import Grid, sweep

QUESTION = Question(INPUTS.models[MODEL], PROFILES[DEVICES[0]], TRACES["four"], GIB)


@pytest.mark.parametrize("device", [DEVICES[0], "measured"])
def test_a_slow_limiter_is_what_bounds(device: str) -> None:
    """Nearly all of a token waits for it: doubling the storage without its limiter would change nothing."""
    slow = replace(QUESTION, profile=PROFILES[device], storage_limit_bytes_per_s=5e7)
    result = simulate(slow, engine="fast", n_samples=0)
    assert result.seconds_per_token["wait"] > 0.9 * sum(result.seconds_per_token.values())
    assert result.bound_by == "storage_bandwidth"
    own = PROFILES[device].storage.sequential_read.value
    (row,) = sweep(slow, Grid((GIB,), (own,), ("lru",), (slow.prefetch,)), n_samples=1)
    assert row.bound_by == "storage_bandwidth"


def test_a_limiter_that_nothing_meets_changes_no_bound() -> None:
    """The device is slower than it."""
    free, limited = (
        simulate(replace(QUESTION, storage_limit_bytes_per_s=limit), engine="fast", n_samples=0)
        for limit in (None, 1e12)
    )
    assert free.bound_by == limited.bound_by


def test_more_than_the_link_carries_is_told() -> None:
    """By simulate and by the row of a sweep with that speed, and no other; a limiter below it takes the doubt away."""
    wanted = "A storage read of 6.48 GB/s is more than this device's PCIe 2 x1 carries (500 MB/s): a what-if."
    fast = replace(QUESTION, storage_read_bytes_per_s=6.48e9)
    assert wanted in simulate(fast, engine="fast", n_samples=0).warnings
    slowed = replace(fast, storage_limit_bytes_per_s=3e8)
    assert not any("A storage read" in text for text in simulate(slowed, engine="fast", n_samples=0).warnings)
    rows = [row for _, row in sweep_rows(ram_cap=(2**20, GIB, 2 * GIB), storage_read=(None, 4e8, 6.48e9))]
    told = [wanted in row.warnings.splitlines() for row in rows]
    assert told == [row.verdict != "cannot_run" and row.storage_read_bytes_per_s == 6.48e9 for row in rows]
    assert sum(told) == 2


def test_more_than_the_ram_takes_in_is_refused(moeplan) -> None:
    """In one line by simulate and plan, as a row of its own in a sweep; faster RAM takes in more."""
    asked = ["--model", MODEL, "--hardware", DEVICES[0], "--trace", "tiny-smallthinker-switching"]
    for command in (["simulate"], ["plan", "--target-tokens-per-s", "5"]):
        refused = moeplan(*command, *asked, "--storage-read", "1TB/s")
        assert_one_line(refused, "--storage-read: must be at most the 17.1 GB/s of the RAM", "got 1000 GB/s")
    rows = [row for _, row in sweep_rows(ram_cap=(GIB,), storage_read=(4e8, 2e10))]
    assert [row.verdict for row in rows] == ["streams", "failed"]
    assert "--storage-read: must be at most the 17.1 GB/s" in rows[1].reason
    quick = replace(QUESTION, storage_read_bytes_per_s=2e10)
    with pytest.raises(InputError, match="--storage-read"):
        check_storage_read(quick)
    check_storage_read(replace(quick, ram_bytes_per_s=2 * QUESTION.profile.ram.gemv_bandwidth.value))
