"""Importers: tiny files of each public format, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from moeplan.errors import InputError
from traces.importers import import_trace
from traces.routing_trace import DECODE, PREFILL, RoutingTrace


def imported(path: Path, format_name: str, n_experts: int = 8) -> RoutingTrace:
    """One file."""
    return import_trace([path], format_name, model="m", n_experts=n_experts, source="s", licence="l")


def test_npz(tmp_path: Path) -> None:
    """Ids, weights and positions come over; without a phase all is decode."""
    ids = np.array([[[0, 1]], [[2, 7]]], dtype=np.int8)
    np.savez(tmp_path / "t.npz", expert_ids=ids, expert_weights=np.full(ids.shape, 0.5), token_pos=[100, 101])
    trace = imported(tmp_path / "t.npz", "npz")
    assert trace.expert_ids.tolist() == ids.tolist()
    assert trace.position.tolist() == [100, 101]
    assert trace.phase.tolist() == [DECODE, DECODE]
    assert trace.weights is not None


def test_gpt_oss_json(tmp_path: Path) -> None:
    """Layers are ordered by number, not as strings, and positions are those of the token fed."""
    layers = {f"layer_{i}": {"selected_experts": [i % 4, 5], "selected_probs": [0.75, 0.25]} for i in range(12)}
    document = {"router_data": [{"token_40": layers}, {"token_41": layers}], "category": "law"}
    (tmp_path / "t.json").write_text(json.dumps(document))
    trace = imported(tmp_path / "t.json", "gpt-oss-json")
    assert trace.header.layer_ids == tuple(range(12))
    assert trace.expert_ids[0, 10].tolist() == [2, 5]
    assert trace.position.tolist() == [40, 41]
    assert trace.header.domains == ("law",)


def jsonl(*records: dict) -> str:
    """A routing-jsonl file."""
    head = {"record_type": "metadata", "format": "moe-cache-lab.routing-jsonl", "format_version": 1, "model_id": "m"}
    return "\n".join(json.dumps(record) for record in (head, *records))


def row(phase: str, position: int, layer: int, experts: list[int]) -> dict:
    """One selection."""
    return {"phase": phase, "token_position": position, "layer": layer, "selected_experts": experts}


def test_moe_cache_lab(tmp_path: Path) -> None:
    """Prompt records are layer-major, generated ones token-major; both land in token order."""
    text = jsonl(
        row("prompt", 0, 3, [1]), row("prompt", 1, 3, [2]), row("prompt", 0, 4, [5]), row("prompt", 1, 4, [6]),
        row("generated", 2, 3, [0]), row("generated", 2, 4, [7]),
    )  # fmt: skip
    (tmp_path / "t.jsonl").write_text(text)
    trace = imported(tmp_path / "t.jsonl", "moe-cache-lab")
    assert trace.expert_ids[:, :, 0].tolist() == [[1, 5], [2, 6], [0, 7]]
    assert trace.phase.tolist() == [PREFILL, PREFILL, DECODE]
    assert trace.header.layer_ids == (3, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (jsonl(row("prompt", 0, 3, [1]), row("prompt", 1, 4, [1])), "every layer of every token"),
        (
            jsonl(row("prompt", 0, 3, [1]), row("prompt", 0, 3, [2])),
            r"t.jsonl:3: every token and layer must stand once",
        ),
        (jsonl(row("warm-up", 0, 3, [1])), r"t.jsonl:2: must have phase"),
        (jsonl(row("prompt", 0, 3, [9])), "expert ids must be 0 to 7, got 9"),
        ('{"format": "other"}', "must be metadata"),
        ("", "must be metadata"),
        ("{", "must be a JSON object"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    """Nothing is repaired."""
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        imported(tmp_path / "t.jsonl", "moe-cache-lab")


def test_padding_is_refused(tmp_path: Path) -> None:
    """-1 of a padded row is no expert."""
    np.savez(tmp_path / "t.npz", expert_ids=np.array([[[0, -1]]]))
    with pytest.raises(InputError, match="expert ids must be 0 to 7, got -1"):
        imported(tmp_path / "t.npz", "npz")


def test_files_of_two_shapes_are_refused(tmp_path: Path) -> None:
    """A trace has one shape."""
    np.savez(tmp_path / "a.npz", expert_ids=np.array([[[0, 1]]]))
    np.savez(tmp_path / "b.npz", expert_ids=np.array([[[0, 1], [2, 3]]]))
    with pytest.raises(InputError, match=r"b.npz: must have the layers and top-k of the first file"):
        import_trace([tmp_path / n for n in ("a.npz", "b.npz")], "npz", model="m", n_experts=8, source="s", licence="l")


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    """The message helps."""
    with pytest.raises(InputError, match="did you mean 'npz'"):
        imported(tmp_path / "t", "npy")
