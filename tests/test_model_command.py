"""`moeplan model`: the sub-app as a person or a script calls it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line.model import app
from simulator.model.catalog import load_model_spec, model_names

CONTRACT = {
    "n_params", "n_active_params", "expert_bytes", "dense_bytes", "file_bytes", "kv_bytes_per_token", "n_layers",
    "n_moe_layers", "n_experts", "top_k",
}  # fmt: skip


@pytest.mark.parametrize("name", model_names())
def test_show_json_has_the_contracts_names(name: str) -> None:
    """One JSON document with whole numbers under the agreed names, for MoE and dense models alike."""
    result = CliRunner().invoke(app, ["show", name, "--json"])
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures.keys() >= CONTRACT
    assert all(type(figures[key]) is int for key in CONTRACT)


def test_show_json_has_the_published_figures() -> None:
    """SmallThinker-4B: bytes of an expert and KV bytes exactly."""
    figures = json.loads(CliRunner().invoke(app, ["show", "smallthinker-4b-a0.6b", "--json"]).stdout)
    assert (figures["expert_bytes"], figures["kv_bytes_per_token"], figures["top_k"]) == (1_990_656, 32_768, 4)


def test_list_names_every_model_whole_on_80_columns() -> None:
    """No name and no unit is cut short in a narrow terminal."""
    output = CliRunner().invoke(app, ["list"]).stdout
    assert all(name in output for name in model_names())
    assert "…" not in output
    assert "storage" in output
    assert "resident" in output


def test_show_is_readable() -> None:
    """Storage and resident stand side by side, and the spec's notes are there."""
    output = CliRunner().invoke(app, ["show", "smallthinker-4b-a0.6b"]).stdout
    assert "storage (whole file)" in output
    assert "resident without experts" in output
    assert "arXiv:2507.20984" in output


def test_import_writes_a_spec_and_reports_on_standard_error(tmp_path: Path) -> None:
    """The written YAML loads; what the file did not say goes to standard error."""
    config = {
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 96, "max_position_embeddings": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    output = tmp_path / "out.yaml"
    result = CliRunner().invoke(app, ["import", str(tmp_path / "config.json"), "--output", str(output)])
    assert result.exit_code == 0
    assert load_model_spec(str(output)).n_layers == 2
    assert "note: head_dim" in result.stderr
    assert "note:" not in result.stdout
