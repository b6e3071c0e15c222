"""
Just enough of ggml for timing its kernels: tensors with data, graphs of operations, turns of a graph.

The shared libraries are the ones that llama-cpp-python ships, so the kernels are those that llama.cpp runs.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from itertools import cycle
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from parity.undisturbed import repeated

Tensor = int  # the address of a ggml_tensor

F32, F16, Q4_0, Q8_0, I32, I64 = 0, 1, 2, 8, 26, 27  # enum ggml_type
TYPES = {"f32": F32, "f16": F16, "q4_0": Q4_0, "q8_0": Q8_0}
BLOCK_VALUES = 32
ROPE_NEOX = 2
META_BYTES = 2**25  # of tensors and graphs, without their data
SLOT_ROWS = 256

_LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
_BASE, _CPU = (ctypes.CDLL(str(_LIBRARIES / f"libggml-{part}.so")) for part in ("base", "cpu"))
_REPACK = "_Z35ggml_backend_cpu_repack_buffer_typev"  # ggml_backend_cpu_repack_buffer_type() as C++ names it


class _Init(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


def _declare(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


_P, _I = c_void_p, c_int64
_INIT = _declare(_BASE, "ggml_init", _P, _Init)
_FREE = _declare(_BASE, "ggml_free", None, _P)
_NEW = _declare(_BASE, "ggml_new_tensor_4d", _P, _P, c_int, _I, _I, _I, _I)
_GRAPH = _declare(_BASE, "ggml_new_graph_custom", _P, _P, c_size_t, c_bool)
_EXPAND = _declare(_BASE, "ggml_build_forward_expand", None, _P, _P)
_ALLOCATE = _declare(_BASE, "ggml_backend_alloc_ctx_tensors_from_buft", _P, _P, _P)
_FREE_BUFFER = _declare(_BASE, "ggml_backend_buffer_free", None, _P)
_PLAN_NEW = _declare(_BASE, "ggml_gallocr_new", _P, _P)
_PLAN = _declare(_BASE, "ggml_gallocr_alloc_graph", c_bool, _P, _P)
_PLAN_FREE = _declare(_BASE, "ggml_gallocr_free", None, _P)
_SET = _declare(_BASE, "ggml_backend_tensor_set", None, _P, _P, c_size_t, c_size_t)
_N_BYTES = _declare(_BASE, "ggml_nbytes", c_size_t, _P)
_QUANTIZE = _declare(_BASE, "ggml_quantize_chunk", c_size_t, c_int, _P, _P, _I, _I, _I, _P)
_COMPUTE = _declare(_BASE, "ggml_backend_graph_compute", c_int, _P, _P)
_BACKEND = _declare(_CPU, "ggml_backend_cpu_init", _P)()
_THREADS = _declare(_CPU, "ggml_backend_cpu_set_n_threads", None, _P, c_int)
PLAIN_BUFFER = _declare(_BASE, "ggml_backend_cpu_buffer_type", _P)()
REPACK_BUFFER = _declare(_CPU, _REPACK, _P)()

_OPS: dict[str, tuple[Any, ...]] = {  # name -> argument types after the context
    "mul_mat": (_P, _P),
    "mul_mat_id": (_P, _P, _P),
    "add": (_P, _P),
    "mul": (_P, _P),
    "div": (_P, _P),
    "rms_norm": (_P, c_float),
    "sigmoid": (_P,),
    "argsort_top_k": (_P, c_int),
    "get_rows": (_P, _P),
    "set_rows": (_P, _P, _P),
    "sum_rows": (_P,),
    "clamp": (_P, c_float, c_float),
    "reglu_split": (_P, _P),
    "soft_max_ext": (_P, _P, c_float, c_float),
    "cont_2d": (_P, _I, _I),
    "permute": (_P, c_int, c_int, c_int, c_int),
    "reshape_2d": (_P, _I, _I),
    "reshape_3d": (_P, _I, _I, _I),
    "view_2d": (_P, _I, _I, c_size_t, c_size_t),
    "view_3d": (_P, _I, _I, _I, c_size_t, c_size_t, c_size_t),
    "rope_ext": (_P, _P, _P, c_int, c_int, c_int, *[c_float] * 6),
}
_CALLS = {name: _declare(_BASE, f"ggml_{name}", _P, _P, *arguments) for name, arguments in _OPS.items()}


class Tensors:
    """Tensors with data in one buffer; repack: weights in the order that llama.cpp gives them for speed."""

    def __init__(self, repack: bool = False) -> None:
        self._context = _INIT(_Init(META_BYTES, None, True))
        self._buffer_type, self._buffer = REPACK_BUFFER if repack else PLAIN_BUFFER, None
        self._random = np.random.default_rng(0)
        self._values: dict[Tensor, np.ndarray | str] = {}

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *_: object) -> None:
        if self._buffer:
            _FREE_BUFFER(self._buffer)
        _FREE(self._context)

    def random(self, type_name: str, *shape: int) -> Tensor:
        """Normal values, innermost dimension first."""
        tensor = self._new(TYPES[type_name], shape)
        self._values[tensor] = type_name
        return tensor

    def filled(self, values: np.ndarray) -> Tensor:
        """Integers or floats as given, of ggml's dimensions reversed."""
        kind = {"int32": I32, "int64": I64, "float32": F32}[values.dtype.name]
        tensor = self._new(kind, values.shape[::-1])
        self._values[tensor] = np.ascontiguousarray(values)
        return tensor

    def allocate(self) -> None:
        """Give every tensor its memory and its values."""
        self._buffer = _ALLOCATE(self._context, self._buffer_type)
        assert self._buffer
        for tensor, values in self._values.items():
            data = self._quantized(values, _N_BYTES(tensor)) if isinstance(values, str) else values
            _SET(tensor, data.ctypes.data, 0, data.nbytes)

    def _new(self, kind: int, shape: tuple[int, ...]) -> Tensor:
        return int(_NEW(self._context, kind, *shape, *[1] * (4 - len(shape))))

    def _quantized(self, type_name: str, n_bytes: int) -> np.ndarray:
        """Blocks of one small random matrix, over and over."""
        values = self._random.standard_normal(BLOCK_VALUES * SLOT_ROWS).astype(np.float32)
        if type_name in ("f32", "f16"):
            blocks = values.astype({"f32": np.float32, "f16": np.float16}[type_name]).view(np.uint8)
        else:
            blocks = np.zeros(4 * values.size, np.uint8)
            size = _QUANTIZE(TYPES[type_name], values.ctypes.data, blocks.ctypes.data, 0, SLOT_ROWS, BLOCK_VALUES, None)
            blocks = blocks[:size]
        return np.resize(blocks, n_bytes)


