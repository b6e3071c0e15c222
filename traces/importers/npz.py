"""
A NumPy archive: `expert_ids` (tokens, layers, top_k) and optionally `expert_weights` like it, `token_pos` (tokens,),
`phase` (tokens,) 0 prefill or 1 decode, `layer_ids` (layers,).  Without `phase` every token is taken as decode.
"""

import zipfile
from pathlib import Path

import numpy as np

from moeplan.errors import InputError
from traces.importers.request import ImportedRequest, id_cube
from traces.routing_trace import DECODE


def read(path: Path) -> ImportedRequest:
    """One archive as one request. Raises InputError."""
    if not path.is_file():
        raise InputError(str(path), "must be a file", "a folder or a device" if path.exists() else "nothing there")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        got = "one that holds objects" if zipfile.is_zipfile(path) else "another kind of file"
        raise InputError(str(path), "must be a whole .npz archive of plain arrays", got) from error
    if "expert_ids" not in arrays:
        raise InputError(str(path), "must hold the array expert_ids", sorted(arrays))
    ids = id_cube(arrays["expert_ids"], path)
    weights = arrays.get("expert_weights")
    return ImportedRequest(
        expert_ids=ids,
        phase=np.asarray(arrays.get("phase", np.full(len(ids), DECODE)), dtype=np.uint8),
        position=np.asarray(arrays.get("token_pos", np.arange(len(ids))), dtype=np.int32),
        layer_ids=tuple(int(layer) for layer in arrays.get("layer_ids", np.arange(ids.shape[1]))),
        engine="unknown (npz archive)",
        weights=None if weights is None else weights.astype(np.float16),
    )
