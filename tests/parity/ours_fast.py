"""Our side on the fast kernels, which multiply straight from packed blocks."""

from dataclasses import replace
from pathlib import Path

from parity.ours import CHUNK
from reference_runtime.kernels.fast import FastKernels
from reference_runtime.loading.weight_loading import ResidentExperts, load_dense, open_model
from reference_runtime.matrix import Matrix, Packing
from reference_runtime.model import Expert, Model
from reference_runtime.packing import pack, packing_of
from reference_runtime.streaming.expert_store import PACKINGS

FAST_CHUNKS = ((1, "token by token"), (CHUNK, "in chunks"))  # tokens at a time: other kernels run


def load_fast(path: Path) -> Model:
    """A model with all experts in memory on one thread of the fast kernels, weights packed as they want them."""
    model_file = open_model(path)
    resident = ResidentExperts.read(model_file)
    packed = [[Expert(*map(_packed, expert, PACKINGS)) for expert in layer] for layer in resident.experts]
    return Model(model_file.config, load_dense(model_file, pack=True), ResidentExperts(packed), FastKernels(1))


def _packed(matrix: Matrix, wanted: Packing) -> Matrix:
    packing = packing_of(matrix.kind, wanted)
    return replace(matrix, data=pack(matrix.data, matrix.kind, matrix.shape, packing), packing=packing)
