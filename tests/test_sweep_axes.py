"""What a sweep is: lists, ranges and `own` on the command line and in YAML; chunks hold every scenario once."""

import re
from pathlib import Path

import pytest

from moeplan.errors import InputError
from simulator.sweeps.axes import AXES, AXIS_NAMES, parse_axis
from simulator.sweeps.definition import SweepDefinition, define
from simulator.sweeps.scenarios import CAPS_PER_CHUNK, OUTER, ROWS_PER_CHUNK, chunks

BY_NAME = {axis.name: axis for axis in AXES}
GIB = 2**30


def parsed(name: str, text: str) -> tuple[object, ...]:
    """The values of an axis."""
    return parse_axis(BY_NAME[name], text, BY_NAME[name].option)


def test_lists_ranges_and_own() -> None:
    """Values are SI; a range is even in the logarithm, its ends exact; own is None."""
    assert parsed("ram_cap", "1GiB, 512 MiB,own") == (GIB, GIB // 2, None)
    assert parsed("storage_read", "0.5GB/s..8GB/s:5") == (5e8, 1e9, 2e9, 4e9, 8e9)
    assert parsed("ram_cap", "1GiB..4GiB:3") == (GIB, 2 * GIB, 4 * GIB)
    assert parsed("context", "own,128,2048") == (None, 128, 2048)
    assert parsed("storage_latency", "50us") == (5e-5,)
    assert parsed("trace", "a..b:3.parquet") == ("a..b:3.parquet",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ram_cap", "1G"), ("ram_cap", "1GiB,,2GiB"), ("ram_cap", ""), ("ram_cap", "4GiB..1GiB:3"),
        ("ram_cap", "1GiB..2GiB:1"), ("ram_cap", "1GiB..2GiB:99999"), ("ram_cap", "1GiB,1024MiB"),
        ("ram_cap", "own,own"), ("context", "1.5"), ("context", "-1"), ("threads", "four"), ("cache", ","),
        ("storage_read", "2GB"),
    ],
)  # fmt: skip
def test_a_bad_list_is_refused_with_its_option(name: str, text: str) -> None:
    """One line that names the option."""
    with pytest.raises(InputError, match=BY_NAME[name].option):
        parsed(name, text)


def sweep_of(**axes: tuple[object, ...]) -> SweepDefinition:
    """A definition with a model, a device and these axes."""
    return SweepDefinition({"model": ("m",), "hardware": ("h",), **axes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"ram_cap": tuple(range(1, 24)), "storage_read": (1e9, 2e9, 3e9), "cache": ("lru", "lru-per-layer")},
        {"storage_read": tuple(float(i) for i in range(1, 5001)), "ram_cap": (1, 2, 3), "hardware": ("a", "b")},
        {"context": (None, 1, 2), "trace": ("s", "t"), "top_k": (2, 4), "threads": (1, 2), "prefetch": ("none", None)},
    ],
)
def test_chunks_hold_every_scenario_once(axes: dict[str, tuple[object, ...]]) -> None:
    """Row numbers of all chunks together are 0 to n - 1, in the order of the axes; no chunk is too long."""
    definition = sweep_of(**axes)
    found = {}
    for chunk in chunks(definition):
        cells = list(chunk.cells(definition))
        assert len(cells) == chunk.n_rows <= ROWS_PER_CHUNK
        assert len(chunk.axes["ram_cap"]) <= CAPS_PER_CHUNK
        assert len({tuple(cell[name] for name in OUTER) for _, cell in cells}) == 1
        assert not found.keys() & dict(cells).keys()
        found |= dict(cells)
    assert sorted(found) == list(range(definition.n_scenarios))
    places = [
        [definition.axes[name].index(found[row][name]) for name in AXIS_NAMES] for row in range(definition.n_scenarios)
    ]
    assert places == sorted(places)


def test_a_yaml_says_the_same_as_options(tmp_path: Path) -> None:
    """Every axis and setting has its key; an option goes before the file."""
    file = tmp_path / "sweep.yaml"
    file.write_text(
        'schema_version: 1\nmodel: m\nhardware: [h, g]\nram_cap: ["1GiB..4GiB:3", own]\ncontext: [own, 128]\n'
        "storage_read: 2GB/s\nstart: cold\nseed: 7\nadapt_trace: true\n"
    )
    axes = {"hardware": ("h", "g"), "ram_cap": (GIB, 2 * GIB, 4 * GIB, None), "context": (None, 128)}
    wanted = SweepDefinition({"model": ("m",), **axes, "storage_read": (2e9,)}, "cold", True, seed=7)
    assert define(file, {}, {}) == wanted
    changed = define(file, {"ram_cap": (GIB,)}, {"seed": 8})
    assert changed.axes["ram_cap"] == (GIB,)
    assert (changed.seed, changed.start) == (8, "cold")
    assert SweepDefinition.from_json(wanted.as_json()) == wanted


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("ram_caps: 1GiB", "ram_cap"), ("ram_cap: 1", ":2: ram_cap"), ("ram_cap: []", ":2: ram_cap"),
        ("start: hot", "--start"), ("seed: -1", "seed"), ("seed: yes", "seed"), ("adapt_trace: 1", "adapt_trace"),
        ("cache: lruu", "lru"), ("layout: mmap", "simulate knows mmap"), ("quantisation: q4", "--quantisation"),
        ("prefetch: all", "--prefetch"), ("n_samples: 1000000", "n_samples"),
        ("ram_cap: 1GiB..8GiB:5000\nstorage_read: 1GB/s..2GB/s:5000", "scenarios"),
    ],
)  # fmt: skip
def test_a_bad_yaml_is_refused(tmp_path: Path, line: str, word: str) -> None:
    """A slip of the pen stops the sweep before it begins."""
    file = tmp_path / "sweep.yaml"
    file.write_text(f"schema_version: 1\n{line}\nmodel: m\nhardware: h\n")
    with pytest.raises(InputError, match=word):
        define(file, {}, {})


def test_a_value_given_twice_is_told_as_it_was_typed() -> None:
    """No number of bytes that nobody typed."""
    for text, got in (
        ("1GiB, 1GiB", "got 1GiB twice"),
        ("1GiB,1024MiB", "got 1GiB and 1024MiB, which have a value in common"),
        ("own,own", "got own twice"),
        ("1GiB..4GiB:3,2GiB", "got 1GiB..4GiB:3 and 2GiB, which have"),
    ):
        with pytest.raises(InputError, match=re.escape(got)):
            parsed("ram_cap", text)
