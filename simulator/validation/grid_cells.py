"""
A measured grid on disk as typed runs: what `make validate` leaves and this package compares with.

    DIR/profile.yaml, DIR/profile-after.yaml (optional), DIR/models/NAME.yaml (optional specs)
    DIR/cells/<cell>-r<repeat>/  cell.json, run.json, trace.parquet, ops.parquet

A run's folder is whole or left out with a warning: a grid that was stopped half-way can be looked at.  A name that
begins with a dot is a run in progress.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from moeplan.files import read_text
from moeplan.strict_yaml import Model, load_mapping, validate
from simulator.model.catalog import load_model_spec
from simulator.model.imports.dispatch import import_model
from simulator.model.spec import ModelSpec
from simulator.validation.cell_result import Conditions
from simulator.validation.machine_state import SpotPair
from traces.op_record import OPS, OpRecord
from traces.routing_trace import PREFILL, RoutingTrace
from traces.store import read_trace

if TYPE_CHECKING:
    import pandas as pd

RUN_FILES = ("cell.json", "run.json", "trace.parquet", "ops.parquet")
MAX_JSON_BYTES = 16 * 2**20  # a run.json of 2,000 tokens has 100 KB

Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _iso_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Spots = dict[str, Positive]  # seconds of each spot check by its name


class SpotFile(BaseModel):
    """The spot checks before and after a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before: Spots
    after: Spots


class CellFile(BaseModel):
    """
    cell.json: the conditions of one run and its place in the shuffled order; who runs a grid may note more.

    n_prompt: tokens that the run fed itself; steal_frac: share of processor time that a host gave to others meanwhile;
    code: fingerprint of the code that ran; spin_count: how long idle threads of a parallel loop spin.
    """

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    schema_version: Literal[1]
    cell: Annotated[str, Field(min_length=1)]
    repeat: Count
    order: Count
    model: str
    model_path: str
    model_class: str
    ram_cap_bytes: Annotated[int, Field(gt=0)] | None
    storage_limit_bytes_per_s: Positive | None
    prefetch: str
    context: Count
    threads: Annotated[int, Field(ge=1)]
    n_prompt: Count
    n_warm_up: Count
    n_counted: Annotated[int, Field(ge=1)]
    routing: str
    started_at: Annotated[str, AfterValidator(_iso_time)]
    seconds: Annotated[float, Field(ge=0)]
    steal_frac: Annotated[float, Field(ge=0, le=1)] | None = None
    spot_checks: SpotFile | None = None
    code: str | None = None
    spin_count: str | None = None

    @property
    def spots(self) -> SpotPair | None:
        """The spot checks around the run, None where none were taken."""
        return None if self.spot_checks is None else SpotPair(self.spot_checks.before, self.spot_checks.after)

    def conditions(self) -> Conditions:
        """What the cell varies."""
        return Conditions(
            self.model, self.model_class, self.ram_cap_bytes, self.storage_limit_bytes_per_s, self.prefetch,
            self.context, self.threads, self.routing,
        )  # fmt: skip


class LayerFile(BaseModel):
    """Of a layer in run.json: the share of gates that ReLU shut, a count and no time."""

    zero_gate_frac: Annotated[float, Field(ge=0, le=1)]


class RunFile(BaseModel):
    """run.json, the part that is compared; `moeplan run` writes more."""

    model_config = ConfigDict(frozen=True)

    tokens_per_s: Positive
    prompt_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    n_counted_tokens: Annotated[int, Field(ge=1)]
    layers: tuple[LayerFile, ...]
    memory: dict[str, int]
    conditions: dict[str, str]

    def condition(self, name: str, where: Path) -> str:
        """One of the run's conditions. Raises InputError."""
        if name not in self.conditions:
            raise InputError(str(where), f"conditions must say {name!r}", "nothing", "run the cell again")
        return self.conditions[name]


