"""
The JSON files of GPT-OSS-MoE-ExpertFingerprinting (github.com/AmanPriyanshu, Apache-2.0): decode steps of gpt-oss.

router_data: one object a decode pass, {"token_<position>": {"layer_<i>": {"selected_experts", "selected_probs"}}}.
"""

from pathlib import Path
from typing import Any

import numpy as np

from moeplan.errors import InputError
from traces.importers.request import ImportedRequest, id_cube, read_json
from traces.routing_trace import DECODE


def read(path: Path) -> ImportedRequest:
    """One file (its first example where it holds a list) as one request of decode tokens. Raises InputError."""
    document = read_json(path)
    example = document[0] if isinstance(document, list) and document else document
    try:
        passes = [next(iter(step.items())) for step in example["router_data"]]
        layer_ids = tuple(sorted(int(name.removeprefix("layer_")) for name in passes[0][1]))
        ids = [[_layer(layers, i)["selected_experts"] for i in layer_ids] for _, layers in passes]
        weights = [[_layer(layers, i)["selected_probs"] for i in layer_ids] for _, layers in passes]
        position = [int(name.removeprefix("token_")) for name, _ in passes]
        domain = str(example.get("category") or "unspecified")
    except (KeyError, TypeError, ValueError, IndexError, StopIteration, AttributeError) as error:
        got = f"none at {error.args[0]!r}" if isinstance(error, KeyError) else "another form"
        raise InputError(str(path), "must have router_data with selected_experts a layer", got) from error
    return ImportedRequest(
        expert_ids=id_cube(ids, path),
        phase=np.full(len(ids), DECODE, dtype=np.uint8),
        position=np.array(position, dtype=np.int32),
        layer_ids=layer_ids,
        engine="Hugging Face transformers, forward hook on the router",
        domain=domain,
        weights=np.array(weights, dtype=np.float16),
    )


def _layer(layers: dict[str, Any], layer: int) -> dict[str, Any]:
    return layers[f"layer_{layer}"]
