"""
Quantities with units at the edges; inside the code everything is a plain SI number.

"3.5 GB/s", "16 GiB", "80 us", "1.2 TFLOP/s": GB is 10^9 bytes and GiB is 2^30 bytes, and the two never mix.
"""

import math
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from moeplan.errors import InputError

if TYPE_CHECKING:
    import pint

UNIT_PATTERN = re.compile(r"[A-Za-z]{1,12}(/[A-Za-z]{1,12})?")  # pint would also evaluate numbers and powers

Dimension = Literal["byte", "byte/second", "second", "flop/second", "watt", "byte/flop"]

BYTE_UNITS: tuple[tuple[float, str], ...] = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
RATE_UNITS: tuple[tuple[float, str], ...] = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s"))

EXAMPLES: dict[str, str] = {
    "byte": "'16 GiB' or '64 GB'",
    "byte/second": "'3.5 GB/s' or '200 MiB/s'",
    "second": "'80 us' or '1.5 ms'",
    "flop/second": "'1.2 TFLOP/s' or '35 GFLOP/s'",
    "watt": "'6.5 W' or '900 mW'",
}


@cache
def _registry() -> "pint.UnitRegistry":
    """Only the units of units.txt; pint's own hundreds (G is gauss, b is bit) would hide mistakes."""
    import pint

    registry: pint.UnitRegistry = pint.UnitRegistry(None, autoconvert_to_preferred=False)
    registry.load_definitions(Path(__file__).with_name("units.txt").read_text(encoding="utf-8").splitlines())
    return registry


def parse_quantity(text: object, dimension: Dimension, where: str, *, allow_zero: bool = False) -> float:
    """
    The value of a quantity in SI units (bytes, seconds, flop/s, watts).

    Raises InputError when it is no string, has no or another unit, is NaN, infinite, negative or (unless
    allow_zero) zero.
    """
    import pint

    must = f"must be a quantity like {EXAMPLES.get(dimension, dimension)}"
    if not isinstance(text, str) or not text.strip():
        raise InputError(where, must, repr(text), "write a number and a unit")
    number, unit = _split(text.strip().replace("µ", "u").replace("μ", "u"))  # the micro sign and the Greek mu
    try:
        value = float(number)
    except ValueError:
        raise InputError(where, must, repr(text), "write a number, a space and a unit") from None
    if not math.isfinite(value * 1e15) or value < 0 or (value == 0 and not allow_zero):
        bound = "of at least zero" if allow_zero else "above zero"
        raise InputError(where, f"must be a finite number {bound}", repr(text), must.replace("must be", "write"))
    if not UNIT_PATTERN.fullmatch(unit):
        raise InputError(where, must, repr(text), _unit_advice(unit))
    try:
        factor = float(_registry().Quantity(1.0, unit).to(dimension).magnitude)
    except pint.errors.PintError:
        raise InputError(where, must, repr(text), _unit_advice(unit)) from None
    return float(f"{value * factor:.15g}")  # 10 us are 1e-05 and not 9.999999999999999e-06


def _split(text: str) -> tuple[str, str]:
    """The number and the unit of "8 MiB" or "8MiB"."""
    cut = next((i for i, c in enumerate(text) if c == " " or (c.isalpha() and not _is_exponent(text, i))), len(text))
    return text[:cut], text[cut:].strip().replace(" / ", "/")


def _is_exponent(text: str, index: int) -> bool:
    """Whether the letter at index is the e of a number like 1e9."""
    return (
        text[index] in "eE" and index > 0 and text[index - 1].isdigit() and text[index + 1 :].lstrip("+-")[:1].isdigit()
    )


def _unit_advice(unit: str) -> str:
    unit = unit.strip()
    if unit in {"k", "M", "G", "T"}:
        return f"a bare {unit!r} is no unit: write {unit}B (10^n) or {unit}iB (2^n)"
    if "b" in unit and "B" not in unit and "byte" not in unit:
        return "bits are not accepted: write bytes, B, an eighth of it"
    if not unit:
        return "the unit is missing"
    return f"the unit {unit!r} does not fit here"


def format_bytes(n_bytes: float) -> str:
    """Binary units with three significant digits, as memory is counted: '1.90 MiB'."""
    return _scaled(n_bytes, BYTE_UNITS)


def format_rate(bytes_per_s: float) -> str:
    """Decimal units, as storage is sold: '419 MB/s'."""
    return _scaled(bytes_per_s, RATE_UNITS)


def format_bytes_up(n_bytes: float) -> str:
    """Four significant digits, rounded up, so that what is read and typed again is enough: '1.686 GiB'."""
    return _rounded_up(n_bytes, BYTE_UNITS)


def format_rate_up(bytes_per_s: float) -> str:
    """As format_rate where that is enough when typed again, else four significant digits, rounded up: '1.235 GB/s'."""
    text = format_rate(bytes_per_s)
    number, unit = text.split(" ")
    is_enough = float(number) * next(size for size, name in RATE_UNITS if name == unit) >= bytes_per_s * (1 - 1e-12)
    return text if is_enough else _rounded_up(bytes_per_s, RATE_UNITS)


def format_seconds(seconds: float) -> str:
    """'1.25 ms', '80.0 us', '2.31 s'."""
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))) if seconds > 0 else "0 s"


def format_params(n_params: float) -> str:
    """'4.03 B' (10^9) or '20.2 M' (10^6) parameters."""
    return _scaled(n_params, ((1e9, "B"), (1e6, "M")))


def format_signed(value: float, decimals: int = 0) -> str:
    """'-12', '+3', '0': a difference, never '-0'."""
    text = f"{value:+.{decimals}f}"
    return text if float(text) else text[1:]


def format_signed_percent(fraction: float) -> str:
    """'+3.1 %': a relative error."""
    return f"{format_signed(100 * fraction, 1)} %"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """
    In the largest unit in which the value is at least 1 after rounding: '1.00 GiB', never '1024 MiB'.

    units: largest first; the smallest one is counted whole, unless it is the only one left for smaller values.
    """
    for (size, unit), (smaller, _) in pairwise(units):
        if round(value / smaller) >= round(size / smaller):
            return f"{value / size:.{_decimals(value / size)}f} {unit}"
    size, unit = units[-1]
    return f"{value / size:.{0 if size in (1, 1e-9) else _decimals(value / size)}f} {unit}"


def _rounded_up(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """Four significant digits in the largest unit in which that is at least 1; the smallest unit is counted whole."""
    for size, unit in units[:-1]:
        scaled = _ceil(value / size)
        if scaled >= 1:
            return f"{scaled:.{_decimals_of_four(scaled)}f} {unit}"
    return f"{math.ceil(value)} {units[-1][1]}"


def _ceil(value: float) -> float:
    scale = 10 ** _decimals_of_four(value)
    return math.ceil(value * scale - 1e-9) / scale


def _decimals_of_four(value: float) -> int:
    """Decimals for four significant digits; three below 1."""
    return max(0, 3 - math.floor(math.log10(value))) if value >= 1 else 3


def _decimals(value: float) -> int:
    """Decimals for three significant digits of a value that rounds to at least 1."""
    return 2 if value < 9.995 else 1 if value < 99.95 else 0
