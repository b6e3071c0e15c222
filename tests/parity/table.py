"""The rows of the result, and how two sets of logits are compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXACT = 1e-5  # relative error that the order of float32 sums explains


@dataclass(frozen=True)
class Row:
    """One comparison; the figure's limits go from `at_least` to `at_most`, None: nothing to hold."""

    case: str
    against: str
    n: int
    figure: float  # relative RMS error, or a share where `is_share`
    at_most: float | None = EXACT
    at_least: float | None = None
    largest: float | None = None  # absolute difference of a logit
    top_1_frac: float | None = None
    same_experts_frac: float | None = None
    least_same_experts_frac: float = 0
    is_share: bool = False

    @property
    def passes(self) -> bool:
        """Whether figure and experts are within their limits; a NaN never is."""
        low = -np.inf if self.at_least is None else self.at_least
        high = np.inf if self.at_most is None else self.at_most
        same_experts = 1 if self.same_experts_frac is None else self.same_experts_frac
        return bool(low <= self.figure <= high and same_experts >= self.least_same_experts_frac)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of the difference by that of the expected, over all logits of all positions, in float64."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def compare(
    case: str,
    against: str,
    found: np.ndarray,
    expected: np.ndarray,
    at_most: float | None = EXACT,
    at_least: float | None = None,
    experts: tuple[np.ndarray, np.ndarray] | None = None,
    least_same_experts_frac: float = 1,
) -> Row:
    """Our logits against another engine's, both (n, vocab); experts: our choices and theirs, (n, n_layers, k)."""
    return Row(
        case,
        against,
        len(found),
        relative_error(found, expected),
        at_most,
        at_least,
        largest=float(np.abs(found - expected).max()),
        top_1_frac=float(np.mean(found.argmax(axis=-1) == expected.argmax(axis=-1))),
        same_experts_frac=None if experts is None else same_experts_frac(*experts),
        least_same_experts_frac=0 if experts is None else least_same_experts_frac,
    )


def same_experts_frac(found: np.ndarray, expected: np.ndarray) -> float:
    """In how many layers of how many tokens the k experts are the same, in any order; (n, n_layers, k) each."""
    return float(np.mean((np.sort(found) == np.sort(expected)).all(axis=-1)))


def share(case: str, against: str, equal: np.ndarray | Sequence[bool], at_least: float | None = 1.0) -> Row:
    """How many of several things are the same."""
    return Row(case, against, len(equal), float(np.mean(equal)), None, at_least, is_share=True)


HEAD = "| case | against | n | error | largest | top-1 | experts | limit | |\n|---|---|" + "---:|" * 6 + "---|"


def as_line(row: Row) -> str:
    """A row as a line of Markdown under HEAD."""
    figure = f"{row.figure:.1%} equal" if row.is_share else f"{row.figure:.1e}"
    cells = [
        row.case,
        row.against,
        f"{row.n:,}",
        figure,
        "" if row.largest is None else f"{row.largest:.1e}",
        "" if row.top_1_frac is None else f"{row.top_1_frac:.1%}",
        "" if row.same_experts_frac is None else f"{row.same_experts_frac:.1%}",
        _limit(row),
        "PASS" if row.passes else "FAIL",
    ]
    return "| " + " | ".join(cells) + " |"


def _limit(row: Row) -> str:
    limits = [
        "" if limit is None else f"{sign} {limit:.0%}" if row.is_share else f"{sign} {limit:.0e}"
        for sign, limit in (("≥", row.at_least), ("≤", row.at_most))
    ]
    return ", ".join(filter(None, limits)) or "reported"
