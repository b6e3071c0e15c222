"""Where the weights of a model lie on disk: what a loader finds, before anything large is read."""

from dataclasses import dataclass
from pathlib import Path

from gguf import GGMLQuantizationType

from reference_runtime.matrix import matrix_bytes
from reference_runtime.model_config import ModelConfig


@dataclass(frozen=True)
class Part:
    """
    One matrix on disk, contiguous: shape (rows, columns) of a type, n_bytes at an offset of files[file].

    name: the tensor's name in the file, for messages; of a stack with the index.
    """

    file: int
    offset: int
    kind: GGMLQuantizationType
    shape: tuple[int, int]
    name: str = ""

    @property
    def n_bytes(self) -> int:
        """Bytes in the file."""
        return matrix_bytes(self.kind, *self.shape)


@dataclass(frozen=True, eq=False)
class ModelFile:
    """
    A GGUF file, a set of its shards or a safetensors folder, checked and ready to be read.

    top, layers: the dense parts by the field names of DenseWeights and DenseLayer, their shapes as in model_shapes.py.
    experts[layer][expert]: its gate, up and down.
    warnings: what was assumed, a sentence each, for the person who runs it.
    """

    path: Path
    files: tuple[Path, ...]
    config: ModelConfig
    top: dict[str, Part]  # token_embd, output_norm, and output unless tied
    layers: tuple[dict[str, Part], ...]  # the fields of DenseLayer that the model has; a vector is (1, n)
    experts: tuple[tuple[tuple[Part, Part, Part], ...], ...]  # [layer][expert] -> gate, up, down
    warnings: tuple[str, ...] = ()
