"""
Find a model on disk and read its weights: dense ones into memory, experts one by one.

Everything is read with plain reads into private memory and never through a mapping, so that what a process holds is
what it keeps; while loading at most one matrix more.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from moeplan.errors import InputError
from reference_runtime.loading.gguf_model import open_gguf_model
from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.loading.safetensors_weights import open_safetensors
from reference_runtime.matrix import Matrix
from reference_runtime.model import DenseLayer, DenseWeights, Expert, Kernels, Model, Wave

if TYPE_CHECKING:
    from reference_runtime.loading.gguf_weights import Weights

VECTORS = frozenset({"attn_norm", "ffn_norm", "router", "q_norm", "k_norm", "output_norm"})  # float32 in memory
CHECK_BYTES = 1 << 22  # weights are checked in pieces of this size, so that the check needs little memory
# Where in a block the float16 scales stand; of other types the dequantised weights are checked.
_FIRST: tuple[int, ...] = (0,)
SCALE_OFFSETS = {
    GGMLQuantizationType.Q4_0: _FIRST,
    GGMLQuantizationType.Q4_1: (0, 2),
    GGMLQuantizationType.Q5_0: _FIRST,
    GGMLQuantizationType.Q5_1: (0, 2),
    GGMLQuantizationType.Q8_0: _FIRST,
    GGMLQuantizationType.Q4_K: (0, 2),
    GGMLQuantizationType.Q5_K: (0, 2),
    GGMLQuantizationType.Q6_K: (208,),
}
# Bits of an exponent that are all set in NaN and infinity alone.
EXPONENTS = {
    GGMLQuantizationType.F32: (np.uint32, 0x7F800000),
    GGMLQuantizationType.F16: (np.uint16, 0x7C00),
    GGMLQuantizationType.BF16: (np.uint16, 0x7F80),
}
F16_EXPONENT = 0x7C00


def open_model(path: Path) -> ModelFile:
    """
    A GGUF file, one shard of a split one, or a Hugging Face folder with safetensors: config and places, checked.

    No weight is read.  Raises InputError.
    """
    path = Path(path)
    if path.is_dir():
        return open_safetensors(path)
    if path.suffix in (".safetensors", ".json"):
        raise InputError(str(path), "must be a GGUF file or a folder", f"a {path.suffix} file", "give its folder")
    return open_gguf_model(path)


class PartReader:
    """Reads parts of a model's files; a context manager, for the files stay open in between."""

    def __init__(self, model_file: ModelFile) -> None:
        self.model_file = model_file
        self._handles: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def matrix(self, part: Part, pack: bool = False) -> Matrix:
        """A part as the file stores it, or packed as rows where its type can be. Raises InputError; see `read`."""
        data = self.read(part)
        if not pack:
            return Matrix(part.kind, part.shape, data)
        from reference_runtime import packing  # compiles; only where it is used

        wanted = packing.packing_of(part.kind, "rows")
        if wanted == "ggml":
            return Matrix(part.kind, part.shape, data)
        return Matrix(part.kind, part.shape, packing.pack(data, part.kind, part.shape, wanted), wanted)

    def float32(self, part: Part) -> np.ndarray:
        """A part dequantised, float32 (rows, columns). Raises InputError; see `read`."""
        return Matrix(part.kind, part.shape, self.read(part)).float32()

    def read(self, part: Part) -> np.ndarray:
        """
        The bytes of a part, uint8 (n_bytes,), in memory of its own.

        Raises InputError for a failed or short read and for NaN or infinity.
        """
        path = self.model_file.files[part.file]
        data = np.empty(part.n_bytes, np.uint8)
        done = 0
        try:
            if part.file not in self._handles:
                self._handles[part.file] = os.open(path, os.O_RDONLY)
            while done < len(data):
                n_read = os.preadv(self._handles[part.file], [data[done:].data], part.offset + done)
                if n_read == 0:
                    raise InputError(f"{path}: {part.name}", f"must have {len(data)} bytes", done, "did it change?")
                done += n_read
        except OSError as error:
            raise InputError(f"{path}: {part.name}", "must be readable", error.strerror or error) from error
        check_finite(data, part, path)
        return data


