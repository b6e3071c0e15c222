"""
A run in a process of its own, so that memory, caches and threads of one run are nothing to the next.

As a program it is `moeplan` that ends when the process that started it ends, however that was: a run that goes on
alone would disturb the next one.
"""

import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from moeplan.errors import InputError

PROGRAM = "reference_runtime.validation_grid.child"  # this file
PR_SET_PDEATHSIG = 1  # prctl(2): the signal that this process gets when its parent dies


def run_moeplan(what: str, arguments: Sequence[str], token_ids: Sequence[int], folder: Path) -> None:
    """
    `moeplan run` on a prompt of token ids; its standard output is dropped, nothing is left of the prompt's file.

    Raises InputError with the command's own line, `what` before it, where it does not end well.
    """
    with tempfile.TemporaryDirectory(prefix=".prompt-", dir=folder) as place:
        prompt = Path(place) / "tokens.json"
        prompt.write_text(json.dumps(list(token_ids)), encoding="utf-8")
        program = [sys.executable, "-m", PROGRAM, str(os.getpid())]
        command = [*program, "run", "--token-ids", str(prompt), "--json", *arguments]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise InputError(what, "must run to its end", f"exit status {done.returncode}: {said}")


def _end_with(parent: int) -> None:
    """On Linux; elsewhere only what ends the parent with an exception ends this process too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before that call
            sys.exit(1)


if __name__ == "__main__":
    _end_with(int(sys.argv.pop(1)))
    runpy.run_module("command_line.app", run_name="__main__", alter_sys=True)
