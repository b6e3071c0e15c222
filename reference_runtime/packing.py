"""
Q4_0 and Q8_0 matrices in the order that the fast kernels read: a permutation of the file's bits, not one byte more.

GGUF keeps blocks of 32 weights of a row: a float16 scale, then for Q4_0 16 bytes (weight i in the low, weight 16 + i in
the high nibble of byte i, worth scale * (nibble - 8)), for Q8_0 32 int8.

    "rows"     all quants, row by row, in the same order within a block; then the scales (rows, columns / 32)
    "columns"  all quants, column by column: (columns, rows) for Q8_0; for Q4_0 (columns, rows / 2) where byte
               16 * g + i holds row 32 * g + i in the low and row 32 * g + 16 + i in the high nibble;
               then the scales (columns / 32, rows)

"columns" is for the down matrix, whose column is a neuron: a neuron that is shut is a run of bytes nobody reads.
"""

import numba
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from moeplan.errors import InputError
from reference_runtime.kernels.fast_vectors import copy_bytes, copy_half, transpose_bytes, transpose_nibbles
from reference_runtime.matrix import BLOCK, Packing, matrix_bytes

Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0
PACKED_KINDS = frozenset({Q4_0, Q8_0})
_SCALE = 2  # bytes


def packing_of(kind: GGMLQuantizationType, wanted: Packing) -> Packing:
    """The packing that a matrix of a kind gets where `wanted` is asked for: kinds that we do not pack stay "ggml"."""
    return wanted if kind in PACKED_KINDS else "ggml"


def pack(data: np.ndarray, kind: GGMLQuantizationType, shape: tuple[int, int], packing: Packing) -> np.ndarray:
    """The GGUF blocks of a matrix (rows, columns), any uint8 array, as uint8 (n_bytes,); raises as pack_into."""
    target = np.empty(data.size, np.uint8)
    pack_into(data, target, kind, shape, packing)
    return target


def pack_into(
    source: np.ndarray, target: np.ndarray, kind: GGMLQuantizationType, shape: tuple[int, int], packing: Packing
) -> None:
    """
    Pack the GGUF blocks of a matrix (rows, columns) into memory of the same size: uint8, contiguous, not overlapping.

    Sequential, releases the GIL, allocates nothing: reader threads call it.  Raises InputError for a kind that has no
    such packing, for arrays of another size than the shape's and for "columns" where the rows are no multiple of 32.
    """
    _check(kind, shape, packing)
    for name, array in (("source", source), ("target", target)):
        if array.nbytes != matrix_bytes(kind, *shape) or not array.flags.c_contiguous:
            must = f"must be {matrix_bytes(kind, *shape)} contiguous bytes for {kind.name} {shape}"
            raise InputError(f"pack {name}", must, f"{array.nbytes}, strides {array.strides}")
    if packing == "ggml":
        np.copyto(target.reshape(-1), source.reshape(-1))
        return
    rows, columns = shape
    arrange = _pack_rows if packing == "rows" else _pack_columns
    arrange(source.ctypes.data, target.ctypes.data, rows, columns // BLOCK, _quant_bytes(kind))


def unpack(data: np.ndarray, kind: GGMLQuantizationType, shape: tuple[int, int], packing: Packing) -> np.ndarray:
    """The GGUF blocks, uint8 (n_bytes,), of a packed matrix (rows, columns); the inverse of pack, raises as it does."""
    _check(kind, shape, packing)
    if packing == "ggml":
        return data
    rows, columns = shape
    n_blocks, width = columns // BLOCK, _quant_bytes(kind)
    n_quants = rows * n_blocks * width
    quants, scales = data[:n_quants], data[n_quants:]
    if packing == "rows":
        return _blocks(quants.reshape(rows, n_blocks, width), scales.reshape(rows, n_blocks, _SCALE)).reshape(-1)
    if kind is Q4_0:
        quants = _join(_split(quants.reshape(columns, rows // BLOCK, width)).reshape(columns, rows).T)
    else:
        quants = quants.reshape(columns, rows).T
    scales = scales.reshape(n_blocks, rows, _SCALE).transpose(1, 0, 2)
    return _blocks(quants.reshape(rows, n_blocks, width), scales).reshape(-1)


def unpack_rows(data: np.ndarray, kind: GGMLQuantizationType, shape: tuple[int, int], ids: np.ndarray) -> np.ndarray:
    """The GGUF blocks of some rows of a matrix packed by "rows": uint8 (n, bytes of a row)."""
    rows, columns = shape
    n_blocks, width = columns // BLOCK, _quant_bytes(kind)
    n_quants = rows * n_blocks * width
    quants = data[:n_quants].reshape(rows, n_blocks, width)
    return _blocks(quants[ids], data[n_quants:].reshape(rows, n_blocks, _SCALE)[ids])


def warm_up() -> None:
    """Compile what pack_into calls, or load it from numba's cache: seconds once, later milliseconds."""
    for kind in (Q4_0, Q8_0):
        data = np.zeros(matrix_bytes(kind, BLOCK, BLOCK), np.uint8)
        for packing in ("rows", "columns"):
            pack(data, kind, (BLOCK, BLOCK), packing)


def _check(kind: GGMLQuantizationType, shape: tuple[int, int], packing: Packing) -> None:
    if packing != "ggml" and kind not in PACKED_KINDS:
        raise InputError("packing", "must be of Q4_0 or Q8_0", kind.name, 'other kinds stay "ggml"')
    if packing == "columns" and shape[0] % BLOCK:
        raise InputError("packing by columns", f"must be of a multiple of {BLOCK} rows", shape[0])


def _quant_bytes(kind: GGMLQuantizationType) -> int:
    return GGML_QUANT_SIZES[kind][1] - _SCALE


def _blocks(quants: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Scale and quants side by side: (rows, n_blocks, width), (rows, n_blocks, 2) -> (rows, bytes of a row)."""
    return np.concatenate([scales, quants], axis=2).reshape(len(quants), -1)


def _split(pairs: np.ndarray) -> np.ndarray:
    """Bytes (..., 16) -> nibbles (..., 32)."""
    return np.concatenate([pairs & 15, pairs >> 4], axis=-1)


def _join(nibbles: np.ndarray) -> np.ndarray:
    """Nibbles (rows, columns) -> bytes (rows, columns / 32, 16)."""
    halves = nibbles.reshape(len(nibbles), -1, 2, BLOCK // 2)
    return halves[:, :, 0] | (halves[:, :, 1] << 4)


@numba.njit(cache=True, nogil=True)
def _pack_rows(source, target, n_rows, n_blocks, width):  # type: ignore[no-untyped-def]
    """width: bytes of a block's quants; source and target are addresses."""
    scales = target + n_rows * n_blocks * width
    for block in range(n_rows * n_blocks):
        at = source + block * (width + 2)
        copy_half(at, scales + block * 2)
        for i in range(0, width, 16):
            copy_bytes(at + 2 + i, target + block * width + i)


@numba.njit(cache=True, nogil=True)
def _pack_columns(source, target, n_rows, n_blocks, width):  # type: ignore[no-untyped-def]
    """As _pack_rows."""
    stride = n_blocks * (width + 2)  # of the source
    scales = target + n_rows * n_blocks * width
    for block in range(n_blocks):
        for row in range(0, n_rows, 32):
            at = source + row * stride + block * (width + 2)
            for i in range(32):
                copy_half(at + i * stride, scales + (block * n_rows + row + i) * 2)
            if width == 16:
                transpose_nibbles(at + 2, stride, target + (block * 32 * n_rows + row) // 2, n_rows // 2)
                continue
            for half in range(0, 32, 16):
                for side in range(0, 32, 16):
                    to = target + (block * 32 + side) * n_rows + row + half
                    transpose_bytes(at + 2 + half * stride + side, stride, to, n_rows)
