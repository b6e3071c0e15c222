"""
routing-jsonl version 1 of moe-cache-lab: a metadata line, then one line a (token, layer).

Prompt records come layer by layer, generated ones token by token; (token_position, layer) is unique and complete.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from moeplan.errors import InputError
from moeplan.files import read_text
from traces.importers.request import MAX_FILE_BYTES, ImportedRequest, id_cube
from traces.routing_trace import DECODE, PREFILL

PHASES = {"prompt": PREFILL, "generated": DECODE}


def read(path: Path) -> ImportedRequest:
    """One file as one request. Raises InputError that names the line."""
    lines = [line for line in read_text(path, MAX_FILE_BYTES).splitlines() if line.strip()]
    records = [_record(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    head = records[0] if records else {}
    if head.get("format") != "moe-cache-lab.routing-jsonl" or head.get("format_version") != 1:
        raise InputError(f"{path}:1", "must be metadata of moe-cache-lab.routing-jsonl version 1", head)
    cells: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for number, record in enumerate(records[1:], start=2):
        key, value = _selection(record, f"{path}:{number}")
        if key in cells:
            raise InputError(f"{path}:{number}", "every token and layer must stand once", f"{key} twice")
        cells[key] = value
    positions = sorted({position for position, _ in cells})
    layers = sorted({layer for _, layer in cells})
    missing = [(p, i) for p in positions for i in layers if (p, i) not in cells]
    if missing or not cells:
        raise InputError(str(path), "must have every layer of every token", f"none for {missing[:1]}")
    ids = [[cells[position, layer][1] for layer in layers] for position in positions]
    return ImportedRequest(
        expert_ids=id_cube(ids, path),
        phase=np.array([cells[position, layers[0]][0] for position in positions], dtype=np.uint8),
        position=np.array(positions, dtype=np.int32),
        layer_ids=tuple(layers),
        engine=str(head.get("capture_method", "moe-cache-lab")),
    )


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(where, "must be a JSON object", error.msg) from error
    if not isinstance(record, dict):
        raise InputError(where, "must be a JSON object", type(record).__name__)
    return record


def _selection(record: dict[str, Any], where: str) -> tuple[tuple[int, int], tuple[int, list[int]]]:
    try:
        key = (int(record["token_position"]), int(record["layer"]))
        return key, (PHASES[record["phase"]], [int(e) for e in record["selected_experts"]])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(where, "must have phase, token_position, layer and selected_experts", repr(error)) from error
