"""A profile as YAML, in the style of the shipped ones: quantities with units, rows on one line, texts folded."""

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

WIDTH = 116
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./+ -]*")  # texts that need no quotes
NO_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def profile_yaml(profile: dict[str, Any], comment: str) -> str:
    """The text of a profile; comment: its first line."""
    return "\n".join([f"# {comment}", *_lines(profile, ""), ""])


def _lines(mapping: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{key}:"
            yield from (f"{indent}  - {_flow(row)}" for row in value)
        else:
            yield from _folded(f"{indent}{key}: ", _scalar(value), indent + "  ")


def _flow(row: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in row.items()) + "}"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):  # YAML 1.1 takes 1e-07 for a text
        number = repr(float(value))
        return number if "e" not in number else f"{value:.12f}".rstrip("0")
    text = str(value)
    is_plain = PLAIN.fullmatch(text) and text.lower() not in NO_TEXT and not _is_number(text) and text == text.strip()
    return text if is_plain else json.dumps(text)


def _is_number(text: str) -> bool:
    """Whether YAML could read something else than text: numbers, dates, times."""
    return re.fullmatch(r"[-+0-9._:TZ ]*|[-+0-9.]+[eE][-+0-9]+|0[xo][0-9a-fA-F]+", text) is not None


def _folded(start: str, text: str, indent: str) -> Iterator[str]:
    """A quoted text over several lines: YAML reads a line break in it as one space."""
    if len(start) + len(text) <= WIDTH or not text.startswith('"'):
        yield start + text
        return
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
