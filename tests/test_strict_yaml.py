"""Strict YAML: every complaint is one line with file and line, and nothing clever is read."""

# ruff: noqa: E501  (one bad file a line, with the whole complaint)

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from moeplan.errors import InputError
from moeplan.strict_yaml import load_mapping, load_model


class Wheel(BaseModel):
    """A part."""

    model_config = ConfigDict(extra="forbid")
    size: int
    name: str = "wheel"


class Car(BaseModel):
    """A whole with a part, a list of parts and an optional part."""

    model_config = ConfigDict(extra="forbid")
    colour: str
    front: Wheel
    others: tuple[Wheel, ...] = ()
    spare: Wheel | None = None


def write(tmp_path: Path, text: str) -> Path:
    """A file with this text."""
    path = tmp_path / "car.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(tmp_path: Path, text: str) -> str:
    """The one line that loading a car from this text ends with, without the folder."""
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_model(path, Car)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_a_good_file_becomes_a_model_and_lines_are_known(tmp_path: Path) -> None:
    """Values and the line of every key, also inside lists."""
    text = "colour: red\nfront: {size: 3}\nothers:\n  - size: 4\n  - size: 5\n"
    path = write(tmp_path, text)
    assert load_model(path, Car) == Car(colour="red", front=Wheel(size=3), others=(Wheel(size=4), Wheel(size=5)))
    _, lines = load_mapping(path)
    assert lines[("others", 1, "size")] == 5
    assert lines[("front", "size")] == 2


GOOD = "colour: red\nfront: {size: 3}\n"
CASES = {
    "unknown key": (GOOD + "colur: x\n", "car.yaml:3: every key must be known, got 'colur'; did you mean 'colour'?"),
    "unknown nested": ("colour: red\nfront:\n  size: 3\n  siez: 3\n", "car.yaml:4: every key must be known, got 'front.siez'; did you mean 'size'?"),
    "unknown in a list": (GOOD + "others:\n  - {size: 1}\n  - {size: 1, nam: x}\n", "car.yaml:5: every key must be known, got 'others.1.nam'; did you mean 'name'?"),
    "unknown in an optional part": (GOOD + "spare:\n  size: 1\n  nmae: x\n", "car.yaml:5: every key must be known, got 'spare.nmae'; did you mean 'name'?"),
    "missing": ("front: {size: 3}\n", "car.yaml:1: key 'colour' must be given, got nothing"),
    "wrong type": ("colour: red\nfront:\n  size: big\n", "car.yaml:3: front.size: must be a whole number, got 'big'"),
    "twice": (GOOD + "colour: blue\n", "car.yaml:3: key 'colour' must stand once, got it twice; remove one"),
    "anchor": ("colour: &a red\nfront: {size: 3}\n", "car.yaml:1: must have no anchors, aliases and tags"),
    "tag": ("colour: !!python/object:os.system red\n", "car.yaml:1: must have no anchors, aliases and tags"),
    "int tag": ("colour: red\nfront: {size: !!int x}\n", "car.yaml:2: must have no anchors, aliases and tags"),
    "impossible date": ("colour: 2024-13-45\n", "car.yaml:1: must be a valid value"),
    "huge number": ("colour: red\nfront: {size: " + "9" * 5000 + "}\n", "car.yaml:2: must be a valid value"),
    "a list as a key": ("? [a]\n: b\n", "car.yaml:1: a key must be a word"),
    "broken": ("colour: [red\nfront: 3\n", "car.yaml:2: must be valid YAML"),
    "control character": ("colour: \x00\n", "car.yaml: must be valid YAML"),
    "two documents": (GOOD + "---\n" + GOOD, "car.yaml:3: must be valid YAML"),
    "empty": ("", "car.yaml: must be a YAML mapping, got an empty file"),
    "comment only": ("# nothing\n", "car.yaml: must be a YAML mapping, got an empty file"),
    "list": ("- colour\n", "car.yaml: must be a YAML mapping, got a list; write `key: value` lines"),
    "text": ("colour\n", "car.yaml: must be a YAML mapping, got a str"),
    "deep": ("[" * 5000 + "]" * 5000, "car.yaml: must be a YAML mapping, got one nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_one_line_that_says_where(case: str, tmp_path: Path) -> None:
    """File, line, key and what to do."""
    text, line = CASES[case]
    assert complaint(tmp_path, text).startswith(line)


def test_a_billion_laughs_is_refused_before_it_grows(tmp_path: Path) -> None:
    """Nine levels of ten aliases would be a billion strings."""
    levels = ["a0: &a0 lol"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "must have no anchors, aliases and tags" in complaint(tmp_path, "\n".join(levels))


def test_several_complaints_are_all_told(tmp_path: Path) -> None:
    """The first line of the file comes first, the others with key and line; of many a few, and how many more."""
    assert complaint(tmp_path, "colour: red\nfront:\n  size: x\nspare: 3\n").startswith("car.yaml:3: front.size:")
    assert complaint(tmp_path, "colour: red\nfront:\n  size: x\nspare: 3\n").endswith("; also wrong: spare (line 4)")
    many = complaint(tmp_path, GOOD + "others: [{size: a}, {size: b}, {size: c}, {size: d}, {size: e}, {size: f}]\n")
    first, others = (
        "car.yaml:3: others.0.size: must be a whole number, got 'a'",
        "others.1.size (line 3), others.2.size",
    )
    assert many.startswith(f"{first}; also wrong: {others} (line 3), ")
    assert many.endswith(" and 2 more")


def test_a_key_with_a_rule_of_its_own_is_named_where_it_is_left_out(tmp_path: Path) -> None:
    """Also at the top of the file, and the words of pydantic do not come through."""
    assert complaint(tmp_path, "colour: red\nfront: 3\n") == (
        "car.yaml:2: front: must be a mapping, `key: value` lines, got 3"
    )
    assert (
        complaint(tmp_path, "colour: [red]\nfront: {size: 3}\n") == "car.yaml:1: colour: must be text, got a list of 1"
    )