class Graph:
    """Operations on tensors; outputs share a buffer as in llama.cpp, where what is used up is written over."""

    def __init__(self, n_nodes: int) -> None:
        self._context = _INIT(_Init(META_BYTES, None, True))
        self._graph = _GRAPH(self._context, n_nodes, False)
        self._outputs = None

    def __enter__(self) -> "Graph":
        return self

    def __exit__(self, *_: object) -> None:
        if self._outputs:
            _PLAN_FREE(self._outputs)
        _FREE(self._context)

    def __getattr__(self, name: str) -> Any:
        """ggml's functions by name, without the context."""
        call = _CALLS[name]
        return lambda *arguments: call(self._context, *arguments)

    def run_last(self, tensor: Tensor) -> Tensor:
        """Make an operation, and what it needs, part of the graph."""
        _EXPAND(self._graph, tensor)
        return tensor

    def run(self, n_threads: int) -> None:
        """All of it, once."""
        if self._outputs is None:
            self._outputs = _PLAN_NEW(PLAIN_BUFFER)
            assert _PLAN(self._outputs, self._graph)
        _THREADS(_BACKEND, n_threads)
        assert _COMPUTE(_BACKEND, self._graph) == 0


def turn(graphs: Sequence[Graph], n_threads: int) -> list[float]:
    """Seconds of single graphs, one after the other, round and round."""
    for graph in graphs:
        graph.run(n_threads)
    following = cycle(graphs)
    return repeated(lambda: next(following).run(n_threads))
