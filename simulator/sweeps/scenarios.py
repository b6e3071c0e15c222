"""
The scenarios of a sweep, cut into chunks: what is computed, stored and lost at once.

A chunk has one trace, model and cache policy and some RAM caps, with every device and speed: cache decisions are
taken once in it and timed for all of them.  Chunks follow from the definition alone, so a resumed sweep has the same.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware_profiles.catalog import load_profile, profile_path
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from simulator.model.catalog import load_model_spec, model_path
from simulator.model.spec import ModelSpec
from simulator.sweeps.axes import AXIS_NAMES, Value
from simulator.sweeps.definition import SweepDefinition
from traces.catalog import load_trace, trace_file
from traces.routing_trace import RoutingTrace

Cell = dict[str, Any]  # the value of every axis; None: own

OUTER = ("model", "trace", "quantisation", "top_k", "layout", "context", "cache")  # fixed within a chunk
CAPS_PER_CHUNK = 10  # one pass over the trace serves all caps of a chunk
ROWS_PER_CHUNK = 2000  # a few seconds of work at most are lost in a crash


@dataclass(frozen=True)
class Inputs:
    """The files of a sweep by the names in its definition. traces: None for a dense model."""

    models: dict[str, ModelSpec]
    profiles: dict[str, HardwareProfile]
    traces: dict[str | None, RoutingTrace | None]


@dataclass(frozen=True)
class Chunk:
    """number: its place among the chunks; axes: the part of every axis that it covers."""

    number: int
    axes: dict[str, tuple[Value, ...]]

    def cells(self, definition: SweepDefinition) -> Iterator[tuple[int, Cell]]:
        """(row number in the whole sweep, value of every axis), in the order of the rows."""
        places_of = {name: {value: place for place, value in enumerate(definition.axes[name])} for name in AXIS_NAMES}
        indices = [[places_of[name][value] for value in self.axes[name]] for name in AXIS_NAMES]
        strides = _strides(definition)
        for values, places in zip(
            itertools.product(*(self.axes[name] for name in AXIS_NAMES)), itertools.product(*indices), strict=True
        ):
            row = sum(place * stride for place, stride in zip(places, strides, strict=True))
            yield row, dict(zip(AXIS_NAMES, values, strict=True))

    @property
    def n_rows(self) -> int:
        """Scenarios in the chunk."""
        return math.prod(len(values) for values in self.axes.values())


def chunks(definition: SweepDefinition) -> list[Chunk]:
    """All chunks of a sweep; together they hold every scenario once."""
    axes = definition.axes
    inner = [name for name in AXIS_NAMES if name not in OUTER and name != "ram_cap"]
    n_inner = math.prod(len(axes[name]) for name in inner)
    # an inner axis that is too long is cut too: the longest one
    longest = max(inner, key=lambda name: len(axes[name]))
    n_blocks = -(-n_inner // ROWS_PER_CHUNK)
    inner_blocks = _blocks(axes[longest], -(-len(axes[longest]) // n_blocks))
    per_cap = n_inner * len(inner_blocks[0]) // len(axes[longest])
    cap_blocks = _blocks(axes["ram_cap"], max(1, min(CAPS_PER_CHUNK, ROWS_PER_CHUNK // per_cap)))
    found: list[Chunk] = []
    for fixed in itertools.product(*(axes[name] for name in OUTER)):
        for caps, block in itertools.product(cap_blocks, inner_blocks):
            covered = {name: axes[name] for name in inner} | {longest: block, "ram_cap": caps}
            covered |= {name: (value,) for name, value in zip(OUTER, fixed, strict=True)}
            found.append(Chunk(len(found), covered))
    return found


def _blocks(values: tuple[Value, ...], most: int) -> list[tuple[Value, ...]]:
    """Runs of at most so many values, of nearly equal length."""
    n_blocks = -(-len(values) // most)
    size = -(-len(values) // n_blocks)
    return [values[start : start + size] for start in range(0, len(values), size)]


def _strides(definition: SweepDefinition) -> list[int]:
    sizes = [len(definition.axes[name]) for name in AXIS_NAMES]
    return [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]


def load_inputs(definition: SweepDefinition) -> Inputs:
    """Read every file that the definition names. Raises InputError."""
    axes = definition.axes
    return Inputs(
        {str(name): load_model_spec(str(name)) for name in axes["model"]},
        {str(name): load_profile(str(name)) for name in axes["hardware"]},
        {
            None if name is None else str(name): None if name is None else load_trace(str(name))
            for name in axes["trace"]
        },
    )


def content_of(definition: SweepDefinition) -> dict[str, str]:
    """sha256 of every file that the definition names, by axis and name. Raises InputError for one that is missing."""
    paths = {f"model {name}": model_path(str(name)) for name in definition.axes["model"]}
    paths |= {f"hardware {name}": profile_path(str(name)) for name in definition.axes["hardware"]}
    paths |= {f"trace {name}": trace_file(str(name)) for name in definition.axes["trace"] if name is not None}
    return {name: _sha256(path) for name, path in paths.items()}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(str(path), "must be a file that can be read", error.strerror) from error
