"""The expert store: prepared whole, opened only when it is the model's, read back bit by bit; and its layouts."""

import json
import os
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from moeplan.errors import InputError
from reference_runtime.loading.model_file import ModelFile
from reference_runtime.model import Expert
from reference_runtime.streaming.direct_reads import page_aligned
from reference_runtime.streaming.expert_store import (
    HEADER,
    BundleSource,
    ExpertStore,
    SplitSource,
    default_store_path,
    expert_n_bytes,
    open_store,
    verify,
)
from reference_runtime.streaming.prepare_store import prepare
from simulator.expert_layout import layout_of_bytes, unaligned_request_bytes
from tests.expert_files import F32, Q4_0, Q8_0, expected, is_expert, make_model

PAGE = 4096


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    """Three layers of four experts, of three types."""
    return make_model(tmp_path / "model.gguf", (Q4_0, Q8_0, F32))


def read_expert(store: ExpertStore, layer: int, expert: int) -> Expert:
    """One expert, on this thread."""
    slot, window = page_aligned(store.layout.padded_bytes), page_aligned(store.buffer_bytes)
    for read in store.reads(layer, expert, slot, 0, 0.0):
        target = window[: read.n_bytes] if read.target is None else read.target
        read.file.read(read.offset, target, read.n_needed)
        if read.then is not None:
            read.then(target)
    gate, up, down = (place.matrix(slot) for place in store.places[layer])
    return Expert(gate, up, down)


def opened(model: ModelFile) -> BundleSource:
    """The store, prepared and opened."""
    return open_store(prepare(model), model)


@pytest.mark.parametrize("source", [SplitSource, opened])
def test_every_expert_is_what_the_model_file_holds(model: ModelFile, source: object) -> None:
    """Both layouts, all types: equal weights after packing, and types that are not packed stay as they are."""
    store = source(model)  # type: ignore[operator]
    for layer in range(3):
        for expert in range(4):
            assert is_expert(read_expert(store, layer, expert), expected(model, layer, expert))
    assert [place.packing for place in store.places[0]] == ["rows", "rows", "columns"]
    assert {place.packing for place in store.places[2]} == {"ggml"}
    store.close()


