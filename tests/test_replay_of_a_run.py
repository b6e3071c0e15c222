"""A recorded run replays: with its own conditions the simulator takes the runtime's decisions."""

import json
from pathlib import Path


def test_the_simulator_takes_the_decisions_of_a_recorded_run(moeplan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The same slots, hits, misses and bytes, from the command line alone."""
    common = ("--ram-cap", "16MiB", "--layout", "split")
    ran = moeplan(
        "run", "--prompt", "def main(", "--max-tokens", "6", *common, "--record", str(tmp_path / "run"), "--json"
    )
    assert ran.status == 0, ran.err
    measured = json.loads(ran.out)
    replayed = moeplan(
        *("simulate", "--model", "tiny-smallthinker", "--hardware", "intel-n100", "--trace", str(tmp_path / "run")),
        *(*common, "--start", "cold", "--kv-type", "f32", "--json"),
    )
    assert replayed.status == 0, replayed.err
    cache = json.loads(replayed.out)["cache"]
    assert cache["slots"] == measured["memory"]["slots"]
    assert (cache["hits"], cache["misses"]) == (measured["hits"], measured["misses"])
    assert cache["bytes_read"] == measured["bytes_read"]


def test_an_unknown_kv_type_is_one_line(moeplan) -> None:  # type: ignore[no-untyped-def]
    """Exit status 2 and the option's name."""
    refused = moeplan(
        *("simulate", "--model", "tiny-smallthinker", "--hardware", "intel-n100"),
        *("--trace", "tiny-smallthinker-prose", "--kv-type", "f33"),
    )
    assert refused.status == 2
    assert "--kv-type" in refused.err
    assert len(refused.err.strip().splitlines()) == 1
