"""What `moeplan hardware probe` refuses, in one line each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from command_line.hardware_probe import agreeing
from moeplan.errors import InputError
from tests.conftest import Outcome, assert_one_line

MIB = 2**20


def test_a_file_that_cannot_be_read_is_one_line(moeplan: Callable[..., Outcome], tmp_path: Path) -> None:
    """None there, one too small for a drive's cache, and one beside --directory."""
    small = tmp_path / "small.bundle"
    small.write_bytes(bytes(MIB))
    command = ("hardware", "probe", "--output", str(tmp_path / "p.yaml"), "--read")
    assert_one_line(moeplan(*command, str(tmp_path / "none")), "--read", "no file")
    assert_one_line(moeplan(*command, str(small)), "--read", "1.00 MiB")
    assert_one_line(moeplan(*command, str(small), "--directory", str(tmp_path)), "--directory", "left out with --read")
    assert list(tmp_path.iterdir()) == [small]


def test_a_disk_that_was_busy_is_told() -> None:
    """
    The 4 KiB rate beside what the table says of it: near, it stays; far, the fit's with both in its uncertainty; 30
    times off, one line that says what to do, and not one about an uncertainty that nobody gave.
    """

    def profile(measured: str) -> dict:
        """A disk of 100 us and 2 GB/s, whose single 4 KiB reads were measured at another rate."""
        rows = [
            {
                "request": f"{size} B",
                "queue_depth": depth,
                "rate": f"{size / max(1e-4 / depth, size / 2e9) / 1e6:g} MB/s",
            }
            for size in (4096, 65536, MIB, 4 * MIB)
            for depth in (1, 2, 4)
        ]
        head = {"kind": "measured", "source": "made up", "uncertainty": 0.1}
        table = head | {"rows": rows}
        sequential, random = ({**head, "value": value} for value in ("2 GB/s", measured))
        return {"storage": {"queue_depth": 4, "table": table, "sequential_read": sequential, "random_4k_read": random}}

    near = agreeing(profile("41 MB/s"))["storage"]["random_4k_read"]
    assert (near["value"], near["uncertainty"]) == ("41 MB/s", 0.1)
    far = agreeing(profile("10 MB/s"))["storage"]["random_4k_read"]
    assert 2 < far["uncertainty"] < 4
    assert "measured 10 MB/s" in far["source"]
    with pytest.raises(
        InputError, match=r"random_4k_read: must be within 11 times of .*, got 1 MB/s; the disk was busy"
    ):
        agreeing(profile("1 MB/s"))


def test_a_full_disk_is_one_line(moeplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Nothing is measured and nothing written."""

    def refuse(*_: object) -> None:
        raise InputError("--directory D", "must have 1 GiB free", "4 KiB")

    monkeypatch.setattr("reference_runtime.probe.storage.check_room", refuse)
    done = moeplan("hardware", "probe", "--output", str(tmp_path / "p.yaml"), "--seconds", "20", "--threads", "1")
    assert_one_line(done, "--directory D")
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_one_line(moeplan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Before anything runs."""
    output = ("hardware", "probe", "--output", str(tmp_path / "p.yaml"))
    assert_one_line(moeplan(*output, "--threads", "1,x"), "--threads", "1,x")
    assert_one_line(moeplan(*output, "--seconds", "1"), "--seconds", "20")
    assert_one_line(moeplan("hardware", "probe", "--output", str(tmp_path / "p.txt")), ".yaml")
