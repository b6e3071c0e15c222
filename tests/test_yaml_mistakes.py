"""A file edited by hand with a mistake in any one of its keys: one line, that key as it stands there, plain words."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from hardware_profiles.catalog import profile_path
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from moeplan.strict_yaml import KeyPath, load_mapping, validate
from simulator.inverse.prices import Prices
from simulator.model.catalog import model_path
from simulator.model.spec import ModelSpec

# what a person who edits YAML need not know: names of classes, words of the library that checks them
OUR_OWN = re.compile(
    r"[a-z]{2}[A-Z][a-z]|Input|valid|instance|union|tag|function|should|pydantic|tuple|\bdict|\bparse|string"
)
SAID = {"kind": "measured", "source": "a test bench", "uncertainty": 0.1}


def full_profile() -> dict[str, Any]:
    """A shipped device with every part that a profile may have."""
    profile: dict[str, Any] = yaml.safe_load(profile_path("raspberry-pi-5-nvme").read_text(encoding="utf-8"))
    row = {"op": "gemv", "type": "q4_0", "size": 1e6, "count": 1, "zero_frac": 0.0, "working_set": "1 MiB"}
    kernels = {"engine": "ours", "ram_bandwidth": "9 GB/s", "rows": [row | {"threads": 4, "time": "1 ms"}]}
    profile["cpu"] |= {"timer_lag": SAID | {"value": "50 us"}, "kernels": SAID | kernels}
    profile["ram"]["app_memory_limit"] = SAID | {"value": "4 GiB"}
    bursts = [{"request": "1 MiB", "n_requests": n, "time": f"{n} ms", "idle": "1 ms"} for n in (1, 2)]
    profile["storage"] |= {
        "latency": SAID | {"value": "50 us"},
        "max_request": "512 KiB",
        "max_request_source": "measured: by hand",
        "table": SAID | {"rows": [{"request": "1 MiB", "queue_depth": 1, "rate": "400 MB/s"}]},
        "bursts": SAID | {"rows": bursts},
        "page_cache": "as Linux has it",
    }
    profile["contention"] = {name: SAID | {"value": 0.9} for name in ("compute_speed", "read_speed")}
    profile["power"] = {name: SAID | {"value": "3 W"} for name in ("idle", "compute", "storage")}
    profile["spot_checks"] = [{"name": "a product", "time": "1 ms", "spread": 0.1}]
    return profile


def prices(ram: object) -> dict[str, Any]:
    """A price list with every kind of part."""
    parts = {"storage": [{"read": "800 MB/s", "price": 15}], "compute": [{"factor": 1.5, "price": 80}]}
    return {"schema_version": 1, "currency": "EUR", "ram": ram, **parts}


FILES: dict[str, tuple[type[BaseModel], Callable[[], dict[str, Any]]]] = {
    "profile": (HardwareProfile, full_profile),
    "prices by the GiB": (Prices, lambda: prices({"per_gib": 5})),
    "prices of parts": (Prices, lambda: prices([{"ram_cap": "4 GiB", "price": 20}])),
    "model": (ModelSpec, lambda: yaml.safe_load(model_path("smallthinker-4b-a0.6b").read_text(encoding="utf-8"))),
}


def below(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path of a key, of a list the first item's alone."""
    if isinstance(value, dict):
        for key in value:
            yield (*path, key)
            yield from below(value[key], (*path, key))
    if isinstance(value, list) and value:
        yield from below(value[0], (*path, 0))


def at(value: Any, path: KeyPath) -> Any:
    """What stands at a path."""
    for part in path:
        value = value[part]
    return value


def wrong_type(value: dict[str, Any], path: KeyPath) -> bool:
    """A list for a word or a number, a word for what has keys of its own."""
    here = at(value, path[:-1])
    here[path[-1]] = "x" if isinstance(here[path[-1]], dict | list) else [1]
    return True


def negative(value: dict[str, Any], path: KeyPath) -> bool:
    """A minus before a number or a quantity."""
    here, old = at(value, path[:-1]), at(value, path)
    if isinstance(old, bool) or not re.fullmatch(r"[\d.]+( [A-Za-z/]+)?", str(old)):
        return False
    here[path[-1]] = f"-{old}" if isinstance(old, str) else -old if old else -1
    return True


def wrong_unit(value: dict[str, Any], path: KeyPath) -> bool:
    """Another unit behind a quantity."""
    here, old = at(value, path[:-1]), at(value, path)
    if not isinstance(old, str) or not re.fullmatch(r"[\d.]+ [A-Za-z/]+", old):
        return False
    here[path[-1]] = f"{old.split()[0]} furlong"
    return True


def missing(value: dict[str, Any], path: KeyPath) -> bool:
    """The key is left out."""
    del at(value, path[:-1])[path[-1]]
    return True


