"""How an expert lies on storage: simulator and runtime take padded sizes and requests from this one description."""

from dataclasses import dataclass

from moeplan.errors import InputError, nearest
from simulator.model.size import expert_bytes
from simulator.model.spec import ModelSpec

ALIGNMENT_BYTES = 4096  # what O_DIRECT asks of offsets and lengths on common file systems

# read requests per expert: gate, up and down together, or in three tensors; mapped: three places, read by page faults
LAYOUTS = {"bundle": 1, "split": 3, "mmap": 3}


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
    return layout_of_bytes(expert_bytes(model), name)


def layout_of_bytes(n_bytes: int, name: str) -> ExpertLayout:
    """The layout of experts of n_bytes each, three parts alike; 0: no experts. Raises InputError."""
    if name not in LAYOUTS:
        raise InputError("--layout", "must be a known expert layout", repr(name), nearest(name, LAYOUTS))
    n_requests = LAYOUTS[name]
    if n_bytes == 0:
        return ExpertLayout(name, n_requests, 0)
    if name == "bundle":
        return ExpertLayout(name, n_requests, padded(n_bytes))
    return ExpertLayout(name, n_requests, unaligned_request_bytes(-(-n_bytes // n_requests)))


def unaligned_request_bytes(part_bytes: int) -> int:
    """
    Bytes of an aligned window that holds a part wherever it begins.

    A model file aligns its tensors to 32 bytes or less, so the window begins up to a page before the part; the runtime
    asks for that extra page always, also where a part happens to be aligned.
    """
    return padded(part_bytes) + ALIGNMENT_BYTES


def padded(n_bytes: int) -> int:
    """n_bytes rounded up to whole pages of ALIGNMENT_BYTES."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
