"""What the comparison with llama.cpp is timed by: turns in rounds, and the page that the figures go to."""

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from parity import undisturbed
from parity.llama_cpp_rows import Row, as_document, as_line, as_markdown, summary
from parity.undisturbed import Turn, repeated, take_turns

N_ROUNDS, N_MOST_ROUNDS, N_QUIET = 7, 12, 5


class Machine:
    """A clock and what others use of it: every turn takes a second, in which others use the next of the shares."""

    def __init__(self, shares: Iterator[float]) -> None:
        self.now_s = self.others_s = 0.0
        self.taken: list[str] = []
        self._shares = shares

    def turn(self, name: str) -> Turn:
        """A turn that says how many went before it."""

        def take() -> list[float]:
            self.taken.append(name)
            self.now_s += 1
            self.others_s += next(self._shares)
            return [float(len(self.taken)), 1e9, 0.0]  # the median of these is the number of the turn

        return take


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> type[Machine]:
    """The clock of parity.undisturbed is that of the machine made last; rounds are few."""
    made: list[Machine] = []

    class Watched(Machine):
        def __init__(self, shares: Iterator[float]) -> None:
            super().__init__(shares)
            made.append(self)

    for name, value in (("N_ROUNDS", N_ROUNDS), ("N_MOST_ROUNDS", N_MOST_ROUNDS), ("N_QUIET", N_QUIET)):
        monkeypatch.setattr(undisturbed, name, value)
    monkeypatch.setattr(undisturbed, "time", SimpleNamespace(perf_counter=lambda: made[-1].now_s))
    monkeypatch.setattr(undisturbed, "others_busy_s", lambda: made[-1].others_s)
    monkeypatch.setattr(undisturbed, "favoured", contextlib.nullcontext)
    return Watched


def constant(share: float) -> Iterator[float]:
    """The same share for ever."""
    while True:
        yield share


def test_on_an_idle_machine_every_turn_of_the_fewest_rounds_counts(on: type[Machine]) -> None:
    """a, b, a, b, ...: N_ROUNDS of them, and each has all its turns."""
    machine = on(constant(0.01))
    taken = take_turns({name: machine.turn(name) for name in "ab"})
    assert machine.taken == ["a", "b"] * N_ROUNDS
    assert taken == {"a": list(range(1, 2 * N_ROUNDS, 2)), "b": list(range(2, 2 * N_ROUNDS + 1, 2))}


def test_disturbed_turns_are_replaced_by_later_ones(on: type[Machine]) -> None:
    """With the first 4 turns of one disturbed, rounds go on until N_QUIET others came; the 4 do not count."""
    machine = on(iter([0.5] * 4 + [0.0] * 100))
    taken = take_turns({"a": machine.turn("a")})
    assert len(machine.taken) == 4 + N_QUIET > N_ROUNDS
    assert taken == {"a": [5, 6, 7, 8, 9]}


def test_on_a_machine_that_is_never_idle_the_least_disturbed_turns_count(on: type[Machine]) -> None:
    """After N_MOST_ROUNDS the N_QUIET turns in which others used least are taken, in their order."""
    shares = [1.0, 0.5, 0.9, 0.4, 0.8, 0.3, 0.7, 0.2, 0.6, 0.15, 1.1, 1.2]
    assert len(shares) == N_MOST_ROUNDS
    machine = on(iter(shares))
    assert take_turns({"a": machine.turn("a")}) == {"a": [2, 4, 6, 8, 10]}


def test_a_repeated_call_leaves_the_first_one_out() -> None:
    """The first call warms up; at least one more is timed, and a slow one is the only one."""
    calls: list[int] = []

    def slow() -> None:
        calls.append(len(calls))
        time.sleep(0.0 if len(calls) == 1 else 1.1 * undisturbed.TURN_S)

    seconds = repeated(slow)
    assert len(calls) == 2
    assert len(seconds) == 1
    assert seconds[0] >= undisturbed.TURN_S


ROWS = (
    Row("in RAM", "tiny, 1 thread", "tokens/s", 10.5, 10.0, (9.0, 10.0, 12.0)),
    Row("in RAM", "tiny, 2 threads", "tokens/s", 18.0, 20.0, (20.0,)),
    Row("in RAM", "4B, 1 thread", "tokens/s", 15.0, 10.0),
    Row("routing", "tiny", "rows with the same experts", 1.0, 0.8),
)


def test_errors_are_predicted_over_measured_and_spreads_half_the_range() -> None:
    """10.5 for 10 is +5 %; runs from 9 to 12 are 10 +- 15 %; one run has no spread."""
    first, second, third, _ = ROWS
    assert [row.error_frac for row in (first, second, third)] == pytest.approx([0.05, -0.1, 0.5])
    assert first.spread_frac == pytest.approx(0.15)
    assert second.spread_frac is third.spread_frac is None
    assert as_line(first) == "| tiny, 1 thread | tokens/s | 10.5 | 10 | +5.0% | 3 | ± 15.0% |"


def test_the_page_has_every_row_under_its_part_and_the_errors_in_short() -> None:
    """Median and worst of a figure without regard to sign; routing, which nothing predicts, has no error."""
    (line,) = summary(ROWS)
    assert line == "- in RAM, tokens/s: median absolute error 10.0%, worst 50.0%, within 10 % in 2 of 3"
    page = as_markdown(ROWS, {"cpu": "one", "command": "`this`"})
    assert page.startswith("# llama.cpp, predicted and measured\n\n- cpu: one\n- command: `this`\n")
    in_ram, routing = page.index("## In RAM"), page.index("## Routing")
    assert routing < page.index(as_line(ROWS[3])) < in_ram < min(page.index(as_line(row)) for row in ROWS[:3])
    assert "## Mapped" not in page
    document = as_document(ROWS, {"cpu": "one"})
    assert document["conditions"] == {"cpu": "one"}
    assert [row["error_frac"] for row in document["rows"]] == [row.error_frac for row in ROWS]
