"""Who watches long work."""

from collections.abc import Callable

OnProgress = Callable[[int, int], None]  # (units done, units in all), called now and then


def ignore_progress(n_done: int, n_total: int) -> None:
    """The OnProgress of a caller who does not watch."""
