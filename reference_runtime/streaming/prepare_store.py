"""Make the expert store of a model: whole or not at all, in little memory."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from moeplan.errors import InputError
from moeplan.files import flush_to_disk, output_target
from moeplan.progress import OnProgress, ignore_progress
from moeplan.quantity import format_bytes
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.streaming.direct_reads import page_aligned
from reference_runtime.streaming.expert_store import (
    MAGIC,
    PREPARE,
    SplitSource,
    checksum,
    default_store_path,
    expert_n_bytes,
    header_bytes,
)
from reference_runtime.streaming.source_fingerprint import Fingerprint, check_source, source_fingerprint
from simulator.expert_layout import padded

FLUSH_BYTES = 2**27  # written pages are flushed and given back this often, so that they do not crowd the memory


def prepare(model_file: ModelFile, target: Path | None = None, progress: OnProgress = ignore_progress) -> Path:
    """
    Write the store of a model, by default at default_store_path, and return its path.

    The store appears under its name when it is whole and on the disk; after a kill the next call removes what was
    left and starts over.  progress is called with bytes written and bytes in all.  Raises InputError for a
    source that cannot be read, changes meanwhile or holds a NaN or an infinity, for a disk that is full, and for a
    target that is another file, such as the model itself.
    """
    target = output_target(target or default_store_path(model_file.path))
    _refuse_other_file(target)
    fingerprint = source_fingerprint(model_file)
    source = SplitSource(model_file)
    try:
        with _whole_or_absent(target) as file:
            _write(source, fingerprint, file, target, progress)
            check_source(target, fingerprint, model_file, PREPARE)
    except OSError as error:
        must, advice = "must be a place that can be written", "give another place with --store"
        raise InputError(str(target), must, error.strerror or error, advice) from error
    finally:
        source.close()
    return target


def _refuse_other_file(target: Path) -> None:
    """Raises InputError where a file stands that is neither a store, whole or damaged, nor empty."""
    if not target.exists():
        return
    try:
        with target.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(str(target), "must be a file that can be read", error.strerror or error) from error
    if start not in (b"", MAGIC):
        raise InputError("--store", "must be a new name or an expert store", f"{target}, which is another file")


def _write(
    source: SplitSource, fingerprint: list[Fingerprint], file: BinaryIO, target: Path, progress: OnProgress
) -> None:
    sums = [["0" * 8] * source.n_experts for _ in source.places]
    sizes = [padded(expert_n_bytes(places)) for places in source.places]
    head = header_bytes(fingerprint, source.places, sums)
    done, total = len(head), len(head) + source.n_experts * sum(sizes)
    _reserve(file, total, target)
    file.write(head)
    slot, window = page_aligned(source.layout.padded_bytes), page_aligned(source.buffer_bytes)
    for layer, size in enumerate(sizes):
        slot[expert_n_bytes(source.places[layer]) :] = 0
        for expert in range(source.n_experts):
            for read in source.reads(layer, expert, slot, 0, 0.0):
                read.file.read(read.offset, window[: read.n_bytes], read.n_needed)
                assert read.then is not None
                read.then(window)
            sums[layer][expert] = checksum(slot[:size])
            file.write(slot[:size].data)
            if done // FLUSH_BYTES != (done + size) // FLUSH_BYTES:
                _flush(file)
            done += size
            progress(done, total)
    file.seek(0)
    file.write(header_bytes(fingerprint, source.places, sums))
    _flush(file)


def _reserve(file: BinaryIO, n_bytes: int, target: Path) -> None:
    """Raises InputError where the disk has too little room, before anything is read."""
    free = shutil.disk_usage(target.parent).free
    if free < n_bytes:
        must = f"must have {format_bytes(n_bytes)} free on its disk"
        raise InputError(str(target), must, format_bytes(free), "free some, or give another place")
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, n_bytes)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _whole_or_absent(target: Path) -> Iterator[BinaryIO]:
    """
    A file under a temporary name beside the target that becomes the target when all went well.

    Its writer holds a lock on it, which the system drops with the process: a temporary file without one is a leftover.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    handle, name = _locked_temporary(target)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            os.fchmod(file.fileno(), 0o644)
            os.replace(name, target)
        flush_to_disk(target.parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _locked_temporary(target: Path) -> tuple[int, str]:
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # another call may have taken it for a leftover before it was locked
            return handle, name
        os.close(handle)


def _remove_leftovers(target: Path) -> None:
    for path in target.parent.glob(f".{target.name}.*.part"):
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
