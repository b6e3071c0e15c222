"""What `moeplan run` prints about the shipped model: nothing that did not happen, and no word without its meaning."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import assert_one_line

from command_line.run_answer import render_run
from reference_runtime.run_result import LayerTiming, RunResult
from reference_runtime.runtime_options import find_model


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """A short run of a copy of the shipped model, beside which nobody has prepared a bundle of experts."""
    model = tmp_path / "tiny.gguf"
    shutil.copy(find_model("tiny-smallthinker"), model)
    return ["run", "--model", str(model), "--prompt", "The state", "--max-tokens", "3", "--threads", "1"]


def test_with_all_in_ram_nothing_waits_and_no_reads_are_advised_on(moeplan, asked: list[str]) -> None:
    """No wait in a token's time and no strips of reads; and no note on how experts would be read faster."""
    told = moeplan(*asked)
    assert told.status == 0
    assert "expert lookup" in told.out
    for word in ("wait", "--prepare", "bubble", "t_prefetch"):
        assert word not in told.out


def test_under_a_cap_the_wait_and_every_strip_are_explained(moeplan, asked: list[str]) -> None:
    """The legend says what zero gates are, of which tokens the hidden share is, and what a bubble is."""
    told = moeplan(*asked, "--ram-cap", "12MiB")
    words = " ".join(told.out.split())
    assert ", wait " in words
    assert "zero gates" in told.out
    assert "neurons of the chosen experts that ReLU sets to zero" in words
    assert "hidden: of the tokens with a miss" in words
    assert "--prepare writes them together once" in words


def test_a_layout_that_was_asked_for_is_not_advised_against(moeplan, asked: list[str]) -> None:
    """Who says --layout split knows of the bundle."""
    assert "--prepare" not in moeplan(*asked, "--layout", "split", "--ram-cap", "12MiB").out


def test_the_share_hidden_is_one_figure_in_text_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Of all tokens and layers with a miss, however many a layer has: not the mean of the layers' own shares."""
    layer = LayerTiming(0, 2e-3, 1e-3, 0.0, 1e-3, 1.0, 0.9, 0.5)
    layers = (layer, replace(layer, layer=1, hidden_frac=0.0, no_miss_frac=0.0))
    conditions = dict.fromkeys(("decode", "cache", "layout", "reads", "routing", "kernels", "cpu"), "-")
    result = RunResult(
        [1], "", 1, 10, 10, 9.0, 1.0, 0, 11, 0.0, 11, 1 / 11, {"wait": 1e-3}, layers, 1, 2, None, {}, conditions
    )
    render_run(result, None)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("hidden")]
    assert len(told) == 2
    assert all("9.1%" in line for line in told)


def test_a_cap_above_the_machine_s_ram_is_said_once(moeplan, asked: list[str]) -> None:
    """It runs where the model takes less, and the line of memory says that the machine has less than the cap."""
    told = moeplan(*asked, "--ram-cap", "100000GiB")
    assert told.status == 0
    words = " ".join(told.out.split())
    assert words.count("more than this machine has (") == 1
    assert "this machine has" not in moeplan(*asked, "--ram-cap", "24MiB").out


def test_a_cap_that_is_too_small_says_what_it_takes(moeplan, asked: list[str]) -> None:
    """The cap is what was got; then the sum of what has to be resident, and what is missing."""
    told = moeplan(*asked, "--ram-cap", "1MiB")
    assert_one_line(told, "--ram-cap: must hold what has to be resident, got 1.00 MiB; it takes dense part", "missing")
    assert re.search(r"\(prompts \d+ tokens? at a time\)", told.err)
