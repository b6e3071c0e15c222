"""The fast kernels work on addresses: what lies behind weights, keys and values must never be touched."""

import os
import subprocess
import sys

import pytest

GUARDED = """
import ctypes
import mmap
import numpy as np
from gguf.quants import quantize
from reference_runtime.kernels import plain
from reference_runtime.kernels.fast import MOST_THREADS, FastKernels
from reference_runtime.matrix import Matrix
from reference_runtime.model import Expert
from reference_runtime.packing import PACKED_KINDS, pack

PAGE, kept, rng = mmap.PAGESIZE, [], np.random.default_rng(0)
mprotect = ctypes.CDLL(None, use_errno=True).mprotect

def at_the_end(array):  # a copy; the byte behind its last one belongs to a page that nobody may touch
    n = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, n + PAGE)
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert mprotect(ctypes.c_void_p(start + n), ctypes.c_size_t(PAGE), 0) == 0
    copy = np.frombuffer(memory, np.uint8, array.nbytes, n - array.nbytes)
    copy[:] = array.reshape(-1).view(np.uint8)
    return copy.view(array.dtype).reshape(array.shape)

def matrix(kind, shape, packing):
    blocks = quantize(rng.standard_normal(shape, np.float32), kind).reshape(-1).view(np.uint8)
    return Matrix(kind, shape, at_the_end(pack(blocks, kind, shape, packing)), packing)

def near(found, expected):
    return np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)

for n_threads in {1, min(3, MOST_THREADS)}:
    kernels = FastKernels(n_threads)
    for kind in PACKED_KINDS:
        for shape, packing in (((35, 96), "rows"), ((2, 32), "rows"), ((64, 96), "columns")):
            weights = matrix(kind, shape, packing)
            for n in (0, 1, 9, 19, 40):
                x = rng.standard_normal((n, shape[1]), np.float32)
                assert kernels.matmul(x, weights).shape == (n, shape[0])
                assert not n or near(kernels.matmul(x, weights), x @ weights.float32().T), (shape, n)
        expert = Expert(*(matrix(kind, *which) for which in (((96, 64), "rows"),) * 2 + (((64, 96), "columns"),)))
        for n in (1, 2, 9, 33):
            z, ids, share = rng.standard_normal((n, 64), np.float32), np.zeros((n, 1), int), np.ones((n, 1), np.float32)
            found, expected = np.zeros_like(z), np.zeros_like(z)
            kernels.add_experts(found, z, [(0, expert)], ids, share, "relu")
            plain.PlainKernels().add_experts(expected, z, [(0, expert)], ids, share, "relu")
            assert near(found, expected), n
    for n, n_keys, dim, window in ((1, 7, 32, None), (2, 5, 64, 2), (17, 18, 32, None), (33, 99, 96, 30)):
        q = rng.standard_normal((n, 4, dim), np.float32)
        keys, values = (at_the_end(rng.standard_normal((2, n_keys, dim), np.float32)) for _ in range(2))
        arguments = q, keys, values, np.arange(n_keys - n, n_keys), window
        assert near(kernels.attend(*arguments), plain.attend(*arguments)), (n, n_keys, dim, window)
print("nothing was touched")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect is called as Linux has it")
def test_nothing_behind_the_arrays_is_touched() -> None:
    """Products, experts and attention of one token and of several, whose last byte is the last before a closed page."""
    run = subprocess.run([sys.executable, "-c", GUARDED], env=os.environ, capture_output=True, text=True, timeout=300)
    assert (run.stdout, run.returncode) == ("nothing was touched\n", 0), run.stderr
