"""Bad profiles: each one line `file:line: key: what must hold, got what; what to do`."""

# ruff: noqa: E501  (one bad value a line, with the whole complaint)

from pathlib import Path

import pytest

from hardware_profiles.catalog import DEVICES, load_profile, profile_names
from hardware_profiles.schema_figures import RateFigure
from moeplan.errors import InputError

PI = (DEVICES / "raspberry-pi-5-nvme.yaml").read_text(encoding="utf-8")


def complaint(tmp_path: Path, text: str) -> str:
    """The line that loading this text ends with, without the folder."""
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_profile(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def changed(old: str, new: str) -> tuple[str, int]:
    """The Raspberry Pi's profile with its first `old` replaced, and the line where it stands."""
    assert old in PI
    return PI.replace(old, new, 1), PI[: PI.index(old)].count("\n") + 1


CASES = {
    "unknown key": ("  cores: 4", "  coers: 4", "every key must be known, got 'cpu.coers'; did you mean 'cores'?"),
    "unknown key in a figure": ("    kind: measured", "    knd: measured", "every key must be known, got 'storage.sequential_read.knd'; did you mean 'kind'?"),
    "a size where a rate is wanted": ("419 MB/s", "3 GB", "storage.sequential_read.value: must be a quantity like '3.5 GB/s' or '200 MiB/s', got '3 GB'; the unit 'GB' does not fit here"),
    "negative": ("419 MB/s", "-419 MB/s", "storage.sequential_read.value: must be a finite number above zero, got '-419 MB/s'"),
    "NaN": ("419 MB/s", "nan MB/s", "storage.sequential_read.value: must be a quantity like"),
    "YAML's own NaN": ("419 MB/s", ".nan", "storage.sequential_read.value: must be a quantity like"),
    "bits": ("419 MB/s", "419 Mb/s", "storage.sequential_read.value: must be a quantity like '3.5 GB/s' or '200 MiB/s', got '419 Mb/s'; bits are not accepted"),
    "no unit": ("419 MB/s", "419", "storage.sequential_read.value: must be a quantity like '3.5 GB/s' or '200 MiB/s', got 419; write a number and a unit"),
    "bare prefix": ("  size: 8 GiB", "  size: 48G", "ram.size: must be a quantity like '16 GiB' or '64 GB', got '48G'; a bare 'G' is no unit"),
    "size without a unit": ("  size: 8 GiB", "  size: 8", "ram.size: must be a quantity like '16 GiB' or '64 GB', got 8"),
    "negative size": ("  size: 8 GiB", "  size: -8 GiB", "ram.size: must be a finite number above zero, got '-8 GiB'"),
    "zero rate": ("419 MB/s", "0 MB/s", "storage.sequential_read.value: must be a finite number above zero"),
    "unknown kind": ("kind: theoretical", "kind: guessed", "cpu.peak_flop_per_s.kind: must be 'measured', 'datasheet', 'theoretical' or 'assumed'"),
    "negative uncertainty": ("uncertainty: 0.05", "uncertainty: -0.05", "cpu.peak_flop_per_s.uncertainty: must be at least 0, got -0.05"),
    "NaN uncertainty": ("uncertainty: 0.05", "uncertainty: .nan", "cpu.peak_flop_per_s.uncertainty: must be a finite number"),
    "a truth value as a count": ("  cores: 4", "  cores: yes", "cpu.cores: must be a whole number, got True"),
    "no lanes": ("  queue_depth: 8", "  queue_depth: 0", "storage.queue_depth: must be at least 1, got 0"),
    "another schema": ("schema_version: 1", "schema_version: 2", "schema_version: must be 1"),
    "overlap above one": ("  value: 0.85", "  value: 1.2", "overlap_efficiency.value: must be at most 1, got 1.2"),
    "word for a part": ("    value: 10 us", "    value: soon", "cpu.op_overhead.value: must be a quantity like '80 us' or '1.5 ms', got 'soon'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_bad_value_is_named_with_file_and_line(case: str, tmp_path: Path) -> None:
    """The line is that of the value in the file, the key is dotted."""
    old, new, words = CASES[case]
    text, line = changed(old, new)
    assert complaint(tmp_path, text).startswith(f"mine.yaml:{line}: {words}")


def test_swapped_sequential_and_4k_rates_are_noticed(tmp_path: Path) -> None:
    """A small random read cannot be faster than large sequential ones."""
    text = PI.replace("419 MB/s", "X").replace("57.3 MB/s", "419 MB/s").replace("X", "57.3 MB/s")
    line = complaint(tmp_path, text)
    assert "storage: random_4k_read must be at most sequential_read, got 419 MB/s > 57.3 MB/s; swapped?" in line


IMPOSSIBLE = {
    "latency must be at most 4 KiB / random_4k_read, got 90.0 us > 71.5 us; correct one of the two": (
        "  queue_depth: 8",
        "  latency: {value: 90 us, kind: assumed, source: a test, uncertainty: 0.5}\n  queue_depth: 8",
    ),
    "free_space must be at most capacity": ("value: 200 GB", "value: 300 GB"),
    "os_reserved must be less than the RAM's size": ("value: 0.8 GiB", "value: 8 GiB"),
    "gemv_bandwidth must be at most peak_bandwidth": ("value: 12.8 GB/s", "value: 128 GB/s"),
    "gemm_flop_per_s must be at most peak_flop_per_s": ("value: 70 GFLOP/s", "value: 1 TFLOP/s"),
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_figures_that_contradict_each_other_are_refused(words: str, tmp_path: Path) -> None:
    """What cannot be true together is an error of the part that holds both."""
    assert words in complaint(tmp_path, changed(*IMPOSSIBLE[words])[0])


def test_a_figure_without_its_source_is_refused(tmp_path: Path) -> None:
    """A bare '419 MB/s', or an assumed figure that claims to be exact, or an empty source."""
    start, end = PI.index("  sequential_read:"), PI.index("  random_4k_read:")
    bare = PI[:start] + "  sequential_read: 419 MB/s\n" + PI[end:]
    assert "must say where it comes from, got '419 MB/s'; write {value, kind, source" in complaint(tmp_path, bare)
    exact = PI.replace("uncertainty: 0.5", "uncertainty: 0", 1)
    assert "must be above zero for an assumed figure" in complaint(tmp_path, exact)
    with pytest.raises(ValueError, match="source"):
        RateFigure.model_validate({"value": "1 GB/s", "kind": "measured", "source": "", "uncertainty": 0.1})


DOCUMENTS = {
    "": "mine.yaml: must be a YAML mapping, got an empty file",
    "- a\n- b\n": "mine.yaml: must be a YAML mapping, got a list; write `key: value` lines",
    "a: &a [x, x]\nb: [*a, *a]\n": "mine.yaml:1: must have no anchors, aliases and tags, got one; write the value out",
    "name: x\n": "mine.yaml:1: key 'schema_version' must be given, got nothing",
}


@pytest.mark.parametrize("text", DOCUMENTS)
def test_a_document_that_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    """Empty, a list, the billion laughs, next to nothing."""
    assert complaint(tmp_path, text).startswith(DOCUMENTS[text])


def test_a_bad_row_of_a_table_is_named(tmp_path: Path) -> None:
    """Row numbers count from 0 in the key; the line is the row's."""
    table = "  table:\n    kind: measured\n    source: by hand\n    uncertainty: 0.1\n    rows:\n"
    row = "      - {request: 4 KiB, queue_depth: 1, rate: 4 KiB}\n"
    text, _ = changed("  direct_io: true\n", table + row + "  direct_io: true\n")
    assert "storage.table.rows.0.rate: must be a quantity like '3.5 GB/s'" in complaint(tmp_path, text)


def test_an_unknown_device_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """Neither shipped nor a file; a folder; a name that no file system takes."""
    with pytest.raises(InputError, match=r"--hardware: must be .* got 'steam-dek'; did you mean 'steam-deck'\?"):
        load_profile("steam-dek")
    with pytest.raises(InputError, match="must be a file, got a folder"):
        load_profile(str(tmp_path))
    with pytest.raises(InputError, match="must be a shipped device or a YAML file"):
        load_profile("x" * 5000)
    assert profile_names() == sorted(profile_names())


def test_storage_faster_than_ram_is_a_mistyped_unit(tmp_path: Path) -> None:
    """520 GB/s for 520 MB/s is refused: nothing is read faster than the RAM takes it."""
    text, _ = changed("value: 419 MB/s", "value: 520 GB/s")
    assert "storage.sequential_read must be at most ram.peak_bandwidth" in complaint(tmp_path, text)
