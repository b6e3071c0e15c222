"""The verdict t_attention >= t_prefetch as a table: prediction, commoner verdict and hindsight on the same pairs."""

from reports.validation_findings import balanced_text
from reports.validation_text import NOTHING, TextTable, plain_percent
from simulator.validation.cell_result import Hindsight, Verdicts
from simulator.validation.result import BoundaryRow, ValidationResult

HIDDEN = "reads hidden: predicted / measured"


def verdict_table(result: ValidationResult) -> TextTable:
    """By class of cells and by choice of pairs: what is said, how often it is right, and what stands beside."""
    columns = (
        "cells", "pairs", "n", HIDDEN, "agreement", "commoner verdict", "hindsight", "balanced accuracy",
        "hindsight, balanced",
    )  # fmt: skip
    rows = [line for row in result.boundary for line in _rows(row)]
    note = "Pairs: all (token, layer) with a miss; those with 8 or more alike in their run; of these the clear ones."
    return TextTable("Are the reads hidden by attention?", columns, rows, 2, note)


def _rows(row: BoundaryRow) -> list[tuple[str, ...]]:
    chosen: list[tuple[str, Verdicts, Hindsight | None]] = [
        ("all", row.verdicts, None),
        ("with alike", row.alike_verdicts, row.hindsight),
        ("clear", row.clear_verdicts, row.clear_hindsight),
    ]
    return [(row.group, name, *_figures(said, hindsight)) for name, said, hindsight in chosen if said.n_pairs]


def _figures(said: Verdicts, hindsight: Hindsight | None) -> tuple[str, ...]:
    return (
        f"{said.n_pairs:,}",
        hidden_text(said),
        plain_percent(said.agreement_frac),
        plain_percent(said.majority_frac),
        NOTHING if hindsight is None else plain_percent(hindsight.agreement_frac),
        balanced_text(said),
        NOTHING if hindsight is None else plain_percent(hindsight.balanced_frac),
    )


def hidden_text(verdicts: Verdicts) -> str:
    """'40 / 38 %': shares of the pairs that are predicted and that were measured to be hidden."""
    predicted, measured = verdicts.predicted_hidden_frac, verdicts.measured_hidden_frac
    return NOTHING if predicted is None or measured is None else f"{100 * predicted:.1f} / {100 * measured:.1f} %"
