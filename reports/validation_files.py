"""
A validation on disk, to be kept: the JSON of the contract, and a folder a measurement with tables and figures.

    FOLDER/latest.json
    FOLDER/<date>-<machine>/table.md, table.html, cells.csv, layers.csv, scatter.png, drift.png
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from moeplan.files import atomic_path, write_text
from reports.html_environment import html_environment
from reports.validation_figures import drift_png, scatter_png
from reports.validation_findings import findings, headline
from reports.validation_tables import (
    cells_table,
    held_out_table,
    left_out_table,
    machine_table,
    ops_table,
    prefill_table,
    summary_table,
    trend_table,
    worst_table,
)
from reports.validation_text import TextTable
from reports.validation_verdicts import verdict_table
from simulator.validation.cell_result import CellComparison, LayerComparison
from simulator.validation.result import ValidationResult

LATEST = "latest.json"

LAYER_FIGURES: dict[str, Callable[[LayerComparison, str], float | None]] = {
    "t_attention_us": lambda layer, side: 1e6 * getattr(layer.t_attention_s, side),
    "t_prefetch_us": lambda layer, side: 1e6 * getattr(layer.t_prefetch_s, side),
    "bubble_us": lambda layer, side: 1e6 * getattr(layer.bubble_s, side),
    "hidden_frac": lambda layer, side: getattr(layer, f"{side}_hidden_frac"),
}


def write_validation(result: ValidationResult, folder: Path) -> Path:
    """Write everything, each file whole or not at all; the folder of this measurement. Raises InputError."""
    target = folder / folder_name(result)
    write_text(target / "table.md", as_markdown(result))
    write_text(target / "table.html", as_html(result))
    write_text(target / "cells.csv", as_csv(cell_rows(result)))
    write_text(target / "layers.csv", as_csv(layer_rows(result.cells)))
    _write_bytes(target / "scatter.png", scatter_png(result))
    if result.drift.points:
        _write_bytes(target / "drift.png", drift_png(result.drift))
    write_text(folder / LATEST, as_json(result))
    return target


def folder_name(result: ValidationResult) -> str:
    """Date of the measurement and the machine's processor, in letters that every file system takes."""
    provenance = result.provenance
    date = re.sub(r"[^0-9-]", "", provenance.get("measured_from", "")[:10]) or "undated"
    machine = re.sub(r"[^a-z0-9]+", "-", provenance.get("cpu", "unknown machine").lower()).strip("-")
    return f"{date}-{machine[:48].strip('-')}"


def as_json(result: ValidationResult) -> str:
    """The document of the contract; a line a cell, so that a change can be read and the file stays small."""
    document = result.as_json()
    lines = [f" {json.dumps(key)}: {_compact(value)}" for key, value in document.items() if key != "cells"]
    cells = ",\n  ".join(json.dumps(cell, allow_nan=False) for cell in document["cells"])
    return "{\n" + ",\n".join(lines) + f',\n "cells": [\n  {cells}\n ]\n}}\n'


def _compact(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in value)
        return f"[\n  {rows}\n ]"
    return json.dumps(value, allow_nan=False)


def tables(result: ValidationResult) -> list[TextTable]:
    """All tables in the order of the page; those without rows are left out."""
    makers = (
        summary_table, trend_table, worst_table, ops_table, verdict_table, left_out_table, held_out_table,
        prefill_table, machine_table, cells_table,
    )  # fmt: skip
    return [table for table in (make(result) for make in makers) if table.rows]


def as_markdown(result: ValidationResult) -> str:
    """The page as Markdown."""
    parts = [f"# {headline(result)}", "\n".join(f"- {line}" for line in findings(result))]
    if result.warnings:
        parts.append("\n".join(f"- Note: {warning}" for warning in result.warnings))
    parts.append("![predicted against measured tokens/s](scatter.png)")
    parts += [markdown_table(table) for table in tables(result)]
    if result.drift.points:
        parts.append("## Runs in time order\n\n![runs in time order](drift.png)")
    for title, texts in (("What the figures mean", result.rules), ("How it was made", result.provenance)):
        parts.append(f"## {title}\n\n" + "\n".join(f"- {_spaced(key)}: {text}" for key, text in texts.items()))
    return "\n\n".join(parts) + "\n"


