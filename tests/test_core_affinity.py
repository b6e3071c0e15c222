"""Computing threads that stay on cores of their own, and the threads that do not."""

import os
import threading

import pytest

from reference_runtime import core_affinity
from reference_runtime.conditions import usable_cores
from reference_runtime.core_affinity import all_cores, bound_threads, free_this_thread, noting_workers

needs_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core, or no way to tell"
)


class Waiting:
    """A thread that waits until the end of the test, and tells the cores it may use."""

    def __init__(self) -> None:
        self._asked, self._told, self.cores = threading.Event(), threading.Event(), set[int]()
        self._is_over = False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while self._asked.wait() and not self._is_over:
            self._asked.clear()
            self.cores = os.sched_getaffinity(0)
            self._told.set()

    def ask(self) -> set[int]:
        """The cores that it may use now."""
        self._told.clear()
        self._asked.set()
        assert self._told.wait(5)
        return self.cores

    def end(self) -> None:
        """Join it."""
        self._is_over = True
        self._asked.set()
        self.thread.join(5)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Waiting]:
    """As many noted threads as there are cores beside the caller's."""
    monkeypatch.setattr(core_affinity, "_workers", [])
    with noting_workers():
        made = [Waiting() for _ in range(len(all_cores()) - 1)]
    yield made  # type: ignore[misc]
    for worker in made:
        worker.end()


@needs_cores
def test_each_computing_thread_has_a_core_and_gets_all_back(workers: list[Waiting]) -> None:
    """Within: disjoint single cores, and usable_cores still counts all; afterwards: as before."""
    cores = os.sched_getaffinity(0)
    with bound_threads(len(cores)) as is_bound:
        assert is_bound
        own = [os.sched_getaffinity(0), *(worker.ask() for worker in workers)]
        assert all(len(one) == 1 for one in own)
        assert set.union(*own) == cores
        assert usable_cores() == len(cores)
        with bound_threads(len(cores)) as twice:
            assert not twice
    assert [os.sched_getaffinity(0), *(worker.ask() for worker in workers)] == [cores] * len(cores)


@needs_cores
def test_a_thread_that_reads_runs_anywhere(workers: list[Waiting]) -> None:
    """It would inherit the one core of the thread that starts it."""
    found: list[set[int]] = []

    def read() -> None:
        found.append(os.sched_getaffinity(0))
        free_this_thread()
        found.append(os.sched_getaffinity(0))

    cores = os.sched_getaffinity(0)
    with bound_threads(len(cores)):
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()
    assert [len(one) for one in found] == [1, len(cores)]


@needs_cores
@pytest.mark.parametrize("n_threads", [1, 1000])
def test_fewer_threads_than_cores_are_left_to_the_system(workers: list[Waiting], n_threads: int) -> None:
    """It knows better which cores are free; more threads than cores could not each have one."""
    cores = os.sched_getaffinity(0)
    with bound_threads(n_threads) as is_bound:
        assert not is_bound
        assert os.sched_getaffinity(0) == cores


@needs_cores
def test_nothing_is_bound_where_no_computing_thread_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller alone on one core would share it with whichever thread computes."""
    monkeypatch.setattr(core_affinity, "_workers", [])
    with bound_threads(len(os.sched_getaffinity(0))) as is_bound:
        assert not is_bound
