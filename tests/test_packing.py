"""Packed matrices: the same bits in another order, and back."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from reference_runtime.matrix import Matrix, matrix_bytes
from reference_runtime.packing import PACKED_KINDS, Q4_0, Q8_0, pack, pack_into, packing_of, unpack, unpack_rows

KINDS = st.sampled_from(sorted(PACKED_KINDS))


def random_blocks(kind: GGMLQuantizationType, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Any bytes are blocks of Q4_0 or Q8_0; some of the scales are NaN or infinite."""
    return np.random.default_rng(seed).integers(0, 256, matrix_bytes(kind, *shape), np.uint8)


@settings(deadline=None, max_examples=40)
@given(KINDS, st.sampled_from(["ggml", "rows", "columns"]), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_packing_is_lossless(kind: GGMLQuantizationType, packing: str, rows: int, columns: int, seed: int) -> None:
    """unpack(pack(x)) is x, bit by bit, and pack neither adds a byte nor loses one."""
    shape = (32 * rows, 32 * columns)
    blocks = random_blocks(kind, shape, seed)
    packed = pack(blocks, kind, shape, packing)
    assert packed.nbytes == blocks.nbytes
    np.testing.assert_array_equal(unpack(packed, kind, shape, packing), blocks)


@settings(deadline=None, max_examples=20)
@given(KINDS, st.integers(1, 70), st.integers(1, 5))
def test_rows_may_be_any_number_by_rows(kind: GGMLQuantizationType, rows: int, columns: int) -> None:
    """Packing by rows asks nothing of the number of rows."""
    shape = (rows, 32 * columns)
    blocks = random_blocks(kind, shape)
    np.testing.assert_array_equal(unpack(pack(blocks, kind, shape, "rows"), kind, shape, "rows"), blocks)


@pytest.mark.parametrize("kind", sorted(PACKED_KINDS))
def test_order_by_rows(kind: GGMLQuantizationType) -> None:
    """By rows: all quants in the file's order, then all scales in the file's order."""
    blocks = random_blocks(kind, (3, 64)).reshape(6, -1)
    packed = pack(blocks, kind, (3, 64), "rows")
    np.testing.assert_array_equal(packed, np.concatenate([blocks[:, 2:].ravel(), blocks[:, :2].ravel()]))


def test_order_of_q8_0_by_columns() -> None:
    """By columns, Q8_0: the int8 of column 0 over all rows, column 1, ...; then the scales block by block."""
    blocks = random_blocks(Q8_0, (64, 96)).reshape(64, 3, 34)
    packed = pack(blocks, Q8_0, (64, 96), "columns")
    quants = blocks[:, :, 2:].reshape(64, 96)
    scales = blocks[:, :, :2].transpose(1, 0, 2)
    np.testing.assert_array_equal(packed, np.concatenate([quants.T.ravel(), scales.ravel()]))


def test_order_of_q4_0_by_columns() -> None:
    """By columns, Q4_0: byte 16 g + i of a column holds its row 32 g + i (low) and row 32 g + 16 + i (high)."""
    shape = (96, 64)
    blocks = random_blocks(Q4_0, shape).reshape(96, 2, 18)
    packed = pack(blocks, Q4_0, shape, "columns")
    for row, column in [(0, 0), (15, 31), (16, 0), (31, 16), (32, 15), (50, 33), (95, 63)]:
        byte = blocks[row, column // 32, 2 + column % 16]
        expected = byte & 15 if column % 32 < 16 else byte >> 4
        found = packed[column * 48 + row // 32 * 16 + row % 16]
        assert (found & 15 if row % 32 < 16 else found >> 4) == expected
    np.testing.assert_array_equal(packed[96 * 32 :], blocks[:, :, :2].transpose(1, 0, 2).ravel())


@pytest.mark.parametrize("kind", sorted(PACKED_KINDS))
def test_rows_are_looked_up_without_the_others(kind: GGMLQuantizationType) -> None:
    """unpack_rows gives the file's blocks of the rows asked for; Matrix.float32_rows gives their values."""
    blocks = random_blocks(kind, (50, 64)).reshape(50, -1)
    blocks.reshape(50, 2, -1)[:, :, :2] = np.float16(0.5).tobytes()[0], np.float16(0.5).tobytes()[1]
    ids = np.array([49, 0, 7, 7])
    packed = pack(blocks, kind, (50, 64), "rows")
    np.testing.assert_array_equal(unpack_rows(packed, kind, (50, 64), ids), blocks[ids])
    found = Matrix(kind, (50, 64), packed, "rows").float32_rows(ids)
    np.testing.assert_array_equal(found, dequantize(blocks[ids], kind))


def test_packing_into_a_part_of_a_buffer_touches_nothing_else() -> None:
    """pack_into fills its target, at any alignment, and not a byte before or behind it."""
    shape = (64, 64)
    for kind in sorted(PACKED_KINDS):
        blocks = random_blocks(kind, shape)
        buffer = np.full(blocks.size + 128, 7, np.uint8)
        for packing in ("rows", "columns"):
            pack_into(blocks, buffer[61 : 61 + blocks.size], kind, shape, packing)
            np.testing.assert_array_equal(buffer[61 : 61 + blocks.size], pack(blocks, kind, shape, packing))
            assert (buffer[:61] == 7).all()
            assert (buffer[61 + blocks.size :] == 7).all()


def test_kinds_that_stay_as_they_are() -> None:
    """Only Q4_0 and Q8_0 are packed."""
    assert packing_of(Q4_0, "rows") == "rows"
    assert packing_of(Q8_0, "columns") == "columns"
    assert packing_of(GGMLQuantizationType.Q4_K, "rows") == "ggml"
    assert packing_of(GGMLQuantizationType.F32, "columns") == "ggml"


def test_what_cannot_be_packed_is_refused() -> None:
    """Another kind, rows that are no multiple of 32 by columns, and memory of a wrong size: one line each."""
    with pytest.raises(InputError, match="Q4_0 or Q8_0"):
        pack(np.zeros(4096, np.uint8), GGMLQuantizationType.F32, (32, 32), "rows")
    with pytest.raises(InputError, match="multiple of 32 rows"):
        pack(random_blocks(Q8_0, (33, 32)), Q8_0, (33, 32), "columns")
    with pytest.raises(InputError, match="pack source"):
        pack(random_blocks(Q8_0, (32, 32))[:-1], Q8_0, (32, 32), "rows")
    with pytest.raises(InputError, match="pack target"):
        pack_into(random_blocks(Q8_0, (32, 32)), np.zeros(8, np.uint8), Q8_0, (32, 32), "rows")
