"""
Importers: routing traces that others recorded, one file a format, and a registry.

An importer turns one file into one request; it rejects what it does not understand and repairs nothing.  To add one:
write `traces/importers/<format>.py` with `read(path) -> ImportedRequest`, add it to FORMATS, test it on a tiny file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from moeplan.errors import InputError, nearest
from traces.importers import gpt_oss_json, moe_cache_lab, npz
from traces.importers.request import ImportedRequest
from traces.routing_trace import RoutingTrace, TraceHeader

FORMATS: dict[str, Callable[[Path], ImportedRequest]] = {
    "gpt-oss-json": gpt_oss_json.read,
    "moe-cache-lab": moe_cache_lab.read,
    "npz": npz.read,
}


def import_trace(
    paths: Sequence[Path], format_name: str, *, model: str, n_experts: int, source: str, licence: str
) -> RoutingTrace:
    """
    One trace from files of one format, a request each, in the order given.

    What no file says is asked for: the model, its number of experts, the source and the licence.
    Raises InputError for an unknown format, a bad file, or files whose shapes differ.
    """
    if format_name not in FORMATS:
        raise InputError("--format", "must be a known trace format", repr(format_name), nearest(format_name, FORMATS))
    requests = [FORMATS[format_name](path) for path in paths]
    first = requests[0]
    for path, request in zip(paths, requests, strict=True):
        if (request.layer_ids, request.expert_ids.shape[2]) != (first.layer_ids, first.expert_ids.shape[2]):
            raise InputError(str(path), "must have the layers and top-k of the first file", request.expert_ids.shape)
    domains = tuple(dict.fromkeys(request.domain for request in requests))
    lengths = [len(request.expert_ids) for request in requests]
    all_have_weights = all(request.weights is not None for request in requests)
    header = TraceHeader(
        model=model,
        model_fingerprint="",
        n_experts=n_experts,
        layer_ids=first.layer_ids,
        engine=first.engine,
        source=source,
        licence=licence,
        domains=domains,
        conditions={"imported_from": format_name},
    )
    return RoutingTrace(
        header=header,
        expert_ids=np.concatenate([request.expert_ids for request in requests]),
        phase=np.concatenate([request.phase for request in requests]),
        request_id=np.repeat(np.arange(len(requests), dtype=np.int32), lengths),
        position=np.concatenate([request.position for request in requests]),
        domain=np.repeat(np.array([domains.index(r.domain) for r in requests], dtype=np.int16), lengths),
        weights=np.concatenate([r.weights for r in requests if r.weights is not None]) if all_have_weights else None,
    )
