"""Small model files whose experts are random, made by hand: parts at odd offsets, other bytes in between."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from reference_runtime.loading.model_file import ModelFile, Part
from reference_runtime.model import Expert
from reference_runtime.model_config import ModelConfig

Q4_0, Q8_0, F32 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32
HIDDEN, FFN = 128, 96


def make_model(
    path: Path,
    kinds: tuple[GGMLQuantizationType, ...] = (Q4_0, Q4_0, Q4_0),
    n_experts: int = 4,
    top_k: int = 2,
    seed: int = 0,
) -> ModelFile:
    """A file of one type per layer; tensors begin at multiples of 32 bytes, gate, up and down of a layer apart."""
    rng, content, layers = np.random.default_rng(seed), bytearray(b"header".ljust(160, b".")), []
    for layer, kind in enumerate(kinds):
        stacks = []
        for name, (rows, columns) in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
            stack = []
            for expert in range(n_experts):
                data = quantize(rng.standard_normal((rows, columns), dtype=np.float32), kind).tobytes()
                stack.append(Part(0, len(content), kind, (rows, columns), f"{name}.{layer}.{expert}"))
                content += data
            content += bytes(-len(content) % 32 + 32)
            stacks.append(stack)
        layers.append(tuple(zip(*stacks, strict=True)))
    path.write_bytes(content)
    config = ModelConfig(
        "made-up", len(kinds), HIDDEN, 2, 1, 64, n_experts, top_k, FFN, 64, 64, 1e4, 1e-6, None, "sigmoid"
    )
    return ModelFile(path, (path,), config, {}, (), tuple(layers))


def expected(model_file: ModelFile, layer: int, expert: int) -> list[np.ndarray]:
    """Gate, up and down as float32, read and dequantised in the plainest way."""
    content = model_file.path.read_bytes()
    result = []
    for part in model_file.experts[layer][expert]:
        data = np.frombuffer(content, np.uint8, part.n_bytes, part.offset).reshape(part.shape[0], -1)
        stored = data.view(np.float32) if part.kind is F32 else data
        result.append(dequantize(stored, part.kind).reshape(part.shape))
    return result


def is_expert(found: Expert, wanted: list[np.ndarray]) -> bool:
    """Whether all three matrices hold exactly the wanted weights."""
    return all(np.array_equal(matrix.float32(), array) for matrix, array in zip(found, wanted, strict=True))
