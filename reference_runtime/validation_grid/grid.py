"""
The grid: which models are run under which conditions, as a person writes it down in YAML.

A cell is one condition.  Its name says all of it: `4b-c2048-1.9GB-500MBs-none-t1` is model 4b from a saved state of
2048 tokens, a RAM cap of 1.9 GB, storage held to 500 MB/s, no prefetch, one thread; `p8` is a prompt of 8 tokens that
the run feeds itself, `all` no cap, `free` no limit.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from moeplan.errors import InputError
from moeplan.quantity import Dimension, parse_quantity
from moeplan.strict_yaml import load_model
from reference_runtime.session import PREFILL_CHUNK_TOKENS

SHIPPED_GRID = Path(__file__).with_name("grid.yaml")
NONE = "none"
MAX_TOKENS = 2**20  # of a prompt or a decode: far more than any cell runs in minutes


class GridError(InputError, ValueError):
    """An InputError that pydantic catches as a ValueError, so that strict_yaml adds file, line and key."""


def _quantity_or_none(dimension: Dimension) -> AfterValidator:
    def check(text: str) -> str:
        try:
            if text != NONE:
                parse_quantity(text, dimension, dimension)
        except InputError as error:
            raise GridError(error.where, f"{error.must} or none", error.got, error.advice) from error
        return text

    return AfterValidator(check)


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,32}$")]
Tokens = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]
Repeats = Annotated[int, Field(strict=True, ge=1, le=100)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RandomModel(_Frozen):
    """A model of random weights that is made: the shape of a spec, its matrices in a type of weights."""

    shape: str
    quantisation: Literal["F32", "Q8_0", "Q4_0"]


class GridModel(_Frozen):
    """
    A model of the grid: a shipped name or a path, or random weights that are made.

    text: traces whose token ids, one trace behind the other, are the text that is fed; replay_routing: the trace whose
    experts stand in the router's place, none: the model's own router.
    """

    path: str | None = None
    random: RandomModel | None = None
    text: Annotated[tuple[str, ...], Field(min_length=1)]
    replay_routing: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.random is None):
            raise GridError("model", "must have a path or random weights, one of the two", "both or neither")
        return self


class Cell(_Frozen):
    """
    One condition.

    prompt: tokens that the run feeds itself; state: tokens of a saved state that it begins from; one of the two.
    n_warm_up: decode tokens that run first and do not count, n_counted: those that do; all teacher-forced.
    repeats: runs of this cell, None: as many as the grid says.
    """

    model: Name
    prompt: Tokens | None = None
    state: Tokens | None = None
    ram_cap: Annotated[str, _quantity_or_none("byte")]
    storage_limit: Annotated[str, _quantity_or_none("byte/second")]
    prefetch: Literal["none", "pre-attention"]
    threads: Annotated[int, Field(strict=True, ge=1, le=1024)]
    n_warm_up: Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]
    n_counted: Tokens
    repeats: Repeats | None = None

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if (self.prompt is None) == (self.state is None):
            raise GridError("cell", "must have a prompt or a state, one of the two", "both or neither")
        return self

    @property
    def name(self) -> str:
        """What the cell's folder is called; see the top of this file."""
        start = f"p{self.prompt}" if self.state is None else f"c{self.state}"
        cap = "all" if self.ram_cap == NONE else self.ram_cap.replace(" ", "")
        limit = "free" if self.storage_limit == NONE else self.storage_limit.replace(" ", "").replace("/", "")
        prefetch = {"none": "none", "pre-attention": "pre"}[self.prefetch]
        return f"{self.model}-{start}-{cap}-{limit}-{prefetch}-t{self.threads}"

    @property
    def context(self) -> int:
        """Keys in the cache when decode begins."""
        return self.prompt or self.state or 0

    @property
    def n_decode(self) -> int:
        """Decode tokens, warm-up and counted."""
        return self.n_warm_up + self.n_counted

    @property
    def n_tokens(self) -> int:
        """Tokens of the whole sequence: what the KV cache must hold."""
        return self.context + self.n_decode

    @property
    def chunk_tokens(self) -> int:
        """The longest chunk that this run feeds: the memory plan is made for it and not for one that never comes."""
        return min(self.prompt or 1, PREFILL_CHUNK_TOKENS)

    @property
    def ram_cap_bytes(self) -> int | None:
        """None: no cap, everything is resident."""
        return None if self.ram_cap == NONE else round(parse_quantity(self.ram_cap, "byte", "ram_cap"))

    @property
    def storage_limit_bytes_per_s(self) -> float | None:
        """None: the drive as it is."""
        if self.storage_limit == NONE:
            return None
        return parse_quantity(self.storage_limit, "byte/second", "storage_limit")


class Grid(_Frozen):
    """
    All cells, and how often and in which order they run.

    seed: of the shuffle; repeats: runs of each cell unless the cell, or the person who starts it, says otherwise.
    """

    schema_version: Literal[1]
    seed: Annotated[int, Field(strict=True, ge=0)]
    repeats: Repeats
    models: Annotated[dict[Name, GridModel], Field(min_length=1)]
    cells: Annotated[tuple[Cell, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for cell in self.cells:
            if cell.model not in self.models:
                raise GridError("cells", f"models must be one of {', '.join(self.models)}", repr(cell.model))
        name, n = Counter(cell.name for cell in self.cells).most_common(1)[0]
        if n > 1:
            raise GridError("cells", "must stand once each", f"{name} {n} times")
        return self


def read_grid_file(path: Path) -> Grid:
    """A grid from its YAML. Raises InputError that names file, line and key."""
    return load_model(path, Grid)
