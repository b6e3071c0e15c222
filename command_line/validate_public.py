"""`moeplan validate --public`: published decode speeds beside what the shipped profiles predict for them."""

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from command_line.console import answer_console
from command_line.progress import progress_bar
from moeplan.files import output_target, write_text

PUBLIC_CSV = "public.csv"  # in the output folder
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # one for each assumed fact, in the tables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from simulator.validation.public_predictions import PublicPrediction, PublicValidation


def render_public(as_json: bool, output_folder: Path | None, *, seed: int = 0) -> None:
    """Predict every row, print the tables or one JSON document; write public.csv where a folder is given."""
    output = None if output_folder is None else output_target(output_folder / PUBLIC_CSV)
    from simulator.validation import public_predictions
    from simulator.validation.public_rows import public_rows

    rows = public_rows()
    with progress_bar("predicting rows", len(rows)) as on_row:
        answer = public_predictions.validate_public(rows, seed=seed, on_row=on_row)
    if output is not None:
        write_text(output, answer.as_csv())
    if as_json:
        print(json.dumps(answer.as_json(), indent=1))
        return
    console = answer_console()
    render(answer, console)
    if output is not None:
        console.print(f"\nwritten: {output}", markup=False)


def render(answer: "PublicValidation", console: "Console") -> None:
    """Print a table for each class, what was assumed, what was not predicted and why, and the summary."""
    predicted = [p for p in answer.predictions if p.tokens_per_s is not None]
    facts = dict(pair for p in predicted for pair in p.assumed)
    letters = dict(zip(facts, LETTERS, strict=False))
    for row_class in dict.fromkeys(p.row.row_class for p in predicted):
        console.print(f"\n{row_class}: decode tokens/s", style="bold")
        console.print(_rows_table([p for p in predicted if p.row.row_class == row_class], letters))
    console.print("\n80 %: the interval of the prediction; inside: whether it holds the measured value", markup=False)
    console.print("\nAssumed where the source says nothing (the letters of the last column):", style="bold")
    for fact, text in facts.items():
        console.print(f"  {letters[fact]} {fact}: {text}", markup=False)
    _print_not_predicted([p for p in answer.predictions if p.tokens_per_s is None], console)
    console.print("\nSummary (error is predicted / measured - 1):", style="bold")
    console.print(_summary_table(answer))
    draws = f"{answer.n_samples} draws of the profiles' uncertainties and the assumed facts, seed {answer.seed}"
    console.print(f"Interval: 80 %, {draws}. No profile has a figure from a page of these rows.", markup=False)


def _rows_table(predictions: "list[PublicPrediction]", letters: dict[str, str]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("row", "model", "profile"):
        table.add_column(column, no_wrap=True)
    for column in ("predicted", "80 %", "measured", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("inside", no_wrap=True)
    table.add_column("assumed", no_wrap=True)
    for p in predictions:
        assert p.tokens_per_s is not None
        assert p.error_frac is not None
        speed = p.tokens_per_s
        ends, inside = f"{speed.low:.3g}-{speed.high:.3g}", "yes" if p.covers else "no"
        numbers = (f"{speed.value:.3g}", ends, f"{p.row.tokens_per_s:.3g}", _signed(p.error_frac))
        assumed = " ".join(sorted(letters[fact] for fact, _ in p.assumed))
        table.add_row(p.row.id, p.row.spec, p.row.profile, *numbers, inside, assumed)
    return table


def _signed(fraction: float) -> str:
    """'+25%', '-13%'; what rounds to nothing has no sign."""
    from moeplan.quantity import format_signed

    return f"{format_signed(100 * fraction)}%"


def _print_not_predicted(predictions: "list[PublicPrediction]", console: "Console") -> None:
    if predictions:
        console.print("\nNot predicted:", style="bold")
    by_reason = sorted(predictions, key=lambda p: (p.row.not_predicted, p.row.id))
    for reason, members in groupby(by_reason, key=lambda p: p.row.not_predicted):
        rows = list(members)
        models = ", ".join(dict.fromkeys(p.row.model for p in rows))
        ids = ", ".join(p.row.id for p in rows)
        console.print(f"  {ids} ({models}): {reason}", markup=False)


def _summary_table(answer: "PublicValidation") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("class", no_wrap=True)
    for column in ("rows", "predicted", "median |error|", "median error", "interval covers"):
        table.add_column(column, justify="right", no_wrap=True)
    for s in answer.summaries:
        signs = ((s.median_abs_error_frac, ".1%"), (s.median_error_frac, "+.1%"), (s.coverage_frac, ".0%"))
        cells = ("-" if value is None else format(value, form) for value, form in signs)
        table.add_row(s.row_class, str(s.n_rows), str(s.n_predicted), *cells)
    return table
