"""
The command `moeplan`: exit status 0 when an answer was given, 2 when the input is wrong (one line, no traceback).
"""

import errno
import io
import os
import re
import sys
from itertools import pairwise
from typing import NoReturn

import typer

from command_line import hardware, model, trace
from command_line.answers import plan, report, simulate
from command_line.design import design
from command_line.run import run
from command_line.sweep import sweep
from command_line.validate import validate
from moeplan.errors import InputError

app = typer.Typer(
    help="Will this Mixture-of-Experts model run well on this device?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(hardware.app, name="hardware")
app.add_typer(model.app, name="model")
app.add_typer(trace.app, name="trace")
app.command()(simulate)
app.command()(plan)
app.command()(design)
app.command()(sweep)
app.command()(report)
app.command()(run)
app.command()(validate)


# Typer carries its own copy of click; these are the ancestors of the one usage error that it exports.
USAGE_ERROR, CLICK_ERROR = (
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == name)
    for name in ("UsageError", "ClickException")
)


# what a path may meet wherever it is first looked at: too long, a loop of links, a folder that is closed to us
NO_SUCH_PLACE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)
MAX_NAMED = 80  # characters of a path that a line names
BAD_VALUE = re.compile(r"Invalid value for '(?P<option>[^']+)': (?P<must>.*)", re.DOTALL)
IN_OUR_WORDS = (
    ("Input should be", "must be"),
    ("a valid integer, unable to parse string as an integer", "a whole number"),
    ("a valid number, unable to parse string as a number", "a number"),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
)


def main() -> None:
    """Run the command; wrong input becomes one line on standard error."""
    _open_output()
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        _leave_output()
        sys.exit(0)
    except OSError as error:
        if error.errno in NO_SUCH_PLACE and error.filename:
            place = str(error.filename)
            name = place if len(place) <= MAX_NAMED else f"{place[:MAX_NAMED]}..."
            _fail(f"moeplan: {name}: must be a place that can be reached, got {error.strerror}")
        if error.errno != errno.ENOSPC:  # files are handled where they are read and written: only the output is left
            raise
        _leave_output()
        _fail("moeplan: standard output: must be a place that can be written, got a full disk")
    sys.exit(code)


def _run() -> int:
    """The exit status of the command that was asked for."""
    try:
        code = app(standalone_mode=False, prog_name="moeplan")
    except InputError as error:
        _fail(f"moeplan: {error}")
    except typer.Abort:
        return 130
    except MemoryError as error:
        _fail(f"moeplan: memory: must hold what was asked for, got {error or 'too little'}; ask for less")
    except USAGE_ERROR as error:  # type: ignore[misc]
        if type(error).__name__ == "NoArgsIsHelpError":  # a noun without a verb asks for help
            print(error.format_message())
            return 0
        _fail(_usage_line(error.format_message(), error.ctx.command_path if error.ctx else "moeplan"))
    except CLICK_ERROR as error:  # type: ignore[misc]
        _fail(f"moeplan: {error.format_message()}")
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # click's own answer to that is status 1
            raise stop.__context__ from None
        raise
    return code if isinstance(code, int) else 0


def _usage_line(text: str, command: str) -> str:
    """A complaint of the library about an option, in the form of all others; other usage errors are as it says them."""
    found = BAD_VALUE.fullmatch(text)
    if found is None:
        return f"{command}: {text.rstrip('.')}; see `{command} --help`"
    must = found["must"]
    for theirs, ours in IN_OUR_WORDS:
        must = must.replace(theirs, ours)
    option = found["option"].partition(" ")[0]
    given = [after for before, after in pairwise(sys.argv) if before == option]
    given += [word.partition("=")[2] for word in sys.argv if word.startswith(f"{option}=")]
    got = f", got {given[-1]!r}" if given else ""
    return f"moeplan: {option}: {must.rstrip('.')}{got}; see `{command} --help`"


def _open_output() -> None:
    """Streams that were closed go nowhere; what the terminal's encoding lacks becomes a question mark."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _leave_output() -> None:
    """What is still in the buffer of standard output goes nowhere, so that the interpreter ends in silence."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str) -> NoReturn:
    print(" ".join(line.split()), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
