"""Wrong input in every command: exit status 2, one line that names the option or the file, and nothing written."""

# ruff: noqa: E501  (one case a line, with what it must say)

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import assert_one_line

SHAPE = ["--n-moe-layers", "2", "--n-experts", "8", "--top-k", "2"]
SCENARIO = ["--model", "smallthinker-4b-a0.6b", "--hardware", "rk3588", "--trace", "tiny-smallthinker-prose"]
DESIGN = ["design", "--hardware", "rk3588"]
IMPORT = ["trace", "import", "--model", "m", "--n-experts", "8", "--output", "new.parquet", "--format"]

CASES: list[tuple[list[str], str]] = [
    (["simulate", *SCENARIO, "--context", "1e3"], "--context: must be a whole number, got '1e3'; see `moeplan simulate"),
    (["simulate", *SCENARIO, "--seed=-1"], "--seed: must be at least 0, got '-1'; see `moeplan simulate --help`"),
    (["simulate", *SCENARIO, "--threads", "2"], "--threads: must be 4, for which the figures of rk3588 hold, got 2;"),
    (["simulate", *SCENARIO, "--trace", "bytes"], "bytes: must be a whole Parquet file"),
    (["simulate", "--model", "qwen3-0.6b", "--hardware", "rk3588", "--prefetch", "pre-attention"], "has no experts to read"),
    (["sweep", *SCENARIO, "--output", "new", "--ram-cap", "2GiB..1GiB:5"], "that rises from above zero, got a LAST below FIRST"),
    (["sweep", *SCENARIO, "--output", "new", "--ram-cap", "1GiB..1GiB:5"], "got FIRST and LAST the same"),
    (["sweep", *SCENARIO, "--output", "new", "--ram-cap", "1GiB..2GiB"], "must be a range FIRST..LAST:COUNT"),
    (["sweep", *SCENARIO, "--output", "new", "--ram-cap", "1GiB..2GiB:1"], "with COUNT 2 to 10000, got 1"),
    ([*DESIGN, "--params", "4B", "--active", "6B"], "--active: must be at most the 4.00 B of --params, got 6.00 B;"),
    ([*DESIGN, "--params", "4B", "--like", "nope"], "--like: must be a shipped model or the path of a model spec, got 'nope'"),
    ([*DESIGN, "--params", "4B", "--quantisation", "q9"], "--quantisation: must be a known tensor type, got 'q9'"),
    ([*DESIGN, "--params", "4B", "--zipf", "inf"], "--zipf: must be at most 99, got 'inf'"),
    ([*DESIGN, "--params", "4B", "--repeat", "2"], "--repeat: must be at most 1, got '2'"),
    ([*DESIGN, "--n-experts", "2000", "--top-k", "2", "--ffn-size", "64"], "must leave a shape of at most 1024 experts a layer"),
    (["trace", "synthesize", *SHAPE, "--top-k", "9", "--output", "new.parquet"], "synthesize: top_k: must be 1 to 8, the experts of"),
    (["trace", "synthesize", *SHAPE, "--n-tokens", "-5", "--output", "new.parquet"], "synthesize: n_tokens: must be at least 1, got -5"),
    (["trace", "synthesize", *SHAPE, "--n-tokens", "9", "--output", "new.parquet"], "n_prefill: must be 0 to 9, the tokens in all, got 128"),
    (["trace", "synthesize", *SHAPE, "--repeat", "nan", "--output", "new.parquet"], "synthesize: repeat: must be 0 to 1, got nan"),
    (["trace", "synthesize", *SHAPE, "--n-tokens", "1000000000", "--output", "new.parquet"], "at most 1,000,000,000 for tokens x layers x experts"),
    ([*IMPORT, "npz", "bytes"], "bytes: must be a whole .npz archive of plain arrays, got another kind of file"),
    ([*IMPORT, "npz", "."], ".: must be a file, got a folder or a device"),
    ([*IMPORT, "gpt-oss-json", "object.json"], "must have router_data with selected_experts a layer, got none at 'router_data'"),
    (["model", "import", "bytes", "--output", "new.yaml"], "bytes: must be a GGUF file, a config.json or a folder with one"),
    (["hardware", "check", "bytes"], "bytes: must be UTF-8 text, got a bad byte at 0"),
    (["hardware", "show", "."], ".: must be a file, got a folder or a device"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), CASES, ids=lambda value: value[:60] if isinstance(value, str) else "")
def test_wrong_input_is_one_line(
    moeplan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], line: str
) -> None:
    """The complaint is in our words, not in those of a library; no file is made."""
    (tmp_path / "bytes").write_bytes(bytes(range(255, 127, -1)))
    (tmp_path / "object.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    outcome = moeplan(*arguments)
    assert_one_line(outcome, line)
    assert not any(word in outcome.err for word in ("Input should", "Error(", "Errno", "pickle"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes", "object.json"]


LONG = "x" * 300
PLACES = [
    (
        ["simulate", *SCENARIO, "--output", f"{LONG}.html"],
        "must be a place that can be reached, got File name too long",
    ),
    (["trace", "synthesize", *SHAPE, "--output", LONG], "must be a place that can be reached"),
    (["model", "import", LONG, "--output", "new.yaml"], "must be a place that can be reached"),
    (["run", "--prompt", "a", "--record", LONG], "must be a place that can be reached"),
    (["validate", LONG], "must be a place that can be reached"),
    (["simulate", *SCENARIO, "--trace", "pipe"], "pipe: must be a trace file, got a folder, a pipe or a device"),
    (["run", "--prompt", "a", "--model", "pipe"], "--model: must be a file or a folder, got pipe, a pipe or a device"),
    (["run", "--load-state", "pipe"], "pipe: must be a file that can be read, got a folder, a pipe or a device"),
]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize(("arguments", "line"), PLACES)
def test_odd_places_are_one_line(
    moeplan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], line: str
) -> None:
    """A name that is too long is no fault of ours, and nobody waits for what a pipe may say."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert_one_line(moeplan(*arguments), line)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_reader_that_goes_is_no_fault() -> None:
    """`moeplan ... | head -1`: exit status 0 and silence, whatever prints the answer."""
    for arguments in (["hardware", "show", "rk3588", "--json"], ["model", "list"]):
        call = [sys.executable, "-c", "from command_line.app import main; main()", *arguments]
        with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.close()
            told = running.stderr.read()
        assert (running.returncode, told) == (0, "")
