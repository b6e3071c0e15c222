"""Where every tensor of a model lies, and the checks that each must pass before a loader may use it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from moeplan.errors import InputError
from reference_runtime.loading.model_file import Part

Shape = tuple[int, ...]
# What tensors are that the forward pass has no place for, by their names in GGUF and in transformers.
STRANGERS = (
    (re.compile(r"shexp|shared_expert|secondary"), "a shared expert"),
    (re.compile(r"bias$|exp_probs_b"), "a bias"),
    (re.compile(r"rope_(freqs|factors)"), "factors of a scaled RoPE"),
    (re.compile(r"ffn_(gate|up|down)\.\d+\."), "one tensor per expert: an old file, convert the model again"),
    (re.compile(r"ffn_gate_up_exps"), "gate and up in one tensor"),
    (re.compile(r"(ffn_|mlp\.)(gate|up|down)(_proj)?\.weight$"), "a layer without experts"),
    (re.compile(r"(attn|self_attn)[._][qk]_norm"), "a norm of queries or keys"),
    (re.compile(r"(scale|scales|scale_inv|qweight|qzeros|blocks)$"), "scales or packed weights"),
)


@dataclass(frozen=True)
class Place:
    """A tensor on disk: shape in numpy's order, from an offset of a file on."""

    file: int
    offset: int
    kind: GGMLQuantizationType
    shape: Shape

    @property
    def n_bytes(self) -> int:
        """Bytes in the file."""
        block, size = GGML_QUANT_SIZES[self.kind]
        return prod(self.shape) // block * size


class TensorTable:
    """The tensors of a model by name."""

    def __init__(self, path: Path, places: dict[str, Place]) -> None:
        self.path, self.places = path, places

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def part(self, name: str, shape: Shape) -> Part:
        """A matrix, or a vector as one row. Raises InputError where it is absent or of another shape or a bad type."""
        place = self._checked(name, shape)
        rows, columns = (1, *shape)[-2:]
        return Part(place.file, place.offset, place.kind, (rows, columns), name)

    def stack(self, name: str, shape: Shape) -> list[Part]:
        """The matrices of a tensor (n, rows, columns), one behind the other. Raises InputError like `part`."""
        place, (n, rows, columns) = self._checked(name, shape), shape
        step = place.n_bytes // n
        return [
            Part(place.file, place.offset + i * step, place.kind, (rows, columns), f"{name}[{i}]") for i in range(n)
        ]

    def halves(self, name: str, shape: Shape) -> tuple[list[Part], list[Part]]:
        """Of a tensor (n, 2 rows, columns) the upper and the lower matrix of each n."""
        wholes, n_rows = self.stack(name, shape), shape[1] // 2
        upper = [Part(w.file, w.offset, w.kind, (n_rows, w.shape[1]), w.name) for w in wholes]
        lower = [Part(w.file, w.offset + w.n_bytes // 2, w.kind, (n_rows, w.shape[1]), w.name) for w in wholes]
        return upper, lower

    def refuse_strangers(self, known: Iterable[str]) -> None:
        """Raises InputError where the model holds a tensor that the forward pass would leave out."""
        expected = set(known)
        strange = [name for name in self.places if name not in expected]
        if strange:
            said = [what for pattern, what in STRANGERS if pattern.search(strange[0])]
            got = (said or ["one that it does not know"])[0]
            raise InputError(
                f"{self.path}: {strange[0]}",
                "must be a tensor that the forward pass uses",
                f"{got} ({len(strange)} such tensors)",
                "this variant does not run here",
            )

    def _checked(self, name: str, shape: Shape) -> Place:
        place, where = self.places.get(name), f"{self.path}: {name}"
        if place is None:
            raise InputError(str(self.path), f"must have the tensor {name}", "none", "is it a whole model?")
        if place.shape != shape:
            turned = name.endswith("ffn_down_exps.weight") and place.shape == (shape[0], shape[2], shape[1])
            advice = "PowerInfer turned it; convert without --transpose-down" if turned else "does it fit its own keys?"
            raise InputError(where, f"must have the shape {shape}", place.shape, advice)
        if not can_dequantise(place.kind):
            raise InputError(where, "must be dequantisable", place.kind.name, "use Q8_0, Q4_0, Q4_K, Q6_K, F16 or F32")
        return place


@lru_cache
def can_dequantise(kind: GGMLQuantizationType) -> bool:
    """Whether the `gguf` package turns a type into float32."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
