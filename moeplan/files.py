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

    A symbolic link is followed, never replaced.  Raises InputError when the folder cannot be written, the disk is full
    or the target is no regular file.
    """
    target = output_target(target)
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


def output_target(target: Path, suffix: str = "") -> Path:
    """
    The file that writing to target would make, links followed; called early, so that nothing runs in vain.

    Raises InputError where that is a folder, a device or a pipe, or has not the suffix.
    """
    if suffix and target.suffix != suffix:
        raise InputError(str(target), f"must be a file name that ends in {suffix}", repr(target.name))
    real = Path(os.path.realpath(target))
    if real.exists() and not real.is_file():
        raise InputError(str(target), "must be a regular file or a new name", "a folder or a device")
    return real


def write_text(target: Path, text: str) -> None:
    """Write a whole UTF-8 text file, or nothing."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the device: what was renamed then survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_text(path: Path, max_bytes: int = 4 * 2**20) -> str:
    """A whole UTF-8 text file of at most max_bytes. Raises InputError."""
    try:
        if not path.is_file():
            got = "a folder or a device" if path.exists() else "no such file"
            raise InputError(str(path), "must be a file", got)
        if path.stat().st_size > max_bytes:
            size = path.stat().st_size
            raise InputError(str(path), f"must be at most {max_bytes} bytes", size, "is it the file you mean?")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror) from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "must be UTF-8 text", f"a bad byte at {error.start}") from error
