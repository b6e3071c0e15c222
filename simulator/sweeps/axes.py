"""
The axes of a sweep and how their values are written: lists with commas, ranges, and `own`.

    1GiB,2GiB,own            three values; `own` is what the device, the model or the trace has itself
    0.5GB/s..8GB/s:20        20 values from end to end, evenly spaced in the logarithm
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moeplan.errors import InputError
from moeplan.quantity import Dimension, parse_quantity

Value = str | int | float | None
OWN = "own"
MAX_VALUES = 10_000  # of one axis: more is a mistake in a range
RANGE = re.compile(r"(?P<first>.+?)\.\.(?P<last>.+?):(?P<count>\d{1,6})")


@dataclass(frozen=True)
class Axis:
    """One input that a sweep varies. kind: text, a count, or a quantity of a dimension; has_own: may be left out."""

    name: str
    option: str
    kind: Literal["text", "count"] | Dimension
    has_own: bool = True


# In the order of the rows: the last one varies fastest.
AXES = (
    Axis("model", "--model", "text", has_own=False),
    Axis("hardware", "--hardware", "text", has_own=False),
    Axis("trace", "--trace", "text"),
    Axis("quantisation", "--quantisation", "text"),
    Axis("top_k", "--top-k", "count"),
    Axis("layout", "--layout", "text", has_own=False),
    Axis("context", "--context", "count"),
    Axis("ram_cap", "--ram-cap", "byte"),
    Axis("cache", "--cache", "text", has_own=False),
    Axis("prefetch", "--prefetch", "text"),
    Axis("threads", "--threads", "count"),
    Axis("ram_bandwidth", "--ram-bandwidth", "byte/second"),
    Axis("flops", "--flops", "flop/second"),
    Axis("storage_latency", "--storage-latency", "second"),
    Axis("storage_read", "--storage-read", "byte/second"),
)
AXIS_NAMES = tuple(axis.name for axis in AXES)
DEFAULTS: dict[str, Value] = {"layout": "bundle", "cache": "lru"}  # the other axes: own


def parse_axis(axis: Axis, text: str, where: str) -> tuple[Value, ...]:
    """The values of a list with commas. Raises InputError."""
    return parse_items(axis, text.split(","), where)


def parse_items(axis: Axis, items: Sequence[object], where: str) -> tuple[Value, ...]:
    """The values of single items, each a value, a range or `own`. Raises InputError, also for a value given twice."""
    values: list[Value] = []
    texts: list[str] = []  # as they were typed
    for item in items:
        found = _item(axis, item, where)
        values += found
        texts += [str(item).strip()] * len(found)
    if not values:
        raise InputError(where, "must have a value", "none", "leave it out for the default")
    if len(values) > MAX_VALUES:
        raise InputError(where, f"must have at most {MAX_VALUES} values", len(values))
    if len(set(values)) < len(values):
        again = next(index for index, value in enumerate(values) if value in values[:index])
        one, other = texts[values.index(values[again])], texts[again]
        got = f"{one} twice" if one == other else f"{one} and {other}, which have a value in common"
        raise InputError(where, "must have every value once", got)
    return tuple(values)


def _item(axis: Axis, item: object, where: str) -> list[Value]:
    if isinstance(item, int) and not isinstance(item, bool) and axis.kind == "count":
        item = str(item)
    if not isinstance(item, str) or not item.strip():
        raise InputError(where, "must be values separated by commas", repr(item))
    text = item.strip()
    if text == OWN and axis.has_own:
        return [None]
    found = RANGE.fullmatch(text) if axis.kind != "text" else None
    if found is None and ".." in text and axis.kind != "text":
        raise InputError(where, "must be a range FIRST..LAST:COUNT", repr(text), "say how many values, e.g. :20")
    if found is None:
        return [_value(axis, text, where)]
    first, last = (_number(axis, found[end], where) for end in ("first", "last"))
    return _range(axis, first, last, int(found["count"]), where)


def _range(axis: Axis, first: float, last: float, count: int, where: str) -> list[Value]:
    if not 2 <= count <= MAX_VALUES:
        raise InputError(where, f"must be a range FIRST..LAST:COUNT with COUNT 2 to {MAX_VALUES}", count)
    if not 0 < first < last:
        got = "a LAST below FIRST" if last < first else "FIRST and LAST the same" if first == last else "zero"
        raise InputError(where, "must be a range FIRST..LAST:COUNT that rises from above zero", got)
    steps = [first * (last / first) ** (index / (count - 1)) for index in range(count)]
    steps[-1] = last  # rounding must not move the end
    if axis.kind in ("count", "byte"):
        return list(dict.fromkeys(round(step) for step in steps))
    return [float(f"{step:.12g}") for step in steps]


def _value(axis: Axis, text: str, where: str) -> Value:
    if axis.kind == "text":
        return text
    number = _number(axis, text, where)
    return round(number) if axis.kind in ("count", "byte") else number


def _number(axis: Axis, text: str, where: str) -> float:
    if axis.kind == "count":
        if not re.fullmatch(r"\d{1,9}", text.strip()):
            raise InputError(where, "must be a whole number", repr(text))
        return int(text)
    assert axis.kind != "text"
    return parse_quantity(text, axis.kind, where)


def n_combinations(axes: dict[str, tuple[Value, ...]]) -> int:
    """Scenarios of the full product."""
    return math.prod(len(values) for values in axes.values())