def markdown_table(table: TextTable) -> str:
    """A table with its title and note."""
    rule = ["---" if table.is_word(i) else "---:" for i in range(len(table.columns))]
    rows = [table.columns, rule, *([cell.replace("|", "\\|") for cell in row] for row in table.rows)]
    head = [column.replace("|", "\\|") for column in rows[0]]
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows[1:])]
    return f"## {table.title}\n\n" + "\n".join(lines) + (f"\n\n{table.note}" if table.note else "")


def as_html(result: ValidationResult) -> str:
    """The page as HTML, beside its figures."""
    return (
        html_environment()
        .get_template("validation.html.j2")
        .render(
            title="Do the predictions hold on this machine?",
            headline=headline(result),
            tone="" if result.counts_equal and result.bytes_equal else "no",
            findings=findings(result),
            warnings=result.warnings,
            tables=tables(result),
            has_drift=bool(result.drift.points),
            print={"What the figures mean": result.rules, "How it was made": result.provenance},
        )
    )


def _spaced(key: str) -> str:
    return key.replace("_", " ")


def cell_rows(result: ValidationResult) -> Iterable[dict[str, Any]]:
    """Every cell with its numbers, seconds a token by op on both sides."""
    ops = list(dict.fromkeys(op for cell in result.cells for op in cell.ops))
    for cell in result.cells:
        conditions = cell.conditions
        row: dict[str, Any] = {
            "cell": cell.cell, "model": conditions.model, "model_class": conditions.model_class,
            "ram_cap_bytes": conditions.ram_cap_bytes,
            "storage_limit_bytes_per_s": conditions.storage_limit_bytes_per_s, "prefetch": conditions.prefetch,
            "context": conditions.context, "threads": conditions.threads, "class": cell.cell_class,
            "n_runs": len(cell.runs), "predicted_tokens_per_s": cell.predicted.value,
            "predicted_low": cell.predicted.low, "predicted_high": cell.predicted.high,
            "measured_tokens_per_s": cell.measured_tokens_per_s, "error_frac": cell.error_frac,
            "run_error_low": min(cell.run_errors), "run_error_high": max(cell.run_errors),
            "noise_frac": cell.noise_frac, "run_noise_frac": cell.run_noise_frac,
            "without_own_shape_error_frac": cell.held_out_error_frac, "naive_tokens_per_s": cell.naive_tokens_per_s,
            "counts_equal": cell.counts_equal, "bytes_equal": cell.bytes_equal, "miss_rate": cell.miss_rate,
            "bytes_per_token": cell.bytes_per_token, "read_ratio": cell.read_ratio,
            "predicted_reads_s": cell.reads_s.predicted, "measured_reads_s": cell.reads_s.measured,
        }  # fmt: skip
        for op in ops:
            pair = cell.ops.get(op)
            row[f"predicted_{op}_s"], row[f"measured_{op}_s"] = (pair.predicted, pair.measured) if pair else (0, 0)
            row[f"off_{op}_s"] = cell.off_s.get(op, 0)
        yield {**row, "reason": cell.reason}


def layer_rows(cells: Sequence[CellComparison]) -> Iterable[dict[str, Any]]:
    """
    Every cell's MoE layers, a column a layer and eight rows a cell: means in microseconds, and shares hidden.

    A cell whose model has fewer layers leaves the last columns empty.
    """
    n_layers = max((len(cell.layers) for cell in cells), default=0)
    for cell in cells:
        for name, value_of in LAYER_FIGURES.items():
            for side in ("predicted", "measured"):
                values = [_short(value_of(layer, side)) for layer in cell.layers]
                padded = [*values, *[""] * (n_layers - len(values))]
                row: dict[str, Any] = {"cell": cell.cell, "figure": name, "side": side}
                yield row | {str(index): value for index, value in enumerate(padded)}


def _short(value: float | None) -> str:
    """Three significant digits, nothing where there is none."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def as_csv(rows: Iterable[dict[str, Any]]) -> str:
    """Rows of one set of keys; numbers to four significant digits, nothing where there is none."""
    buffer, writer = io.StringIO(), None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(buffer, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})
    return buffer.getvalue()


def _write_bytes(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