def check_finite(data: np.ndarray, part: Part, path: Path) -> None:
    """
    Raises InputError where the bytes of a part, uint8 (n_bytes,), stand for a NaN or an infinity.

    A quantised block is finite where its scales are.
    """
    block_bytes = GGML_QUANT_SIZES[part.kind][1]
    step = CHECK_BYTES // block_bytes * block_bytes
    if not all(_is_finite(data[at : at + step], part.kind, block_bytes) for at in range(0, len(data), step)):
        where = f"{path}: {part.name}"
        raise InputError(where, "must hold finite numbers only", "NaN or infinity", "the file is damaged")


def _is_finite(data: np.ndarray, kind: GGMLQuantizationType, block_bytes: int) -> bool:
    if kind in EXPONENTS:
        integer, exponent = EXPONENTS[kind]
        return not _has_all_bits(data.view(integer), exponent)
    blocks = data.reshape(-1, block_bytes)
    if kind not in SCALE_OFFSETS:
        return bool(np.isfinite(dequantize(blocks, kind)).all())
    scales = (np.ascontiguousarray(blocks[:, at : at + 2]).view(np.uint16) for at in SCALE_OFFSETS[kind])
    return not any(_has_all_bits(scale, F16_EXPONENT) for scale in scales)


def _has_all_bits(values: np.ndarray, bits: int) -> bool:
    return bool(((values & values.dtype.type(bits)) == bits).any())


def load_dense(model_file: ModelFile, pack: bool = False) -> DenseWeights:
    """
    Everything but the routed experts, in memory; with pack Q4_0 and Q8_0 matrices are packed as rows.

    Norms and routers become float32; other matrices stay as the file stores them.  Raises InputError.
    """
    with PartReader(model_file) as reader:

        def load(field: str, part: Part) -> Matrix | np.ndarray:
            if field not in VECTORS:
                return reader.matrix(part, pack)
            array = reader.float32(part)
            return array if field == "router" else array.reshape(-1)

        top = {field: load(field, part) for field, part in model_file.top.items()}
        layers = tuple(
            DenseLayer(**{field: load(field, part) for field, part in parts.items()})  # type: ignore[arg-type]
            for parts in model_file.layers
        )
    return DenseWeights(layers=layers, **({"output": top["token_embd"]} | top))  # type: ignore[arg-type]


def load_expert(model_file: ModelFile, layer: int, expert: int) -> Expert:
    """One expert as the file stores it. Raises InputError."""
    with PartReader(model_file) as reader:
        return Expert(*(reader.matrix(part) for part in model_file.experts[layer][expert]))


class ResidentExperts:
    """All experts in memory: an ExpertSource that never waits."""

    def __init__(self, experts: Sequence[Sequence[Expert]]) -> None:
        self.experts = experts  # [layer][expert]

    @classmethod
    def read(cls, model_file: ModelFile) -> Self:
        """All experts of a model as the file stores them. Raises InputError."""
        with PartReader(model_file) as reader:
            return cls([[Expert(*map(reader.matrix, parts)) for parts in layer] for layer in model_file.experts])

    def request(self, layer: int, row: Sequence[int]) -> None:
        """Nothing to fetch."""

    def waves(self, layer: int, row: Sequence[int]) -> Iterator[Wave]:
        """The row's experts, all at once."""
        yield [(expert, self.experts[layer][expert]) for expert in row]


def model_of(weights: "Weights", kernels: Kernels) -> Model:
    """A model that runs on float32 arrays, which it shares and does not copy."""
    token_embd = Matrix.of(weights.token_embd)
    layers = tuple(
        DenseLayer(
            attn_norm=layer.attn_norm,
            q=Matrix.of(layer.q),
            k=Matrix.of(layer.k),
            v=Matrix.of(layer.v),
            o=Matrix.of(layer.o),
            ffn_norm=layer.ffn_norm,
            router=layer.router,
        )
        for layer in weights.layers
    )
    experts = [
        [Expert(*map(Matrix.of, matrices)) for matrices in zip(layer.gate, layer.up, layer.down, strict=True)]
        for layer in weights.layers
    ]
    output = token_embd if weights.is_tied else Matrix.of(weights.output)
    dense = DenseWeights(token_embd, layers, weights.output_norm, output)
    return Model(weights.config, dense, ResidentExperts(experts), kernels)
