"""`moeplan validate`: predictions beside a grid that was measured, or beside what others published."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from command_line.console import answer_console
from command_line.progress import progress_bar
from moeplan.errors import InputError

OUTPUT_FOLDER = Path("reports/validation")


def validate(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="The folder of a measured grid.")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Predict measurements that others published, from shipped profiles.")
    ] = False,
    output_folder: Annotated[
        Path | None,
        typer.Option(
            "--output-folder", metavar="DIR", help=f"For JSON, tables and figures.  [default: {OUTPUT_FOLDER}]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Do the predictions hold? Each measured run beside its prediction, and which operation is off."""
    if public == (folder is not None):
        raise InputError("validate", "must be given a DIR or --public", "both" if public else "neither")
    if public:
        from command_line.validate_public import render_public

        render_public(as_json, output_folder)
        return
    if folder is not None:
        _validate_grid(folder, output_folder or OUTPUT_FOLDER, as_json)


def _validate_grid(folder: Path, output_folder: Path, as_json: bool) -> None:
    from moeplan.files import output_target
    from reports.validation_files import LATEST, write_validation
    from reports.validation_files import as_json as json_text
    from simulator.validation import validate as validation
    from simulator.validation.grid_cells import read_grid

    output_target(output_folder / LATEST)
    grid = read_grid(folder)
    with progress_bar("predicting the measured runs", len(grid.runs)) as on_run:
        result = validation.validate(grid, provenance={"command": _command()}, on_run=on_run)
    written = write_validation(result, output_folder)
    if as_json:
        print(json_text(result), end="")
        return
    from reports.validation_terminal import render_validation

    render_validation(result, answer_console())
    print(f"written: {output_folder / LATEST}, {written}")


def _command() -> str:
    """The command line as it was typed, without the folder of the program."""
    return shlex.join(["moeplan", *sys.argv[1:]])
