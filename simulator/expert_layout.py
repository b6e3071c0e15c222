"""How an expert lies on storage: simulator and runtime take padded sizes and requests from this one description."""

from dataclasses import dataclass

from moeplan.errors import InputError, nearest
from simulator.model.size import expert_bytes
from simulator.model.spec import ModelSpec

ALIGNMENT_BYTES = 4096  # what O_DIRECT asks of offsets and lengths on common file systems

LAYOUTS = {"bundle": 1, "split": 3}  # read requests per expert: gate, up and down together, or in three tensors


@dataclass(frozen=True)
class ExpertLayout:
    """n_requests reads of request_bytes each bring one expert; the sum is what storage moves, padding included."""

    name: str
    n_requests: int
    request_bytes: int

    @property
    def padded_bytes(self) -> int:
        """Bytes requested from storage for one expert, and its size in the cache."""
        return self.n_requests * self.request_bytes


def expert_layout(model: ModelSpec, name: str) -> ExpertLayout:
    """The layout of a model's experts. Raises InputError for an unknown name."""
    if name not in LAYOUTS:
        raise InputError("--layout", "must be a known expert layout", repr(name), nearest(name, LAYOUTS))
    if model.experts is None:
        return ExpertLayout(name, LAYOUTS[name], 0)
    n_requests = LAYOUTS[name]
    part_bytes = -(-expert_bytes(model) // n_requests)
    request_bytes = -(-part_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return ExpertLayout(name, n_requests, request_bytes)
