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
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
