"""
Where experts lie on disk: in a store made for it (one read an expert) or in the model file itself (three reads).

The store, "bundle": a header, then expert after expert from a page's start, padded to whole pages; an expert is gate,
up and down packed for the kernels, without a gap.

    magic 16 bytes | version u32 | JSON bytes u32 | crc32 of the JSON u32 | offset of the first expert u64 | JSON

The JSON names shapes, types and packing per layer, a crc32 per expert, padding included, and the source as it was;
see source_fingerprint.py.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gguf import GGMLQuantizationType

from moeplan.errors import InputError
from moeplan.progress import OnProgress, ignore_progress
from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.loading.weight_loading import check_finite
from reference_runtime.matrix import Matrix, Packing, matrix_bytes
from reference_runtime.packing import pack_into, packing_of, warm_up
from reference_runtime.streaming.direct_reads import DirectFile, Read, page_aligned
from reference_runtime.streaming.source_fingerprint import Fingerprint, check_source
from simulator.expert_layout import ALIGNMENT_BYTES, ExpertLayout, layout_of_bytes, padded, unaligned_request_bytes

MAGIC, VERSION = b"moeplan experts\n", 1  # the version changes with the header and with any packing
HEADER = struct.Struct("<16sIIIQ")
PACKINGS: tuple[Packing, Packing, Packing] = ("rows", "rows", "columns")  # gate, up, down
PREPARE = "prepare it with moeplan run --model MODEL --prepare"


@dataclass(frozen=True)
class Place:
    """One matrix of an expert in its slot: packed, n_bytes from `start`."""

    kind: GGMLQuantizationType
    shape: tuple[int, int]
    packing: Packing
    start: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the matrix."""
        return matrix_bytes(self.kind, *self.shape)

    def matrix(self, slot: np.ndarray) -> Matrix:
        """A view into a slot, uint8."""
        return Matrix(self.kind, self.shape, slot[self.start : self.start + self.n_bytes], self.packing)


Places = tuple[Place, Place, Place]  # gate, up, down


class ExpertStore(Protocol):
    """Experts on disk; places per layer."""

    layout: ExpertLayout  # of the largest expert
    places: tuple[Places, ...]
    n_experts: int
    buffer_bytes: int  # what a reader thread needs beside the slot
    files: tuple[DirectFile, ...]

    def reads(self, layer: int, expert: int, slot: np.ndarray, tag: int, issued_s: float) -> list[Read]:
        """The requests that bring an expert into a slot, page-aligned uint8 of layout.padded_bytes."""
        ...

    def close(self) -> None:
        """Give the files back."""
        ...


def default_store_path(model: Path) -> Path:
    """The store of a model: experts.bundle in a folder beside it, the model's name with .experts behind."""
    return model.with_name(f"{model.name}.experts") / "experts.bundle"


def expert_places(model_file: ModelFile) -> tuple[Places, ...]:
    """How the experts of each layer lie in their slots. Raises InputError where a layer's experts are not alike."""
    for layer, experts in enumerate(model_file.experts):
        forms = {tuple((part.kind, part.shape) for part in parts) for parts in experts}
        if len(forms) > 1:
            must = "must have experts of one shape and type"
            raise InputError(f"{model_file.path}: layer {layer}", must, f"{len(forms)} forms", "convert it to one type")
    return tuple(_places(experts[0]) for experts in model_file.experts)


def _places(parts: Sequence[Part]) -> Places:
    start, places = 0, []
    for part, packing in zip(parts, PACKINGS, strict=True):
        places.append(Place(part.kind, part.shape, packing_of(part.kind, packing), start))
        start += part.n_bytes
    gate, up, down = places
    return gate, up, down


def expert_n_bytes(places: Places) -> int:
    """Bytes of an expert, padding left out."""
    return places[-1].start + places[-1].n_bytes


class SplitSource:
    """The model file itself: gate, up and down lie apart and are packed when they arrive."""

    def __init__(self, model_file: ModelFile) -> None:
        """Raises InputError when a file cannot be opened or a layer's experts are not alike."""
        self._parts = model_file.experts
        self.places, self.n_experts = expert_places(model_file), len(model_file.experts[0])
        self.layout = layout_of_bytes(max(map(expert_n_bytes, self.places)), "split")
        self.buffer_bytes = max(unaligned_request_bytes(place.n_bytes) for layer in self.places for place in layer)
        self.files = tuple(DirectFile(path) for path in model_file.files)
        if any(place.packing != "ggml" for layer in self.places for place in layer):
            warm_up()  # or the first expert would wait for a compiler

    def reads(self, layer: int, expert: int, slot: np.ndarray, tag: int, issued_s: float) -> list[Read]:
        """See ExpertStore.  Each request is the padded part and a page more, wherever the part begins."""
        result = []
        for part, place in zip(self._parts[layer][expert], self.places[layer], strict=True):
            skip = part.offset % ALIGNMENT_BYTES
            n_bytes, n_needed = unaligned_request_bytes(part.n_bytes), skip + part.n_bytes
            file = self.files[part.file]
            then = partial(_take_part, part, place, slot, file.path)
            result.append(Read(tag, file, part.offset - skip, n_bytes, n_needed, None, then, issued_s))
        return result

    def close(self) -> None:
        """Give the files back."""
        for file in self.files:
            file.close()


