"""
The exceptions of moeplan.

    MoeplanError
      +-- InputError      the input is wrong: one line `where: what must hold, got what; what to do`, exit status 2

Infeasible is not an exception: it is a result with its arithmetic.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class MoeplanError(Exception):
    """Base of all errors that moeplan raises on purpose."""


class InputError(MoeplanError):
    """
    Something that a person gave is wrong.

    where: file, line, key or option; must: what has to hold; got: what was found; advice: what to do.
    """

    def __init__(self, where: str, must: str, got: object, advice: str = "") -> None:
        self.where, self.must, self.got, self.advice = where, must, str(got), advice
        line = f"{where}: {must}, got {got}" + (f"; {advice}" if advice else "")
        super().__init__(" ".join(line.split()))


def nearest(word: str, known: Iterable[str]) -> str:
    """Advice that names the nearest known word, or all of them where none is near."""
    names = sorted(known)
    close = close_to(word, names)
    return f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"


def close_to(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest, None where none is near."""
    return next(iter(get_close_matches(word, sorted(known), n=1, cutoff=0.5)), None)
