"""Tables of text for the pages of a validation, and how their figures are written."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moeplan.quantity import format_signed_percent
from simulator.validation.result import FEWEST_FOR_A_PERCENTILE

NOTHING = "–"


@dataclass(frozen=True)
class TextTable:
    """A title, columns and rows of text; left: how many columns from the left hold words and not numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1
    note: str = ""
    words: frozenset[str] = field(default_factory=frozenset)  # columns further right that hold words too

    def is_word(self, index: int) -> bool:
        """Whether a column is aligned left."""
        return index < self.left or self.columns[index] in self.words


def percent(fraction: float | None) -> str:
    """'+3.1 %'."""
    return NOTHING if fraction is None else format_signed_percent(fraction)


def plain_percent(fraction: float | None) -> str:
    """'3.1 %'."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f} %"


def high_percent(fraction: float | None, n: int) -> str:
    """'14.6 %', of fewer than 10 cells 'max 14.6 %'."""
    is_largest = fraction is not None and n < FEWEST_FOR_A_PERCENTILE
    return f"{'max ' if is_largest else ''}{plain_percent(fraction)}"


def two_errors(errors: tuple[float, float] | None, n: int) -> str:
    """'4.7 / 14.6 %': median, and 90th percentile or largest."""
    return NOTHING if errors is None else f"{plain_percent(errors[0])} / {high_percent(errors[1], n)}"
