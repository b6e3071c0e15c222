"""
What the cells need and share: model files, expert stores, texts and saved states; made once, kept in the folder.

    DIR/grid.yaml          a copy of the grid that is run
    DIR/models.json        which model files they are; a model that has changed meanwhile is refused
    DIR/models/            models of random weights that are made here; NAME.yaml: the spec of each model file
    DIR/stores/ states/    experts and keys and values, ready to be read
    DIR/cells/             a folder for each run that is done
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeplan.errors import InputError
from moeplan.files import read_text, write_text
from moeplan.progress import ignore_progress
from moeplan.quantity import format_bytes
from reference_runtime.loading.weight_loading import open_model
from reference_runtime.runtime_options import SHIPPED, RuntimeOptions, find_model, prepare_store
from reference_runtime.saved_state import open_state
from reference_runtime.streaming.expert_store import default_store_path, open_store
from reference_runtime.streaming.source_fingerprint import source_fingerprint
from reference_runtime.synthetic_model import KINDS, synthetic_config, tensor_plans, write_synthetic
from reference_runtime.validation_grid.child import run_moeplan
from reference_runtime.validation_grid.grid import Cell, Grid, GridModel, RandomModel
from simulator.model.catalog import load_model_spec
from simulator.model.imports.dispatch import import_model, write_spec
from simulator.model.spec import ModelSpec
from traces.catalog import load_trace

KV_BYTES = 2 * 4  # keys and values, float32
RECORD_BYTES = 2**21  # a run's four files have 0.1 to 1 MB
SEED = 0  # of random weights
Report = Callable[[str], object]  # told what is being made


@dataclass(frozen=True)
class ReadyModel:
    """
    A model of the grid, ready to run.

    given: the shipped name, or else the path; path: its file; store: its experts; text: token ids.
    """

    name: str
    given: str
    path: Path
    store: Path
    text: Sequence[int]
    replay_routing: str | None


def state_path(folder: Path, cell: Cell) -> Path:
    """Where the saved state lies that a cell begins from."""
    return folder / "states" / f"{cell.model}-{cell.state}.state"


def seal(folder: Path, grid_file: Path) -> None:
    """Copy the grid into the folder. Raises InputError where another one was run there."""
    text, copy = read_text(grid_file), folder / "grid.yaml"
    if not copy.exists():
        write_text(copy, text)
    elif read_text(copy) != text:
        got = f"{grid_file}, which differs from its grid.yaml"
        raise InputError(str(folder), "must be run with the grid that it began with", got, "give a new folder")


def prepare(
    folder: Path, grid: Grid, cells: Sequence[Cell], given: Mapping[str, Path], report: Report
) -> dict[str, ReadyModel]:
    """
    Make what is missing for some cells; the models by name.  given: files that stand for models of random weights.

    Model files and stores are those of the whole grid, whatever part of it is run: the spot checks read one of them.
    States are made for the cells alone.

    Raises InputError where the disk has too little room, a text is too short, or a model is not the one of before.
    """
    names = list(dict.fromkeys(cell.model for cell in grid.cells))
    for name in given:
        if name not in grid.models:
            raise InputError(f"--model-{name}", f"must be a model of the grid: {', '.join(grid.models)}", name)
    files = {name: _given_name(folder, name, grid.models[name], given.get(name)) for name in names}
    _check_room(folder, grid, cells, files)
    for name in names:
        model, path = grid.models[name].random, Path(files[name])
        if model is not None and name not in given and not path.exists():
            report(f"writing random weights, {path}")
            write_synthetic(load_model_spec(model.shape), path, KINDS[model.quantisation], seed=SEED)
    _check_same_models(folder, {name: find_model(files[name]) for name in names})
    ready = {name: _ready(folder, name, files[name], grid, report) for name in names}
    for cell in cells:
        if cell.state is not None and not _has_state(folder, cell, ready[cell.model]):
            report(f"feeding {cell.state} tokens to {cell.model}")
            _make_state(folder, cell, ready[cell.model])
    return ready


def _has_state(folder: Path, cell: Cell, model: ReadyModel) -> bool:
    """
    Whether the state of a cell is there.  One that is damaged or of an older format is removed, to be made again.

    Raises InputError where it is of another model or text: somebody put it there.
    """
    path = state_path(folder, cell)
    if not path.exists():
        return False
    try:
        state = open_state(path)
    except InputError:
        path.unlink()
        return False
    state.check_prompt(model.text[: cell.state])
    state.check_model(open_model(model.path))
    return True


def _given_name(folder: Path, name: str, model: GridModel, given: Path | None) -> str:
    """The shipped name or the absolute path."""
    if given is not None:
        return str(find_model(str(given)).resolve())
    if model.path is None:
        return str((folder / "models" / f"{name}.gguf").resolve())
    return model.path if model.path in SHIPPED else str(find_model(model.path).resolve())


def _check_room(folder: Path, grid: Grid, cells: Sequence[Cell], files: Mapping[str, str]) -> None:
    n_bytes = RECORD_BYTES * len(cells) * grid.repeats
    for name, file in files.items():
        path, random = SHIPPED.get(file, Path(file)), grid.models[name].random
        size = _folder_bytes(path) if path.exists() else _random_bytes(random)
        n_bytes += 0 if path.exists() else size
        n_bytes += 0 if default_store_path(path).exists() or _own_store(folder, name).exists() else size
    states = {state_path(folder, cell): cell for cell in cells if cell.state is not None}
    for path, cell in states.items():
        n_bytes += 0 if path.exists() else (cell.state or 0) * _kv_token_bytes(files[cell.model], grid, cell.model)
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        must = f"must have {format_bytes(n_bytes)} free for models, stores, states and records"
        raise InputError(str(folder), must, format_bytes(free), "free some, or give another folder")


def _folder_bytes(path: Path) -> int:
    files: Iterable[Path] = path.iterdir() if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files)


def _random_bytes(model: RandomModel | None) -> int:
    assert model is not None
    spec = load_model_spec(model.shape)
    plans = tensor_plans(synthetic_config(spec, SEED), KINDS[model.quantisation], spec.tied_embeddings)
    return sum(plan.n_bytes for plan in plans)


def _kv_token_bytes(file: str, grid: Grid, name: str) -> int:
    path, random = SHIPPED.get(file, Path(file)), grid.models[name].random
    spec: ModelSpec = import_model(path).spec if path.exists() or random is None else load_model_spec(random.shape)
    return KV_BYTES * spec.n_layers * spec.attention.n_kv_heads * spec.attention.head_dim


def _check_same_models(folder: Path, paths: Mapping[str, Path]) -> None:
    """Raises InputError where a model file is not that of the runs that are there."""
    record = folder / "models.json"
    known = _known_models(record)
    for name, path in paths.items():
        found = {"file": path.name, "source": source_fingerprint(open_model(path))}
        if known.setdefault(name, found) != found:
            must = f"must be the {name} of the runs in {folder}"
            raise InputError(str(path), must, "another file, or one changed since", "give a new folder")
        if not (spec := folder / "models" / f"{path.name}.yaml").exists():
            write_spec(import_model(path), spec)
    write_text(record, json.dumps(known, indent=1))


def _known_models(record: Path) -> dict[str, Any]:
    """What models.json says, {} where there is none. Raises InputError where it is damaged."""
    if not record.exists():
        return {}
    try:
        known = json.loads(read_text(record))
    except ValueError as error:
        raise InputError(str(record), "must be a JSON document", error, "it is damaged; give a new folder") from error
    if not isinstance(known, dict):
        raise InputError(str(record), "must be a JSON object", type(known).__name__, "give a new folder")
    return known


def _own_store(folder: Path, name: str) -> Path:
    return (folder / "stores" / f"{name}.bundle").resolve()


def _ready(folder: Path, name: str, given: str, grid: Grid, report: Report) -> ReadyModel:
    path, model = find_model(given), grid.models[name]
    store = _store(path, _own_store(folder, name), report)
    text = [token for trace in model.text for token in _token_ids(trace)]
    longest = max(cell.n_tokens for cell in grid.cells if cell.model == name)
    if len(text) < longest:
        must = f"must have {longest} tokens for its longest cell"
        raise InputError(f"models.{name}.text", must, len(text), "name more traces")
    return ReadyModel(name, given, path, store, text, model.replay_routing)


def _store(path: Path, own: Path, report: Report) -> Path:
    """The store beside the model where there is a good one, else one in the folder, made if need be."""
    try:
        open_store(default_store_path(path), open_model(path)).close()
        return default_store_path(path)
    except InputError:
        if not own.exists():
            report(f"preparing the experts of {path}")
        return prepare_store(RuntimeOptions(path, store=own), ignore_progress)


def _token_ids(name: str) -> list[int]:
    trace = load_trace(name)
    if trace.token_id is None:
        raise InputError(name, "must carry token ids", "none", "take another trace")
    return trace.token_id.tolist()


def _make_state(folder: Path, cell: Cell, model: ReadyModel) -> None:
    """One thread: a prompt's numbers do not depend on it, and products of many tokens gain little from a second."""
    target = state_path(folder, cell)
    target.parent.mkdir(exist_ok=True)
    arguments = [*model_arguments(model), "--max-tokens", "0", "--threads", "1", "--save-state", str(target)]
    run_moeplan(f"state of {cell.model}", arguments, model.text[: cell.state], folder)


def model_arguments(model: ReadyModel) -> list[str]:
    """The options of `moeplan run` that say which model and whose routing."""
    found = ["--model", model.given, "--store", str(model.store), "--layout", "bundle"]
    return found if model.replay_routing is None else [*found, "--replay-routing", model.replay_routing]
