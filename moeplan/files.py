"""Files that are whole or absent: everything is written to a temporary file beside its place and renamed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moeplan.errors import InputError


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """
    A temporary path beside the target; on success it becomes the target, on any failure it goes.

    Raises InputError when the folder cannot be written or the disk is full.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise InputError(str(target), "must be a place that can be written", error.strerror) from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(str(target), "must be a place that can be written", error.strerror or error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a whole UTF-8 text file, or nothing."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_text(path: Path, max_bytes: int = 4 * 2**20) -> str:
    """A whole UTF-8 text file of at most max_bytes. Raises InputError."""
    try:
        if path.stat().st_size > max_bytes:
            size = path.stat().st_size
            raise InputError(str(path), f"must be at most {max_bytes} bytes", size, "is it the file you mean?")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror) from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "must be UTF-8 text", f"a bad byte at {error.start}") from error
