"""Quantities: a number and a unit, decimal and binary prefixes apart, and nothing else."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import InputError
from moeplan.quantity import (
    Dimension,
    format_bytes,
    format_bytes_up,
    format_params,
    format_rate,
    format_rate_up,
    format_seconds,
    format_signed,
    parse_quantity,
)

GOOD: list[tuple[str, Dimension, float]] = [
    ("3.5 GB/s", "byte/second", 3.5e9),
    ("200 MiB/s", "byte/second", 200 * 2**20),
    ("16 GiB", "byte", 16 * 2**30),
    ("64 GB", "byte", 64e9),
    ("8MiB", "byte", 8 * 2**20),
    ("1e9 B/s", "byte/second", 1e9),
    ("1e9B/s", "byte/second", 1e9),
    ("1.5e-3 s", "second", 1.5e-3),
    ("2E3MB", "byte", 2e9),
    ("80 us", "second", 80e-6),
    ("80 µs", "second", 80e-6),
    ("10us", "second", 1e-5),
    ("1.2 TFLOP/s", "flop/second", 1.2e12),
    ("35 GFLOP/s", "flop/second", 35e9),
    ("900 mW", "watt", 0.9),
    ("  4 KiB ", "byte", 4096),
    ("3 GB / s", "byte/second", 3e9),
    ("1 TiB", "byte", 2**40),
]


@pytest.mark.parametrize(("text", "dimension", "value"), GOOD)
def test_a_quantity_becomes_its_si_value(text: str, dimension: Dimension, value: float) -> None:
    """GB is 10^9 and GiB 2^30 bytes, and the result is the double nearest to the written number."""
    assert parse_quantity(text, dimension, "here") == value


BAD: list[tuple[object, Dimension, str]] = [
    ("3 GB", "byte/second", "the unit 'GB' does not fit here"),
    ("3 GB/s", "byte", "does not fit here"),
    ("3 parsec", "byte", "does not fit here"),
    ("100 Mb/s", "byte/second", "bits are not accepted"),
    ("48G", "byte", "a bare 'G' is no unit: write GB (10^n) or GiB (2^n)"),
    ("48 k", "byte", "a bare 'k' is no unit"),
    ("48", "byte", "the unit is missing"),
    ("GB", "byte", "write a number, a space and a unit"),
    ("", "byte", "write a number and a unit"),
    (48, "byte", "write a number and a unit"),
    (True, "byte", "write a number and a unit"),
    (None, "byte", "write a number and a unit"),
    (float("nan"), "byte", "write a number and a unit"),
    ("nan GB", "byte", "must be a quantity like '16 GiB' or '64 GB'"),
    ("inf GB", "byte", "must be a quantity"),
    ("1e400 B", "byte", "must be a finite number above zero"),
    ("1e305 GB", "byte", "must be a finite number above zero"),
    ("-3 GB/s", "byte/second", "must be a finite number above zero"),
    ("0 GB", "byte", "must be a finite number above zero"),
    ("3 GB/s GB", "byte/second", "does not fit here"),
    ("3 2**9999999999 B", "byte", "does not fit here"),
    ("3 B**1", "byte", "does not fit here"),
    ("3 kiB", "byte", "does not fit here"),
    ("1,5 GB", "byte", "write a number"),
]


@pytest.mark.parametrize(("text", "dimension", "words"), BAD)
def test_anything_else_is_refused_in_one_line(text: object, dimension: Dimension, words: str) -> None:
    """The line starts with where it stands, quotes what was found and says what to do."""
    with pytest.raises(InputError) as caught:
        parse_quantity(text, dimension, "file.yaml:3")
    message = str(caught.value)
    assert message.startswith("file.yaml:3: must be ")
    assert words in message
    assert repr(text) in message
    assert "\n" not in message


def test_zero_is_a_value_only_where_it_is_allowed() -> None:
    """A latency may be zero, a rate may not; a negative latency may not either."""
    assert parse_quantity("0 us", "second", "here", allow_zero=True) == 0
    with pytest.raises(InputError, match="of at least zero"):
        parse_quantity("-1 us", "second", "here", allow_zero=True)


@given(st.text(max_size=12))
def test_no_text_crashes_the_parser(text: str) -> None:
    """Any text is a quantity or an InputError."""
    with contextlib.suppress(InputError):
        assert parse_quantity(text, "byte", "here") > 0


@given(st.floats(1e-6, 1e6), st.sampled_from([("B", 1.0), ("kB", 1e3), ("MiB", 2.0**20), ("TB", 1e12)]))
def test_written_and_read_again_is_the_same(number: float, unit: tuple[str, float]) -> None:
    """The value is number x factor to 15 digits."""
    assert parse_quantity(f"{number!r} {unit[0]}", "byte", "here") == pytest.approx(number * unit[1], rel=1e-14)


def test_formatting_has_three_digits_and_the_customary_prefix() -> None:
    """Memory in binary units, rates in decimal ones, times down to ns, parameters in millions and billions."""
    assert [format_bytes(n) for n in (0, 18, 1990656, 2.25 * 2**30)] == ["0 B", "18 B", "1.90 MiB", "2.25 GiB"]
    assert [format_rate(r) for r in (5, 57.3e6, 419e6, 7e9)] == ["5 B/s", "57.3 MB/s", "419 MB/s", "7.00 GB/s"]
    assert [format_seconds(t) for t in (0, 5e-9, 80e-6, 1.25e-3, 2.31)] == [
        "0 s", "5 ns", "80.0 us", "1.25 ms", "2.31 s",
    ]  # fmt: skip
    assert [format_params(n) for n in (20.2e6, 4.03e9)] == ["20.2 M", "4.03 B"]


def test_rounding_never_leaves_a_thousand_of_the_smaller_unit() -> None:
    """What rounds to the next unit is written in it, and 9.996 has three digits, not four."""
    assert [format_bytes(n) for n in (2**30 - 1, 2**20 - 1, 1023.4 * 2**20, 9.996 * 2**30)] == [
        "1.00 GiB", "1.00 MiB", "1023 MiB", "10.0 GiB",
    ]  # fmt: skip
    assert [format_rate(r) for r in (999.6e6, 999.4e6, 99.96e6)] == ["1.00 GB/s", "999 MB/s", "100 MB/s"]
    assert [format_seconds(t) for t in (0.9996, 0.9994, 999.6e-9)] == ["1.00 s", "999 ms", "1.00 us"]
    assert [format_params(n) for n in (999.6e6, 999.4e6, 9.996e9)] == ["1.00 B", "999 M", "10.0 B"]


def test_a_difference_has_its_sign_unless_it_is_nothing() -> None:
    """Never -0 or +0."""
    assert [format_signed(x) for x in (-12.4, 3.0, -0.4, 0.4, 0.0)] == ["-12", "+3", "0", "0", "0"]
    assert [format_signed(x, 1) for x in (-0.04, -0.06)] == ["0.0", "-0.1"]


def test_least_sizes_are_rounded_up() -> None:
    """What is read is never less than what is needed."""
    sizes = {
        1_809_845_760: "1.686 GiB", 2**30: "1.000 GiB", 2**30 + 1: "1.001 GiB", 300 * 2**20: "300.0 MiB",
        151_840: "148.3 KiB", 12: "12 B", 2**30 - 1: "1.000 GiB", 9.9999 * 2**30: "10.00 GiB",
    }  # fmt: skip
    assert [format_bytes_up(size) for size in sizes] == list(sizes.values())
    rates = {419e6: "419 MB/s", 628.5e6: "628.5 MB/s", 1.2344e9: "1.235 GB/s", 1.236e9: "1.24 GB/s", 2.5: "3 B/s"}
    assert [format_rate_up(rate) for rate in rates] == list(rates.values())


@given(st.floats(1.0, 1e13))
def test_what_is_rounded_up_is_enough_when_parsed_again(value: float) -> None:
    """And not more than a thousandth too much, from a thousand on."""
    for text, dimension in ((format_bytes_up(value), "byte"), (format_rate_up(value), "byte/second")):
        parsed = parse_quantity(text, dimension, "a size")
        assert parsed >= value * (1 - 1e-12)
        assert parsed <= value * 1.01 or value < 1000
