"""
Weights in memory to time products on: larger than every cache, so that each use comes from RAM, or small enough to
stay in one.

The pages are those that the runtime has: its experts lie in one private mapping and its larger dense matrices where
numpy puts them, both in huge pages where the system gives those; its smaller dense matrices in small pages.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from reference_runtime.matrix import Matrix, matrix_bytes
from reference_runtime.model import Expert
from reference_runtime.packing import pack, packing_of
from reference_runtime.streaming.direct_reads import DirectFile, Read, page_aligned
from reference_runtime.streaming.expert_store import PACKINGS, Place, Places, expert_n_bytes
from reference_runtime.synthetic_model import BLOCK, LIMITS, pack_blocks
from simulator.expert_layout import ALIGNMENT_BYTES, layout_of_bytes
from simulator.model.spec import ModelSpec

HUGE_FROM = 4 * 2**20  # numpy asks for huge pages from this size on
ZERO_FRAC = 0.75  # share of gates that the sparse input shuts, near what trained ReLU experts have
SPARSE_COLUMN, OPEN_COLUMN = 0, 1  # of the gate
N_TEMPLATES = 16  # different experts that fill an arena: too many patterns of open neurons to be learnt by a processor
MOST_VIEWS = 4096  # matrices in a cycle
_LINE = 64  # bytes of a cache line


def touch(arrays: Iterable[np.ndarray]) -> None:
    """
    Read something of every page of contiguous arrays, as a run does all the time.

    Some hosts take from a guest the pages that it has not used for half a minute, and give them back slowly.
    """
    for array in arrays:
        array.reshape(-1).view(np.uint8)[::ALIGNMENT_BYTES].max(initial=0)


class WeightArena:
    """
    Bytes that are valid weights of every kind from every place on; matrices are views that follow one another.

    for_experts: for one pool of experts at a time.  Bytes of 16 to 31 make every float16 scale a small
    positive number.
    """

    def __init__(self, n_bytes: int, seed: int = 0) -> None:
        """Raises InputError where the system has not so much memory."""
        rng = np.random.Generator(np.random.PCG64(seed))
        self._small, self._huge = page_aligned(n_bytes, huge=False), np.empty(n_bytes, np.uint8)
        piece = rng.integers(16, 32, min(n_bytes, 2**20), dtype=np.uint8)
        for array in (self._small, self._huge):
            for at in range(0, n_bytes, len(piece)):
                part = array[at : at + len(piece)]
                part[:] = piece[: len(part)]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The memory that is there so far."""
        experts = (self.for_experts,) if "for_experts" in self.__dict__ else ()
        return self._small, self._huge, *experts

    @cached_property
    def for_experts(self) -> np.ndarray:
        """As many bytes again, from a page's start: for one user at a time, who fills it."""
        return page_aligned(len(self._small))

    def cycle(self, kind: GGMLQuantizationType, shape: tuple[int, int], working_set: int) -> Callable[[], Matrix]:
        """A function that gives the next of as many matrices as fit into the working set, one at least."""
        n_bytes = matrix_bytes(kind, *shape)
        array = self._huge if n_bytes >= HUGE_FROM else self._small
        step, room = -(-n_bytes // _LINE) * _LINE, min(working_set, len(array))
        if room > step * MOST_VIEWS:  # as many as there may be, spread evenly
            step = room // MOST_VIEWS // _LINE * _LINE
        starts = range(0, max(1, room - n_bytes + 1), step)
        packing = packing_of(kind, "rows")
        return cycled([Matrix(kind, shape, array[at : at + n_bytes], packing) for at in starts])

    def sequence(self, kind: GGMLQuantizationType) -> Callable[[tuple[int, int]], Matrix]:
        """A function that gives the next matrix of a shape, none over another until the arena begins anew."""
        at = {True: 0, False: 0}

        def following(shape: tuple[int, int]) -> Matrix:
            n_bytes = matrix_bytes(kind, *shape)
            is_huge = n_bytes >= HUGE_FROM
            array = self._huge if is_huge else self._small
            start = at[is_huge] if at[is_huge] + n_bytes <= len(array) else 0
            at[is_huge] = start + -(-n_bytes // _LINE) * _LINE
            return Matrix(kind, shape, array[start : start + n_bytes], packing_of(kind, "rows"))

        return following

    def copy(self, part: int, n_parts: int) -> int:
        """Copy one of n_parts of the bytes over those of the experts; bytes read and written."""
        n = len(self._huge) // n_parts
        np.copyto(self.for_experts[part * n : part * n + n], self._huge[part * n : part * n + n])
        return 2 * n

    def holds(self, kind: GGMLQuantizationType, shape: tuple[int, int]) -> bool:
        """Whether one such matrix fits."""
        return matrix_bytes(kind, *shape) <= len(self._small)


def cycled(items: Sequence[Any]) -> Callable[[], Any]:
    """A function that gives one item after the other, round and round."""
    at = -1

    def following() -> Any:
        nonlocal at
        at = (at + 1) % len(items)
        return items[at]

    return following


def places_of(spec: ModelSpec, kind: GGMLQuantizationType) -> Places:
    """Where gate, up and down of an expert of a model's shape lie in its slot."""
    assert spec.experts is not None
    hidden, ffn = spec.hidden_size, spec.experts.ffn_size
    start, places = 0, []
    for shape, packing in zip(((ffn, hidden), (ffn, hidden), (hidden, ffn)), PACKINGS, strict=True):
        places.append(Place(kind, shape, packing_of(kind, packing), start))
        start += places[-1].n_bytes
    gate, up, down = places
    return gate, up, down


def expert_templates(places: Places, seed: int = 0) -> list[np.ndarray]:
    """
    Different experts, each uint8 of a slot.  Of a gate's weights in column SPARSE_COLUMN a share of 1 - ZERO_FRAC is
    above zero and in OPEN_COLUMN all are: an input with a single 1 there shuts just so many neurons.  All else is the
    same in each.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    gate, up, down = places
    base = np.zeros(layout_of_bytes(expert_n_bytes(places), "bundle").padded_bytes, np.uint8)
    for place in (up, down):
        _put(base, place, _weights(place, rng))
    weights, result = _weights(gate, rng), []
    weights[:, OPEN_COLUMN] = 1
    for _ in range(N_TEMPLATES):
        is_open = rng.permuted(np.arange(len(weights)) >= round(ZERO_FRAC * len(weights)))
        weights[:, SPARSE_COLUMN] = np.where(is_open, 1, -1)
        slot = base.copy()
        _put(slot, gate, weights)
        result.append(slot)
    return result


def _weights(place: Place, rng: np.random.Generator) -> np.ndarray:
    """int8 (rows, columns) of -limit to limit."""
    limit = LIMITS[place.kind]
    return rng.integers(-limit, limit + 1, place.shape, dtype=np.int8)


def _put(slot: np.ndarray, place: Place, weights: np.ndarray) -> None:
    rows, columns = place.shape
    blocks = weights.reshape(rows, columns // BLOCK, BLOCK)
    data = pack_blocks(blocks, np.float16(columns**-0.5 / LIMITS[place.kind]), place.kind)
    packed = pack(data.reshape(-1).view(np.uint8), place.kind, place.shape, place.packing)
    slot[place.start : place.start + place.n_bytes] = packed


class MemoryFile(DirectFile):
    """A file whose reads come from memory: experts for a model that is on no disk."""

    def __init__(self, templates: Sequence[np.ndarray]) -> None:
        self.path, self.mode = Path("memory"), "memory"
        self._templates = templates

    def read(self, offset: int, target: np.ndarray, n_needed: int) -> None:
        """Fill target with the template of an offset, which is a number here."""
        target[:] = self._templates[offset % len(self._templates)]

    def close(self) -> None:
        """Nothing is open."""


class MemoryStore:
    """An ExpertStore (see expert_store.py) of n_layers x n_experts made-up experts."""

    def __init__(self, spec: ModelSpec, kind: GGMLQuantizationType, n_layers: int, n_experts: int) -> None:
        places = places_of(spec, kind)
        self.layout = layout_of_bytes(expert_n_bytes(places), "bundle")
        self.places, self.n_experts, self.buffer_bytes = (places,) * n_layers, n_experts, 0
        self.files: tuple[DirectFile, ...] = (MemoryFile(expert_templates(places)),)

    def reads(self, layer: int, expert: int, slot: np.ndarray, tag: int, issued_s: float) -> list[Read]:
        """See ExpertStore."""
        index = layer * self.n_experts + expert
        return [Read(tag, self.files[0], index, len(slot), len(slot), slot, None, issued_s)]

    def close(self) -> None:
        """Nothing is open."""


class ExpertPool:
    """Experts of a shape and a type in an arena, spread evenly where there could be more than MOST_VIEWS."""

    def __init__(self, spec: ModelSpec, kind: GGMLQuantizationType, arena: np.ndarray) -> None:
        """arena: uint8 from a page's start; it may serve several pools, one after the other, each after its fill."""
        places = places_of(spec, kind)
        self._templates = expert_templates(places)
        self.expert_bytes, slot_bytes = expert_n_bytes(places), len(self._templates[0])
        step = max(slot_bytes, len(arena) // MOST_VIEWS // slot_bytes * slot_bytes)
        self._slots = [arena[at : at + slot_bytes] for at in range(0, max(1, len(arena) - slot_bytes + 1), step)]
        self.experts = [Expert(*(place.matrix(slot) for place in places)) for slot in self._slots]

    def fill(self) -> None:
        """Put the experts into the arena."""
        for index, slot in enumerate(self._slots):
            slot[:] = self._templates[index % len(self._templates)]

    def rows(self, n_experts: int, working_set: int) -> list[list[Expert]]:
        """Rows of n_experts, disjoint, of as many experts as the working set holds, one row at least."""
        n_in_set = working_set // self.expert_bytes
        spaced = self.experts if n_in_set > len(self.experts) else self.experts[: max(n_experts, n_in_set)]
        return [spaced[at : at + n_experts] for at in range(0, len(spaced) - n_experts + 1, n_experts)]
