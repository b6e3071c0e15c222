"""Text on a terminal: bounded width, no mark-up, and nothing in it that a terminal would obey."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_WIDTH = 100


def plain(text: str) -> str:
    """The text without anything that a terminal would obey: control characters become '?'."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def text_width(console: Console) -> int:
    """Columns to print in."""
    return min(console.width, MAX_WIDTH)


def print_lines(console: Console, *texts: str, style: str = "") -> None:
    """Each text that is not empty, on lines of its own."""
    for text in texts:
        if text:
            print_things(console, Text(plain(text), style=style))


def print_things(console: Console, *things: Text | Table) -> None:
    """Texts and tables as they are."""
    console.print(*things, sep="\n", width=text_width(console), highlight=False, markup=False, emoji=False)
