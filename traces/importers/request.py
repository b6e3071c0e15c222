"""ImportedRequest: what an importer makes of one file; and the checks that importers share."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moeplan.errors import InputError
from moeplan.files import read_text

MAX_FILE_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class ImportedRequest:
    """The arrays of RoutingTrace for one request; weights None where the file has none."""

    expert_ids: np.ndarray  # int16 (n_tokens, n_moe_layers, top_k)
    phase: np.ndarray  # uint8 (n_tokens,)
    position: np.ndarray  # int32 (n_tokens,)
    layer_ids: tuple[int, ...]
    engine: str
    domain: str = "unspecified"
    weights: np.ndarray | None = None  # float16 like expert_ids


def read_json(path: Path) -> Any:
    """A JSON document. Raises InputError."""
    try:
        return json.loads(read_text(path, MAX_FILE_BYTES))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}", "must be JSON", error.msg) from error


def id_cube(rows: Any, path: Path) -> np.ndarray:
    """Nested lists or an array as int16 (n_tokens, n_moe_layers, top_k). Raises InputError."""
    try:
        cube = np.asarray(rows)
    except ValueError as error:
        raise InputError(str(path), "must have the same number of layers and experts for every token", error) from error
    if cube.ndim != 3 or 0 in cube.shape or not np.issubdtype(cube.dtype, np.integer):
        raise InputError(
            str(path), "must hold integer expert ids (tokens, layers, top_k)", f"{cube.dtype} {cube.shape}"
        )
    if cube.min() < -32768 or cube.max() > 32767:
        raise InputError(str(path), "must hold expert ids that fit 16 bits", int(cube.max()))
    return cube.astype(np.int16)
