"""The header of a GGUF: cheap however large the vocabulary, exact about places, one line for what is damaged."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from moeplan.errors import InputError
from simulator.model.imports.gguf_header import CHUNK_BYTES, MAX_HEADER_BYTES, read_header
from simulator.model.imports.gguf_split import describe_files, read_split, shard_paths

N_TOKENS = 60_000


def written(path: Path, tokens: list[str], shapes: tuple[tuple[int, ...], ...] = ()) -> Path:
    """A file with a vocabulary, a list of numbers as long, and tensors t0, t1, ... of F32 zeros."""
    writer = GGUFWriter(path, "smallthinker")
    writer.add_token_list(tokens)
    writer.add_token_types(list(range(len(tokens))))
    writer.add_float32("smallthinker.epsilon", 1e-6)
    for i, shape in enumerate(shapes):
        writer.add_tensor(f"t{i}", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two tensors, the first of 20 bytes, so that the second lies behind padding."""
    return written(tmp_path / "small.gguf", ["a", "b"], ((5,), (3, 4)))


def test_a_large_vocabulary_costs_the_bytes_of_its_lists(tmp_path: Path) -> None:
    """
    Reading keeps the header's bytes and makes no object per token; a list is decoded when it is asked for.

    The strings alone would be three times the header's bytes; through the `gguf` package's own reader 60,000 tokens are
    540,000 arrays.
    """
    tokens = [f"token {i} \u00e9" for i in range(N_TOKENS)]
    path = written(tmp_path / "m.gguf", tokens)
    tracemalloc.start()
    try:
        header = read_header(path, whole=True)
        kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1.2 * path.stat().st_size + 100_000
    assert peak_bytes < kept_bytes + 2 * CHUNK_BYTES
    assert not any(isinstance(value, list) for value in header.keys.values())
    assert header.value("tokenizer.ggml.tokens", list) == tokens
    assert header.value("tokenizer.ggml.token_type", list) == list(range(N_TOKENS))
    assert header.value("smallthinker.epsilon", float) == 1e-6


def test_places_are_those_of_the_gguf_package(small: Path) -> None:
    """Offsets count from the file's start, shapes stand in numpy's order."""
    ours = [(t.info.name, t.info.shape, t.offset) for t in read_header(small, whole=True).tensors.values()]
    theirs = [(t.name, tuple(map(int, reversed(t.shape))), t.data_offset) for t in GGUFReader(small).tensors]
    assert ours == theirs
    assert ours[1][2] - ours[0][2] == 32


def test_only_a_reader_of_weights_needs_the_weights(small: Path) -> None:
    """A file that ends a byte too early is refused as a whole one; its header is read, and the report says the byte."""
    content, end = small.read_bytes(), read_header(small, whole=True).tensors["t1"].end
    small.write_bytes(content[: end - 1])
    with pytest.raises(InputError, match=f"must be a whole GGUF file, got the file ends at byte {end - 1}, tensor t1"):
        read_header(small, whole=True)
    assert describe_files(*read_split(small, whole=False)) == [
        "weights: small.gguf lacks 1 bytes of its tensors; the header is enough for a spec"
    ]
    small.write_bytes(content[:end])  # the padding behind the last tensor is none of it
    assert describe_files(*read_split(small, whole=True)) == []


def test_a_tensor_off_the_alignment_is_one_line(small: Path) -> None:
    """The offset of t1 is the last of its numbers: 32 changed to 33 is refused with and without weights."""
    content = small.read_bytes()
    at = content.index(b"\2\0\0\0\0\0\0\0t1") + 8 + 2 + 4 + 2 * 8 + 4
    assert content[at : at + 8] == struct.pack("<Q", 32)
    small.write_bytes(content[:at] + struct.pack("<Q", 33) + content[at + 8 :])
    for whole in (True, False):
        with pytest.raises(InputError, match="tensor t1 is not aligned to 32 bytes"):
            read_header(small, whole=whole)


def test_a_damaged_length_reads_no_gigabytes(tmp_path: Path) -> None:
    """A text as long as a large file is refused before a byte of it is read."""
    path = tmp_path / "large.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, MAX_HEADER_BYTES))
    with path.open("r+b") as file:
        file.truncate(2 * MAX_HEADER_BYTES)  # sparse: takes no room
    with pytest.raises(InputError, match=f"reaches beyond {MAX_HEADER_BYTES} bytes of header"):
        read_header(path, whole=False)


def test_a_name_of_no_shards_is_a_plain_name(tmp_path: Path) -> None:
    """NAME-00001-of-00000 counts nothing: the file is read alone."""
    path = tmp_path / "m-00001-of-00000.gguf"
    assert shard_paths(path) == [path]
