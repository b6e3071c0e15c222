"""
Write a GGUF tensor by tensor and each tensor piece by piece, so that a file may be far larger than the memory.

The header goes first: names, shapes and types of all tensors are known before the first weight is made.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
)
from gguf.quants import dequantize, quantize

from moeplan.errors import InputError
from moeplan.files import atomic_path, output_target
from moeplan.progress import OnProgress
from moeplan.quantity import format_bytes
from reference_runtime.loading.gguf_weights import ARCHITECTURE, open_gguf
from reference_runtime.matrix import matrix_bytes
from reference_runtime.model_config import ModelConfig

ALIGNMENT = 32  # bytes; GGUF's default, tensors begin at multiples of it
F32 = GGMLQuantizationType.F32
FILE_TYPES = {
    F32: LlamaFileType.ALL_F32,
    GGMLQuantizationType.F16: LlamaFileType.MOSTLY_F16,
    GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
    GGMLQuantizationType.Q4_0: LlamaFileType.MOSTLY_Q4_0,
}


class TensorPlan(NamedTuple):
    """A tensor to be written: numpy's order of axes, the fastest last."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType

    @property
    def n_bytes(self) -> int:
        """Bytes in the file, padding left out."""
        n_rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return matrix_bytes(self.kind, n_rows, self.shape[-1])


def check_rows(plan: TensorPlan) -> None:
    """Raises InputError where a row is not a whole number of the type's blocks."""
    block, _ = GGML_QUANT_SIZES[plan.kind]
    if plan.shape[-1] % block:
        raise InputError(plan.name, f"must have rows of a multiple of {block} weights for {plan.kind.name}", plan.shape)


def write_streamed(
    target: Path,
    add_keys: Callable[[GGUFWriter], None],
    plans: Sequence[TensorPlan],
    pieces: Callable[[TensorPlan], Iterable[np.ndarray]],
    progress: OnProgress | None = None,
) -> None:
    """
    Write a GGUF, whole or not at all.  pieces(plan): the tensor's bytes in order, as arrays of any type.

    Raises InputError where a row is no whole number of blocks, the disk lacks the room or the file cannot be written.
    """
    for plan in plans:
        check_rows(plan)
    total = sum(_padded(plan.n_bytes) for plan in plans)
    _check_room(output_target(target), total)
    with atomic_path(target) as temporary:
        _write_header(temporary, add_keys, plans)
        done = 0
        with temporary.open("ab") as file:
            file.write(bytes(-file.tell() % ALIGNMENT))
            for plan in plans:
                written = 0
                for piece in pieces(plan):
                    data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                    file.write(data)
                    written += data.nbytes
                    if progress is not None:
                        progress(done + written, total)
                if written != plan.n_bytes:
                    raise AssertionError(f"{plan.name}: {written} bytes written, {plan.n_bytes} planned")
                file.write(bytes(_padded(written) - written))
                done += _padded(written)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _check_room(target: Path, n_bytes: int) -> None:
    folder = next(parent for parent in target.parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if free < n_bytes + 2**20:  # the header and the file system's own needs
        must = f"must have {format_bytes(n_bytes)} free for the file"
        raise InputError(str(folder), must, format_bytes(free), "free some, or write elsewhere")


def _write_header(path: Path, add_keys: Callable[[GGUFWriter], None], plans: Sequence[TensorPlan]) -> None:
    writer = GGUFWriter(path, ARCHITECTURE)
    add_keys(writer)
    for plan in plans:
        writer.add_tensor_info(plan.name, plan.shape, np.dtype(np.float32), plan.n_bytes, raw_dtype=plan.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def add_config_keys(writer: GGUFWriter, config: ModelConfig, kind: GGMLQuantizationType, description: str) -> None:
    """The keys of a smallthinker file but the tokenizer's; matrices are of a kind."""
    writer.add_type("model")
    writer.add_name(config.name)
    writer.add_description(description)
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(2)
    writer.add_block_count(config.n_layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.expert_ffn_size)
    writer.add_expert_feed_forward_length(config.expert_ffn_size)
    writer.add_expert_count(config.n_experts)
    writer.add_expert_used_count(config.top_k)
    sigmoid = config.scoring == "sigmoid"
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID if sigmoid else ExpertGatingFuncType.SOFTMAX)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if config.window is not None:
        writer.add_sliding_window(config.window)


def stays_exact(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is F32 in every file: a vector, or a router, which rounding would make choose otherwise."""
    return len(shape) == 1 or name.endswith("ffn_gate_inp.weight")


def requantise(source: Path, target: Path, kind: GGMLQuantizationType, progress: OnProgress | None = None) -> None:
    """
    Write the same smallthinker model with its matrices in another type (F32, F16, Q8_0, Q4_0), rounded once more.

    Router and norms stay F32; all keys but the file type are carried over.  A Q8_0 source's own rounding stays in it.
    Raises InputError.
    """
    if kind not in FILE_TYPES:
        raise InputError("quantisation", "must be F32, F16, Q8_0 or Q4_0", kind.name)
    reader = open_gguf(source)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    plans = []
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        plans.append(TensorPlan(tensor.name, shape, F32 if stays_exact(tensor.name, shape) else kind))

    def add_keys(writer: GGUFWriter) -> None:
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
                continue  # the writer's own
            sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type)
        writer.add_file_type(FILE_TYPES[kind])

    def pieces(plan: TensorPlan) -> Iterator[np.ndarray]:
        tensor = tensors[plan.name]
        rows = tensor.data.reshape(-1, tensor.data.shape[-1])
        step = max(1, 2**22 // plan.shape[-1])
        for first in range(0, len(rows), step):
            yield quantize(dequantize(rows[first : first + step], tensor.tensor_type), plan.kind)

    write_streamed(target, add_keys, plans, pieces, progress)
