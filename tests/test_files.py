"""Files are whole or absent."""

import os
from pathlib import Path

import pytest

from moeplan.errors import InputError, nearest
from moeplan.files import atomic_path, output_target, read_text, write_text


def test_text_is_written_whole_and_folders_are_made(tmp_path: Path) -> None:
    """What is read is what was written; nothing else stays in the folder; others may read it."""
    target = tmp_path / "deep" / "er" / "a.txt"
    write_text(target, "é\n")
    assert read_text(target) == "é\n"
    assert [p.name for p in target.parent.iterdir()] == ["a.txt"]
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    """An exception in the middle of writing changes nothing."""
    target = tmp_path / "a.txt"
    write_text(target, "old")

    def fail_half_way() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_half_way()
    assert read_text(target) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    """A file where a folder should be, or a folder where the file should go."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="must be a place that can be written"):
        write_text(tmp_path / "file" / "a.txt", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="must be a regular file or a new name"):
        write_text(tmp_path / "folder", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_what_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    """Absent, a folder, not UTF-8, too large."""
    (tmp_path / "binary").write_bytes(b"ab\xff")
    (tmp_path / "large").write_bytes(b"x" * 11)
    cases = {"absent": "no such file", ".": "a folder or a device", "binary": "a bad byte at 2", "large": "at most 10"}
    for name, words in cases.items():
        with pytest.raises(InputError, match=words):
            read_text(tmp_path / name, max_bytes=10 if name == "large" else 2**20)


def test_an_error_is_one_line_with_where_must_got_and_advice() -> None:
    """Line ends inside the parts go; without advice there is no semicolon."""
    assert str(InputError("a:1", "must\nbe b", "c", "do d")) == "a:1: must be b, got c; do d"
    assert str(InputError("a:1", "must be b", 3)) == "a:1: must be b, got 3"


def test_advice_names_the_nearest_word_or_all() -> None:
    """One candidate when one is near, the sorted list otherwise."""
    assert nearest("storge", ["ram", "storage"]) == "did you mean 'storage'?"
    assert nearest("zzz", ["storage", "ram"]) == "known: ram, storage"


def test_a_device_is_never_replaced_and_a_link_is_followed(tmp_path: Path) -> None:
    """Writing is a rename: onto a device or a pipe it is refused, through a symbolic link it reaches the file."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="must be a regular file or a new name"):
        write_text(tmp_path / "pipe", "x")
    (tmp_path / "real.txt").write_text("old", encoding="utf-8")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text(encoding="utf-8") == "new"


def test_an_output_must_have_its_suffix(tmp_path: Path) -> None:
    """A report written over a table would lose it."""
    with pytest.raises(InputError, match=r"must be a file name that ends in .html"):
        output_target(tmp_path / "sweep.parquet", ".html")
    assert output_target(tmp_path / "new.html", ".html").name == "new.html"


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    """Reading a pipe or a device would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="must be a file, got a folder or a device"):
        read_text(tmp_path / "pipe")