def _take_part(part: Part, place: Place, slot: np.ndarray, path: Path, window: np.ndarray) -> None:
    """Check a part that arrived in a window and pack it into its place."""
    skip = part.offset % ALIGNMENT_BYTES
    data = window[skip : skip + part.n_bytes]
    check_finite(data, part, path)
    pack_into(data, slot[place.start : place.start + place.n_bytes], place.kind, place.shape, place.packing)


class BundleSource:
    """An opened store: made by open_store."""

    def __init__(
        self, file: DirectFile, places: tuple[Places, ...], checksums: list[list[str]], first_expert: int
    ) -> None:
        self.places, self.checksums, self.n_experts = places, checksums, len(checksums[0])
        self.layout = layout_of_bytes(max(map(expert_n_bytes, places)), "bundle")
        self.buffer_bytes = 0
        self.files: tuple[DirectFile, ...] = (file,)
        self._sizes = [padded(expert_n_bytes(layer)) for layer in places]
        self._starts = [first_expert + self.n_experts * sum(self._sizes[:layer]) for layer in range(len(places))]

    @property
    def n_bytes(self) -> int:
        """Bytes that the file must have."""
        return self._starts[-1] + self.n_experts * self._sizes[-1]

    @property
    def all_experts_bytes(self) -> int:
        """Bytes of all experts, padded."""
        return self.n_experts * sum(self._sizes)

    def reads(self, layer: int, expert: int, slot: np.ndarray, tag: int, issued_s: float) -> list[Read]:
        """See ExpertStore."""
        n_bytes = self._sizes[layer]
        offset = self._starts[layer] + expert * n_bytes
        return [Read(tag, self.files[0], offset, n_bytes, n_bytes, slot[:n_bytes], None, issued_s)]

    def close(self) -> None:
        """Give the file back."""
        self.files[0].close()


def header_bytes(source: list[Fingerprint], places: tuple[Places, ...], checksums: list[list[str]]) -> bytes:
    """The header of a store, padded to whole pages; its size does not depend on the checksums (8 digits each)."""
    text = json.dumps(
        {
            "source": source,
            "places": [[_described(place) for place in layer] for layer in places],
            "checksums": checksums,
        }
    ).encode()
    n_bytes = padded(HEADER.size + len(text))
    return (HEADER.pack(MAGIC, VERSION, len(text), zlib.crc32(text), n_bytes) + text).ljust(n_bytes, b"\0")


def _described(place: Place) -> list[Any]:
    return [place.kind.name, *place.shape, place.packing]


def open_store(path: Path, model_file: ModelFile) -> BundleSource:
    """
    The store of a model, ready to be read.

    Raises InputError where there is none, or it is foreign, of another version, truncated, damaged in its header, or
    was not made from the model file as it is now.
    """
    if not path.is_file():
        raise InputError(str(path), "must be the model's expert store", "no such file", PREPARE)
    file = DirectFile(path)
    try:
        header, first_expert = _read_header(file)
        places = expert_places(model_file)
        if header["places"] != [[_described(place) for place in layer] for layer in places]:
            raise InputError(str(path), f"must hold the experts of {model_file.path}", "other shapes or types", PREPARE)
        store = BundleSource(file, places, header["checksums"], first_expert)
        if file.n_bytes != store.n_bytes:
            raise InputError(str(path), f"must have {store.n_bytes} bytes", file.n_bytes, f"it is damaged; {PREPARE}")
        check_source(path, header["source"], model_file, PREPARE)
    except InputError:
        file.close()
        raise
    return store


def _read_header(file: DirectFile) -> tuple[dict[str, Any], int]:
    page = page_aligned(ALIGNMENT_BYTES)
    file.read(0, page, min(HEADER.size, file.n_bytes))
    magic, version, n_json, crc, first_expert = HEADER.unpack_from(page.data)
    where = str(file.path)
    if magic != MAGIC:
        raise InputError(where, "must be an expert store", "another kind of file", PREPARE)
    if version != VERSION:
        raise InputError(where, f"must be an expert store of version {VERSION}", f"version {version}", PREPARE)
    if first_expert != padded(HEADER.size + n_json) or first_expert > file.n_bytes:
        raise InputError(where, "must have a whole header", f"{file.n_bytes} bytes", f"it is damaged; {PREPARE}")
    head = page_aligned(first_expert)
    file.read(0, head, first_expert)
    text = head[HEADER.size : HEADER.size + n_json].tobytes()
    if zlib.crc32(text) != crc:
        raise InputError(where, "must have a whole header", "a wrong checksum of it", f"it is damaged; {PREPARE}")
    return json.loads(text), first_expert


def verify(store: BundleSource, progress: OnProgress = ignore_progress) -> None:
    """Read every expert and compare its checksum. Raises InputError that names the first damaged one."""
    slot = page_aligned(store.layout.padded_bytes)
    done, total = 0, store.all_experts_bytes
    for layer, layer_sums in enumerate(store.checksums):
        for expert, expected in enumerate(layer_sums):
            (read,) = store.reads(layer, expert, slot, 0, 0.0)
            read.file.read(read.offset, slot[: read.n_bytes], read.n_needed)
            if checksum(slot[: read.n_bytes]) != expected:
                where = f"{read.file.path}: layer {layer}, expert {expert}"
                raise InputError(where, "must have its checksum", "other bytes", f"it is damaged; {PREPARE}")
            done += read.n_bytes
            progress(done, total)


def checksum(expert: np.ndarray) -> str:
    """crc32 of an expert's padded bytes, 8 hexadecimal digits."""
    return f"{zlib.crc32(expert.data):08x}"
