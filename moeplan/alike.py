"""Sentences that differ only in numbers or quoted words, told once: 'the RAM cap is 128 MiB to 256 MiB'."""

import re
from collections.abc import Iterable, Sequence

_UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
# a number that is no part of a name, with its unit; or a quoted word
_NUMBER = r"(?<![\w.,'-])(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)"
_PART = re.compile(rf"{_NUMBER}(?: (?P<unit>{'|'.join(_UNITS)}))?(?![\w'-])|(?<!\w)'[^']*'(?!\w)")
QUOTED_SHOWN = 8  # words that are listed


def alike(texts: Iterable[str], *, sizes_alone: bool = False) -> dict[str, list[int]]:
    """
    What is left of the texts without their numbers and quoted words, to the places of those that share it.

    sizes_alone: only numbers with a unit are taken out, which no name holds.
    """

    def left(part: re.Match[str]) -> str:
        if sizes_alone and not part["unit"]:
            return part[0]
        return "'" if part["number"] is None else "0"

    found: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        found.setdefault(_PART.sub(left, text), []).append(place)
    return found


def merged(texts: Sequence[str]) -> str:
    """Texts of one kind as one: numbers that differ become 'least to most', quoted words a list."""
    columns = iter(zip(*(list(_PART.finditer(text)) for text in texts), strict=True))
    return _PART.sub(lambda _: _span(next(columns)), texts[0])


def _span(parts: Sequence[re.Match[str]]) -> str:
    shown = list(dict.fromkeys(part[0] for part in parts))
    if len(shown) == 1:
        return shown[0]
    if parts[0]["number"] is None:
        more = f" and {len(shown) - QUOTED_SHOWN} more" if len(shown) > QUOTED_SHOWN else ""
        return ", ".join(shown[:QUOTED_SHOWN]) + more
    ordered = sorted(parts, key=_value)
    return f"{ordered[0][0]} to {ordered[-1][0]}"


def _value(part: re.Match[str]) -> float:
    return float(part["number"].replace(",", "")) * _UNITS.get(part["unit"] or "", 1.0)
