"""Progress on standard error; silent when that is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moeplan.progress import OnProgress, ignore_progress

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


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
def resumed_bar(title: str) -> Iterator[OnProgress]:
    """Yields a function to call as OnProgress says; the units of its first call were done before and tell no speed."""
    with _progress() as progress:
        if progress is None:
            yield ignore_progress
            return
        tasks: list[TaskID] = []

        def on_done(done: int, total: int) -> None:
            if not tasks:
                tasks.append(progress.add_task(title, total=total, completed=done))
            progress.update(tasks[0], completed=done)

        yield on_done


@contextmanager
def step_bar(title: str) -> Iterator[OnProgress]:
    """Yields a function to call as OnProgress says; until then the bar only says that it runs."""
    with _progress() as progress:
        if progress is None:
            yield ignore_progress
            return
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def _progress() -> "Iterator[Progress | None]":
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*_columns(), console=Console(stderr=True), transient=True) as progress:
        yield progress


def _columns() -> "list[str | ProgressColumn]":
    """Title, bar, units done of all and time left; the last two are empty while it is not known how many there are."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class WhereKnown(ProgressColumn):
        def __init__(self, column: ProgressColumn) -> None:
            super().__init__()
            self.column = column

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else Text.assemble(self.column.render(task))  # type: ignore[arg-type]

    counted = (WhereKnown(MofNCompleteColumn()), WhereKnown(TimeRemainingColumn()))
    return [TextColumn("{task.description}"), BarColumn(), *counted]
