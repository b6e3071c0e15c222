"""
Which model file a store was made from, told in some 20 ms whatever its size.

Size, modification time and the sha256 of the first MiB and of 64 pages spread over the file.  An edit in place of
other bytes that also sets the old modification time back would pass.
"""

import hashlib
from pathlib import Path
from typing import TypedDict

from moeplan.errors import InputError
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.streaming.direct_reads import DirectFile, page_aligned
from simulator.expert_layout import ALIGNMENT_BYTES

N_SAMPLED_PAGES, HEAD_BYTES = 64, 2**20


class Fingerprint(TypedDict):
    """Of one file."""

    n_bytes: int
    mtime_ns: int
    sha256: str


def source_fingerprint(model_file: ModelFile) -> list[Fingerprint]:
    """One for each file of a model. Raises InputError."""
    return [_fingerprint(path) for path in model_file.files]


def check_source(where: Path, recorded: list[Fingerprint], model_file: ModelFile, advice: str) -> None:
    """Raises InputError, which names the store and what differs, where the model's files are not those recorded."""
    found = source_fingerprint(model_file)
    if recorded == found:
        return
    other = "another number of files"
    for old, new in zip(recorded, found, strict=False):
        if old["n_bytes"] != new["n_bytes"]:
            other = "another size"
        elif old["sha256"] != new["sha256"]:
            other = "other contents"
        elif old["mtime_ns"] != new["mtime_ns"]:
            other = "another modification time"
    must = f"must have been made from {model_file.path} as it is now"
    raise InputError(str(where), must, f"{other} then", f"it is stale; {advice}")


def _fingerprint(path: Path) -> Fingerprint:
    file = DirectFile(path)
    try:
        digest, buffer = hashlib.sha256(), page_aligned(HEAD_BYTES)
        n_pages = file.n_bytes // ALIGNMENT_BYTES
        pages = sorted({n_pages * i // N_SAMPLED_PAGES for i in range(N_SAMPLED_PAGES)} | {n_pages})
        windows = [(0, HEAD_BYTES), *((page * ALIGNMENT_BYTES, ALIGNMENT_BYTES) for page in pages)]
        for offset, size in windows:
            n_needed = min(size, file.n_bytes - offset)
            file.read(offset, buffer[:size], n_needed)
            digest.update(buffer[:n_needed].data)
        return {"n_bytes": file.n_bytes, "mtime_ns": file.mtime_ns, "sha256": digest.hexdigest()}
    finally:
        file.close()
