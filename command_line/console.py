"""The console that answers are printed on."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 100  # columns when the output is no terminal


def answer_console() -> "Console":
    """Standard output: as wide as the terminal, PIPE_WIDTH columns in a pipe or a file."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0)  # the reader, such as head, has what it wanted; rich and click would say 1

    return PipedConsole(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
