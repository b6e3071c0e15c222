"""Progress on standard error; silent when that is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[object], None]]:
    """Yields a function to call once for every unit of work that is done."""
    with _progress() as progress:
        if progress is None:
            yield lambda _: None
            return
        task = progress.add_task(title, total=total)
        yield lambda _: progress.advance(task)


@contextmanager
def resumed_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the units done; those of its first call were done before and tell no speed."""
    with _progress() as progress:
        if progress is None:
            yield lambda done: None
            return
        tasks: list[TaskID] = []

        def on_done(done: int) -> None:
            if not tasks:
                tasks.append(progress.add_task(title, total=total, completed=done))
            progress.update(tasks[0], completed=done)

        yield on_done


@contextmanager
def step_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with (units done, units in all)."""
    with _progress() as progress:
        if progress is None:
            yield lambda done, total: None
            return
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def _progress() -> "Iterator[Progress | None]":
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress
