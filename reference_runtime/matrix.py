"""A weight matrix as a file stores it, or packed for the fast kernels: the same bits in another order."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

Packing = Literal["ggml", "rows", "columns"]
BLOCK = 32  # weights that share a scale in Q4_0 and Q8_0


@dataclass(frozen=True, eq=False)
class Matrix:
    """
    A matrix of shape (rows, columns); y = x @ matrix.T takes (n, columns) to (n, rows).

    data: uint8 (n_bytes,), one contiguous run.  packing "ggml": rows of the blocks that GGUF stores, any type.
    "rows" and "columns" (Q4_0 and Q8_0 only) hold the same quants and scales in another order; see packing.py.
    """

    kind: GGMLQuantizationType
    shape: tuple[int, int]
    data: np.ndarray
    packing: Packing = "ggml"

    @staticmethod
    def of(array: np.ndarray) -> "Matrix":
        """A float32 matrix without a copy where the array is contiguous."""
        array = np.ascontiguousarray(array, dtype=np.float32)
        rows, columns = array.shape
        return Matrix(GGMLQuantizationType.F32, (rows, columns), array.reshape(-1).view(np.uint8))

    def float32(self) -> np.ndarray:
        """All weights, float32 (rows, columns); a view of the data where it is float32 already."""
        if self.kind is GGMLQuantizationType.F32:
            return self.data.view(np.float32).reshape(self.shape)
        return dequantize(self._ggml().reshape(self.shape[0], -1), self.kind).reshape(self.shape)

    def float32_rows(self, ids: np.ndarray) -> np.ndarray:
        """Some rows, float32 (n, columns): an embedding look-up; packing "ggml" or "rows"."""
        if self.kind is GGMLQuantizationType.F32:
            return self.data.view(np.float32).reshape(self.shape)[ids]
        if self.packing == "ggml":
            return dequantize(self.data.reshape(self.shape[0], -1)[ids], self.kind).reshape(len(ids), -1)
        from reference_runtime.packing import unpack_rows

        blocks = unpack_rows(self.data, self.kind, self.shape, ids)
        return dequantize(blocks, self.kind).reshape(len(ids), -1)

    def _ggml(self) -> np.ndarray:
        if self.packing == "ggml":
            return self.data
        from reference_runtime.packing import unpack

        return unpack(self.data, self.kind, self.shape, self.packing)


def matrix_bytes(kind: GGMLQuantizationType, rows: int, columns: int) -> int:
    """Bytes of a matrix in a file; columns must be a multiple of the type's block."""
    block, size = GGML_QUANT_SIZES[kind]
    return rows * (columns // block) * size
