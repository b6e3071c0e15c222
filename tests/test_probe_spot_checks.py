"""Spot checks and the processes that take them: alike from take to take, gone when they are closed."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moeplan.errors import InputError
from reference_runtime.probe.spot_checks import SpotChecks
from reference_runtime.probe.worker import Worker

MIB = 2**20


class Counter:
    """Something that a worker holds."""

    def __init__(self) -> None:
        self.n = 0

    def add(self, n: int) -> tuple[int, int]:
        """The sum so far, and the process that has it."""
        self.n += n
        return self.n, os.getpid()

    def refuse(self) -> None:
        """An answer that is none."""
        raise InputError("here", "must be more", 1, "add some")

    def die(self) -> None:
        """As a process does that the system ends."""
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def make_counter(refused: bool = False) -> Iterator[Counter]:
    """What a worker makes."""
    if refused:
        raise InputError("memory", "must have 1 GiB free", "1 MiB")
    yield Counter()


def test_a_worker_keeps_its_object_and_says_its_errors() -> None:
    """In a process of its own; an InputError keeps its parts and ends nothing; a process that dies is one line."""
    with Worker(make_counter) as worker:
        assert worker.call("add", 2)[0] == 2
        with pytest.raises(InputError) as error:
            worker.call("refuse")
        assert (error.value.where, error.value.advice) == ("here", "add some")
        total, process = worker.call("add", 3)
        assert total == 5
        assert process != os.getpid()
        with pytest.raises(InputError, match="exit status -9"):
            worker.call("die")
    assert not multiprocessing.active_children()


def test_what_cannot_be_made_is_said_at_the_first_call() -> None:
    """As the InputError that it was."""
    with Worker(make_counter, True) as worker, pytest.raises(InputError, match="must have 1 GiB free"):
        worker.call("add", 1)
    assert not multiprocessing.active_children()


def test_takes_have_every_check_and_leave_nothing(tmp_path: Path) -> None:
    """Names and seconds above zero on each number of threads; no file, no process."""
    with SpotChecks(None, tmp_path, [1], arena_bytes=16 * MIB) as checks:
        assert list(tmp_path.iterdir()) == []
        takes = [checks.take() for _ in range(2)]
    names = {"small_token_t1", "large_token_t1", "burst_64KiB", "burst_2MiB"}
    assert all(set(take) == names for take in takes)
    assert all(0 < seconds < 5 for take in takes for seconds in take.values())
    assert list(tmp_path.iterdir()) == []
    assert not multiprocessing.active_children()


def test_a_file_that_is_there_is_read_and_kept(tmp_path: Path) -> None:
    """One with too little in it is refused in one line."""
    path = tmp_path / "experts.bundle"
    path.write_bytes(bytes(MIB))
    too_short = pytest.raises(InputError, match=r"experts\.bundle: must have 2\.00 MiB to be read")
    with SpotChecks(path, tmp_path, [1], arena_bytes=16 * MIB) as checks, too_short:
        checks.take()
    assert path.stat().st_size == MIB
