"""
What llama.cpp does to activations before it multiplies them with a quantised matrix, in numpy.

It turns each 32 of them into Q8_0: signed bytes with a float16 scale, so that the products are of integers
(quantize_row_q8_0 in ggml-cpu).  With the same rounding here, what is left of the difference is the order of sums,
and the few activations that this order moves across the border between two bytes.
"""

import numpy as np
from gguf import GGMLQuantizationType

from reference_runtime.kernels.plain import PlainKernels
from reference_runtime.matrix import BLOCK, Matrix

ROUNDING_KINDS = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0)


def rounded(x: np.ndarray) -> np.ndarray:
    """
    x through Q8_0 and back, float32 of the same shape (n, columns).

        d = max |x| / 127 of a block; q = round(x * 127 / max |x|); the result is q * float16(d)
    """
    blocks = x.reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    scale = (largest / np.float32(127)).astype(np.float16).astype(np.float32)
    return (np.rint(blocks * inverse) * scale).reshape(x.shape)


class RoundedActivations(PlainKernels):
    """The plain kernels behind llama.cpp's rounding of activations: z, and what goes into a down matrix, too."""

    def matmul(self, x: np.ndarray, matrix: Matrix) -> np.ndarray:
        """See Kernels; x is rounded where the matrix is Q4_0 or Q8_0."""
        return super().matmul(rounded(x) if matrix.kind in ROUNDING_KINDS else x, matrix)
