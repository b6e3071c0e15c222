"""Whoever waits sees how far it is: long passes tell their progress, on standard error and on a terminal alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import random_trace, tiny_model

from command_line.progress import step_bar
from hardware_profiles.catalog import load_profile
from simulator.question import Question
from simulator.simulate import simulate
from traces import statistics
from traces.synthetic import synthesize

ROOT = Path(__file__).parent.parent
STATS = ["trace", "stats", "tiny-smallthinker-prose"]


class Seen:
    """What a bar is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))

    def check(self, total: int) -> None:
        """It rises step by step to the end."""
        assert [done for done, _ in self.calls] == list(range(1, total + 1))
        assert {n for _, n in self.calls} == {total}


def test_a_pass_over_a_trace_tells_every_token() -> None:
    """Both scopes of the curve as one count; the synthesizer its own."""
    seen = Seen()
    statistics.hit_rate_curve(random_trace(0, 12, 3, 8, 2), on_progress=seen)
    seen.check(24)
    seen = Seen()
    synthesize(
        n_tokens=9,
        n_prefill=2,
        n_moe_layers=2,
        n_experts=8,
        top_k=2,
        zipf=0.5,
        repeat_frac=0.2,
        seed=0,
        on_progress=seen,
    )
    seen.check(9)


def test_the_replay_of_a_mapped_file_tells_every_step() -> None:
    """The decode tokens and the chunks of the prompt; then the prompt alone is replayed unseen."""
    seen, trace = Seen(), random_trace(0, 12, 3, 8, 2, n_prefill=4)
    question = Question(tiny_model(), load_profile("rk3588"), trace, 10**6, layout="mmap", prefetch_policy="none")
    simulate(question, n_samples=2, on_progress=seen)
    seen.check(9)


def on_a_terminal(*arguments: str) -> tuple[str, str]:
    """Standard output, and what a terminal on standard error is sent."""
    ours, theirs = os.openpty()
    call = [sys.executable, "-m", "command_line.app", *arguments]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=theirs, text=True, cwd=ROOT) as running:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux's way to say that nobody writes any more
                break
            if not part:
                break
            shown += part
        told = running.communicate(timeout=60)[0]
    os.close(ours)
    return told, shown.decode()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no terminals")
def test_a_bar_stands_on_a_terminal_and_nowhere_else(moeplan) -> None:
    """Tokens done of all; standard output is the same with and without."""
    told, shown = on_a_terminal(*STATS, "--json")
    assert "replaying tokens" in shown
    assert "/?" not in shown
    piped = moeplan(*STATS, "--json")
    assert (piped.out, piped.err) == (told, "")


def test_a_bar_without_a_count_shows_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Until something is told there is no `0/?` and no time left."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with step_bar("drawing maps") as on_step:
        pass
    before = capsys.readouterr().err
    with step_bar("drawing maps") as on_step:
        on_step(1, 2)
    assert "drawing maps" in before
    assert "/?" not in before
    assert "-:--" not in before
    assert "1/2" in capsys.readouterr().err
