"""What the machine's processors did: the kernel's counts by hand, and shares of them."""

from pathlib import Path

import pytest
from parity.undisturbed import others_busy_s

from reference_runtime import processor_time
from reference_runtime.processor_time import ProcessorTimes, load_average, processor_times, steal_frac


def test_steal_is_a_share_of_all_time() -> None:
    """30 s more of 120 s went to others; without counts there is no share; no time passed is no steal."""
    before, after = ProcessorTimes(100, 0, 50, 800, 0, 0, 0, 10), ProcessorTimes(150, 0, 60, 830, 0, 0, 0, 40)
    assert steal_frac(before, after) == pytest.approx(30 / 120)
    assert steal_frac(after, after) == 0
    assert steal_frac(None, after) is None
    assert steal_frac(before, None) is None


def test_the_counts_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line, in ticks of 10 ms, is of all processors; waiting is not busy, guest times count once."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 200 300 4000 500 6 7 8 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    monkeypatch.setattr(processor_time, "PROC_STAT", stat)
    monkeypatch.setattr(processor_time.os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    times = processor_times()
    assert times == pytest.approx((1, 2, 3, 40, 5, 0.06, 0.07, 0.08))
    assert times is not None
    assert times.busy_s == pytest.approx(6.21)


@pytest.mark.parametrize("text", ["", "cpu 1 2 3 4\n", "intr 1 2 3 4 5 6 7 8 9\n", None])
def test_a_system_without_counts_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    """No file, an empty one, an old kernel's four numbers, or another line: not known, and no turn is disturbed."""
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    monkeypatch.setattr(processor_time, "PROC_STAT", stat)
    assert processor_times() is None
    assert others_busy_s() == 0


def test_counts_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine, where it has them: no count goes back by more than the kernel's own idle estimate may."""
    before, after = processor_times(), processor_times()
    if before is not None and after is not None:
        assert after.busy_s >= before.busy_s > 0
    average = load_average()
    assert average is None or average >= 0