def test_an_expert_is_one_aligned_read(model: ModelFile) -> None:
    """Experts follow each other from a page's start, without a gap but the padding; the file ends with the last one."""
    store = opened(model)
    at = None
    for layer in range(3):
        size = -(-expert_n_bytes(store.places[layer]) // PAGE) * PAGE
        for expert in range(4):
            (read,) = store.reads(layer, expert, page_aligned(store.layout.padded_bytes), 0, 0.0)
            at = read.offset if at is None else at
            assert (read.offset, read.n_bytes, read.n_needed) == (at, size, size)
            assert at % PAGE == 0
            at += size
    assert at == os.path.getsize(default_store_path(model.path))
    store.close()


def test_a_split_expert_is_three_windows_of_one_size(model: ModelFile) -> None:
    """Aligned windows of the padded part and a page, of which the part is needed, wherever it begins."""
    store = SplitSource(model)
    for expert in range(4):
        reads = store.reads(0, expert, page_aligned(store.layout.padded_bytes), 0, 0.0)
        for read, part in zip(reads, model.experts[0][expert], strict=True):
            assert read.offset % PAGE == 0
            assert read.offset <= part.offset < read.offset + PAGE
            assert read.offset + read.n_needed == part.offset + part.n_bytes
            assert read.n_needed <= read.n_bytes == unaligned_request_bytes(part.n_bytes) <= store.buffer_bytes
    store.close()


@pytest.mark.parametrize("name", ["bundle", "split"])
def test_simulator_and_runtime_count_the_same_bytes(tmp_path: Path, name: str) -> None:
    """Bytes requested for an expert equal the layout that the simulator takes from the shapes."""
    model = make_model(tmp_path / "model.gguf")
    store = opened(model) if name == "bundle" else SplitSource(model)
    reads = store.reads(0, 1, page_aligned(store.layout.padded_bytes), 0, 0.0)
    n_bytes = sum(part.n_bytes for part in model.experts[0][1])
    assert store.layout == layout_of_bytes(n_bytes, name)
    assert len(reads) == store.layout.n_requests
    assert sum(read.n_bytes for read in reads) == store.layout.padded_bytes
    store.close()


def test_the_store_lies_beside_the_model(tmp_path: Path) -> None:
    """A name with dots keeps all of them, so two models never share a store."""
    assert default_store_path(tmp_path / "m-v1.5") == tmp_path / "m-v1.5.experts" / "experts.bundle"
    assert default_store_path(tmp_path / "m.gguf") == tmp_path / "m.gguf.experts" / "experts.bundle"


def test_preparing_tells_its_progress_and_leaves_one_file(model: ModelFile) -> None:
    """Bytes rise to the total, which is the file's size; no temporary stays."""
    calls: list[tuple[int, int]] = []
    path = prepare(model, progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (path.stat().st_size, path.stat().st_size)
    assert os.listdir(path.parent) == [path.name]


def test_preparing_again_replaces_the_store_and_makes_the_same_bytes(model: ModelFile) -> None:
    """Deterministic; and an open store is not disturbed."""
    path = prepare(model)
    first, store = path.read_bytes(), open_store(path, model)
    assert prepare(model).read_bytes() == first
    verify(store)
    store.close()


def test_verify_reads_all_and_finds_one_flipped_bit(model: ModelFile) -> None:
    """Also in the padding; the message names layer and expert."""
    path, calls = prepare(model), []
    store = open_store(path, model)
    verify(store, lambda done, total: calls.append((done, total)))
    assert len(calls) == 12
    assert calls[-1][0] == calls[-1][1] == store.all_experts_bytes
    (read,) = store.reads(1, 2, page_aligned(store.layout.padded_bytes), 0, 0.0)
    store.close()
    for at in (read.offset, read.offset + read.n_bytes - 1):
        flip(path, at)
        store = open_store(path, model)
        with pytest.raises(InputError, match=r"layer 1, expert 2: must have its checksum"):
            verify(store)
        store.close()
        flip(path, at)


def flip(path: Path, at: int) -> None:
    """Turn one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def damage(path: Path, how: str) -> None:
    """Make another file of a store."""
    content = bytearray(path.read_bytes())
    magic, version, n_json, crc, first = HEADER.unpack_from(content)
    if how == "foreign":
        content[:4] = b"GGUF"
    elif how == "version":
        HEADER.pack_into(content, 0, magic, version + 1, n_json, crc, first)
    elif how == "header":
        content[HEADER.size + 5] ^= 1
    elif how == "length":
        HEADER.pack_into(content, 0, magic, version, n_json + 2**31, crc, first)
    elif how == "truncated":
        del content[-1:]
    elif how == "half":
        del content[len(content) // 2 :]
    elif how == "stump":
        del content[HEADER.size + 20 :]
    elif how == "empty":
        content.clear()
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("foreign", "must be an expert store, got another kind of file"),
        ("empty", "must be an expert store, got another kind of file"),
        ("version", "must be an expert store of version 1, got version 2"),
        ("header", "wrong checksum"),
        ("length", "must have a whole header"),
        ("stump", "must have a whole header"),
        ("truncated", r"must have \d+ bytes"),
        ("half", r"must have \d+ bytes"),
    ],
)
def test_a_damaged_or_foreign_store_is_refused(model: ModelFile, how: str, says: str) -> None:
    """One line that says what is wrong and to prepare it again."""
    path = prepare(model)
    damage(path, how)
    with pytest.raises(InputError, match=says) as caught:
        open_store(path, model)
    assert "moeplan run --model MODEL --prepare" in str(caught.value)


def test_no_store_is_one_clear_line(model: ModelFile) -> None:
    """It says how to make one."""
    with pytest.raises(InputError, match=r"got no such file; prepare it with moeplan run --model MODEL --prepare"):
        open_store(default_store_path(model.path), model)


def test_a_store_of_another_model_is_refused(model: ModelFile, tmp_path: Path) -> None:
    """Other shapes, and the same shapes with other weights."""
    path = prepare(model)
    with pytest.raises(InputError, match="other shapes or types"):
        open_store(path, make_model(tmp_path / "other.gguf", (Q8_0, Q8_0, F32)))
    with pytest.raises(InputError, match="it is stale"):
        open_store(path, make_model(tmp_path / "third.gguf", (Q4_0, Q8_0, F32), seed=1))


def edit(path: Path, what: str) -> None:
    """Change a model file in a way that size, time or contents tell."""
    content, stat = bytearray(path.read_bytes()), path.stat()
    if what == "size":
        content += b"more"
    if what == "contents":
        content[PAGE * 5] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + (what == "modification time")))


@pytest.mark.parametrize("what", ["size", "contents", "modification time"])
def test_a_stale_store_is_refused(model: ModelFile, what: str) -> None:
    """The model changed after the store was made: one line that says in what."""
    path = prepare(model)
    edit(model.path, "nothing")
    open_store(path, model).close()
    edit(model.path, what)
    with pytest.raises(InputError, match=rf"another {what}|other {what}"):
        open_store(path, model)


def test_the_check_of_the_source_is_quick_for_a_large_file(model: ModelFile, tmp_path: Path) -> None:
    """2 GB, here a file of holes: 65 pages and a MiB are read, not all of it."""
    os.truncate(model.path, 2 * 10**9)
    path = prepare(model, tmp_path / "large.bundle")
    start = time.perf_counter()
    open_store(path, model).close()
    assert time.perf_counter() - start < 1.0  # 0.02 s on an idle machine; reading all takes longer than a second


def test_the_header_can_be_read_by_others(model: ModelFile) -> None:
    """As the module's docstring draws it."""
    content = prepare(model).read_bytes()
    magic, version, n_json, crc, first = HEADER.unpack_from(content)
    text = content[HEADER.size : HEADER.size + n_json]
    assert (magic, version, crc, first % PAGE) == (b"moeplan experts\n", 1, zlib.crc32(text), 0)
    header = json.loads(text)
    assert header["places"][1][2] == ["Q8_0", 128, 96, "columns"]
    expert = content[first : first + 24576]
    assert header["checksums"][0][0] == f"{zlib.crc32(expert):08x}"


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_number_that_is_not_finite_is_refused(model: ModelFile, layer: int) -> None:
    """When prepared, and when an expert arrives from the model file itself; nothing is left behind."""
    part, content = model.experts[layer][3][2], bytearray(model.path.read_bytes())
    nan = np.float32("nan").tobytes() if part.kind is F32 else np.float16("nan").tobytes()
    at = part.offset + 2 * GGML_QUANT_SIZES[GGMLQuantizationType(part.kind)][1]
    content[at : at + len(nan)] = nan
    model.path.write_bytes(content)
    with pytest.raises(InputError, match=rf"down\.{layer}\.3: must hold finite numbers only"):
        prepare(model)
    assert os.listdir(default_store_path(model.path).parent) == []
    store = SplitSource(model)
    with pytest.raises(InputError, match="must hold finite numbers only"):
        read_expert(store, layer, 3)
    store.close()


def test_experts_of_one_layer_must_be_alike(model: ModelFile) -> None:
    """A layer of two types is refused, not read wrongly."""
    first, *rest = model.experts[0]
    odd = replace(model, experts=((first, model.experts[1][1], *rest[1:]), *model.experts[1:]))
    with pytest.raises(InputError, match="layer 0: must have experts of one shape and type"):
        SplitSource(odd)