def complaint(model: type[BaseModel], value: dict[str, Any], lines: dict[KeyPath, int]) -> InputError | None:
    """What the file is refused with, None where it is taken."""
    try:
        validate(value, model, "mine.yaml", lines)
    except InputError as error:
        return error
    return None


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[KeyPath, int]]:
    """The line of every key of every file."""
    found = {}
    for name, (_, content) in FILES.items():
        file = tmp_path_factory.mktemp("files") / "mine.yaml"
        file.write_text(yaml.safe_dump(content(), sort_keys=False), encoding="utf-8")
        found[name] = load_mapping(file)[1]
    return found


def check_words(error: InputError) -> None:
    """One line in the words of the file."""
    assert "\n" not in str(error)
    for text in (error.where.replace("mine.yaml", ""), error.must, error.advice):
        assert not OUR_OWN.search(text), str(error)


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_good_before_they_are_spoilt(name: str, lines: dict[str, dict[KeyPath, int]]) -> None:
    """Or the tests below would prove nothing."""
    model, content = FILES[name]
    assert complaint(model, content(), lines[name]) is None


@pytest.mark.parametrize("spoil", [wrong_type, negative, wrong_unit])
@pytest.mark.parametrize("name", FILES)
def test_a_wrong_value_names_its_line_and_its_key(
    name: str, spoil: Callable[..., bool], lines: dict[str, dict[KeyPath, int]]
) -> None:
    """Whatever the key: the file, its line, the key with its parents, and what must stand there."""
    model, content = FILES[name]
    n_spoilt = 0
    for path in below(content()):
        value = copy.deepcopy(content())
        if not spoil(value, path):
            continue
        n_spoilt += 1
        error = complaint(model, value, lines[name])
        assert error is not None, path
        check_words(error)
        key = ".".join(map(str, path))
        assert str(error).startswith(f"mine.yaml:{lines[name][path]}: {key}: must "), str(error)
    assert n_spoilt or spoil is wrong_unit


@pytest.mark.parametrize("name", FILES)
def test_a_key_that_is_left_out_is_named(name: str, lines: dict[str, dict[KeyPath, int]]) -> None:
    """Unless it has a default: then the file is taken, or a rule over several keys names it."""
    model, content = FILES[name]
    named = 0
    for path in below(content()):
        value = copy.deepcopy(content())
        missing(value, path)
        error = complaint(model, value, lines[name])
        if error is not None:
            check_words(error)
            assert str(path[-1]) in str(error), str(error)
            named += ".".join(map(str, path)) in str(error)
    assert named >= 3


@pytest.mark.parametrize("name", FILES)
def test_a_key_too_many_is_named_and_so_is_the_nearest(name: str, lines: dict[str, dict[KeyPath, int]]) -> None:
    """In every mapping of the file, also inside lists; the nearest known key belongs to that mapping."""
    model, content = FILES[name]
    for path in [(), *(path for path in below(content()) if isinstance(at(content(), path), dict))]:
        value = copy.deepcopy(content())
        key = next(iter(at(value, path)))
        at(value, path)[f"{key}x"] = 1
        error = complaint(model, value, lines[name])
        assert error is not None
        check_words(error)
        assert error.must == "every key must be known"
        assert error.got == repr(".".join([*map(str, path), f"{key}x"]))
        assert error.advice == f"did you mean {key!r}?"


def test_two_mistakes_are_both_named(lines: dict[str, dict[KeyPath, int]]) -> None:
    """The first with what is wrong, the others by key and line; a key that is misspelt is one mistake."""
    value = prices({"per_gib": "5"})
    value["storage"][0]["read"] = "800"
    error = complaint(Prices, value, lines["prices by the GiB"])
    assert error is not None
    assert str(error).startswith("mine.yaml:4: ram.per_gib: must be a number, got '5'; ")
    assert str(error).endswith("; also wrong: storage.0.read (line 6)")
    slip = prices({"per_gb": 5})
    assert "also wrong" not in str(complaint(Prices, slip, lines["prices by the GiB"]))


def test_a_price_list_on_the_command_line(moeplan, tmp_path: Path) -> None:
    """The same line, exit status 2."""
    file = tmp_path / "prices.yaml"
    file.write_text("schema_version: 1\ncurrency: EUR\nram: {per_gib: five}\n", encoding="utf-8")
    asked = ["plan", "--model", "smallthinker-4b-a0.6b", "--hardware", "rk3588", "--target-tokens-per-s", "9"]
    told = moeplan(*asked, "--trace", "tiny-smallthinker-prose", "--prices", str(file))
    assert told.status == 2
    assert "prices.yaml:3: ram.per_gib: must be a number, got 'five'" in told.err