@dataclass(frozen=True)
class MeasuredRun:
    """One run of a cell: its files, read when they are asked for."""

    folder: Path
    cell: CellFile
    result: RunFile

    @cached_property
    def trace(self) -> RoutingTrace:
        """The recorded routing. Raises InputError."""
        return read_trace(self.folder / "trace.parquet")

    @property
    def n_prefill(self) -> int:
        """Prompt tokens in the trace: none where the run began from a saved KV state."""
        return int((self.trace.phase == PREFILL).sum())

    @property
    def first_counted(self) -> int:
        """Index in the trace of the first decode token that counts."""
        return self.n_prefill + self.cell.n_warm_up

    def condition(self, name: str) -> str:
        """One of the run's conditions. Raises InputError."""
        return self.result.condition(name, self.folder / "run.json")

    def records(self) -> "pd.DataFrame":
        """The measured OpRecords. Raises InputError."""
        import pandas as pd
        import pyarrow as pa

        path = self.folder / "ops.parquet"
        try:
            frame = pd.read_parquet(path)
        except (OSError, pa.ArrowException) as error:
            raise InputError(str(path), "must be a whole Parquet file", str(error).splitlines()[0]) from error
        missing = [name for name in OpRecord._fields if name not in frame.columns]
        if missing:
            raise InputError(str(path), "must have the columns of OpRecord", f"no {missing[0]!r}")
        unknown = sorted(set(frame["op"].astype(str)) - set(OPS))
        if unknown:
            raise InputError(str(path), f"ops must be of {', '.join(OPS)}", unknown[0])
        return frame

    def spec(self, grid: Path) -> ModelSpec:
        """
        The model: read from its file where that is still there, else DIR/models/NAME.yaml, else a shipped spec.

        Raises InputError where none of them exists.
        """
        path = Path(self.cell.model_path)
        if path.exists():
            return import_model(path).spec
        stored = grid / "models" / f"{self.cell.model}.yaml"
        return load_model_spec(str(stored) if stored.is_file() else self.cell.model_path)


@dataclass(frozen=True)
class MeasuredGrid:
    """A folder: the machine's profile before the first run and after the last, and the runs in time order."""

    folder: Path
    profile: HardwareProfile
    profile_after: HardwareProfile | None
    runs: tuple[MeasuredRun, ...]
    warnings: tuple[str, ...]


def read_grid(folder: Path) -> MeasuredGrid:
    """Read a grid. Raises InputError where there is no profile, no whole run, or a file that is not what it must be."""
    if not (folder / "profile.yaml").is_file():
        raise InputError(str(folder), "must be the folder of a measured grid with profile.yaml", "none there")
    after = folder / "profile-after.yaml"
    folders = sorted(path for path in (folder / "cells").glob("[!.]*") if path.is_dir())
    whole = [path for path in folders if all((path / name).is_file() for name in RUN_FILES)]
    if not whole:
        raise InputError(str(folder / "cells"), f"must hold runs with {', '.join(RUN_FILES)}", "none")
    runs = sorted((_read_run(path) for path in whole), key=_when)
    profile = load_profile(str(folder / "profile.yaml"))
    _check_threads(runs, profile)
    left_out = tuple(f"{path.name} is not whole and was left out" for path in folders if path not in whole)
    return MeasuredGrid(
        folder,
        profile,
        load_profile(str(after)) if after.is_file() else None,
        tuple(runs),
        (*left_out, *_missing_cells(folder, {run.cell.cell for run in runs})),
    )


def _check_threads(runs: Sequence[MeasuredRun], profile: HardwareProfile) -> None:
    """Raises InputError for a run on a number of threads that the profile was not probed with."""
    kernels = profile.cpu.kernels
    known = (profile.cpu.threads,) if kernels is None else kernels.threads()
    for run in runs:
        if run.cell.threads not in known:
            must = f"threads must be {' or '.join(map(str, known))}, for which profile.yaml was probed"
            advice = "probe with these threads too, or leave the run out"
            raise InputError(str(run.folder / "cell.json"), must, run.cell.threads, advice)


def _when(run: MeasuredRun) -> tuple[str, int, str]:
    """In the order in which they were made, which is the planned one unless the grid was run in parts."""
    return run.cell.started_at, run.cell.order, run.folder.name


def _missing_cells(folder: Path, measured: set[str]) -> list[str]:
    """A warning where the grid that was run has more cells than were measured."""
    path = folder / "grid.yaml"
    cells = load_mapping(path)[0].get("cells") if path.is_file() else None
    if not isinstance(cells, list) or len(cells) <= len(measured):
        return []
    return [f"{len(measured)} of the {len(cells)} cells of {path.name} were measured"]


def _read_run(folder: Path) -> MeasuredRun:
    run = MeasuredRun(folder, _load(folder / "cell.json", CellFile), _load(folder / "run.json", RunFile))
    if run.cell.n_counted != run.result.n_counted_tokens:
        got = f"{run.result.n_counted_tokens} in run.json"
        raise InputError(str(folder / "cell.json"), f"n_counted {run.cell.n_counted} must be that of the run", got)
    return run


def _load(path: Path, model: type[Model]) -> Model:
    try:
        value = json.loads(read_text(path, MAX_JSON_BYTES))
    except ValueError as error:
        raise InputError(str(path), "must be a JSON document", error) from error
    if not isinstance(value, dict):
        raise InputError(str(path), "must be a JSON object", type(value).__name__)
    return validate(value, model, str(path), {})
