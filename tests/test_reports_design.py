"""A design for a device on the page and on the terminal: what holds, what is safe, and that nothing need be read."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from reports.design_answer import (
    design_headline,
    design_question,
    design_reason,
    design_reasons,
    design_speed,
    design_tone,
)
from reports.design_figure import design_figure
from reports.design_terminal import render_design
from reports.html import write_design_report
from simulator.plan_result import Design, DesignResult
from simulator.result import Interval

GIB = 2**30
FAST = Interval(8.02, 7.2, 8.5)


def printed(result: DesignResult) -> str:
    """What a terminal of 100 columns shows."""
    buffer = io.StringIO()
    render_design(result, Console(file=buffer, width=100, force_terminal=False))
    return buffer.getvalue()


def text_of(path: Path) -> str:
    """The words of a page."""
    return " ".join(re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8")).split())


def page_of(result: DesignResult, tmp_path: Path) -> str:
    """The words of a result's page."""
    write_design_report(result, tmp_path / "design.html")
    return text_of(tmp_path / "design.html")


def design(n_experts: int, top_k: int, ffn_size: int, hidden_frac: float | None, rate: float | None, **more) -> Design:
    """A design that runs."""
    fields: dict = {
        "n_params": 4 * 10**9, "n_active_params": 6 * 10**8, "expert_bytes": 2592 * ffn_size,
        "storage_bytes": 2 * GIB, "n_slots": 300, "is_recorded": False, "verdict": "streams", "hit_rate": 0.4,
        "t_attention_s": 4e-4, "t_prefetch_s": 8e-7 * ffn_size * top_k, "row_prefetch_s": 2e-3,
        "tokens_per_s": FAST, "no_locality_tokens_per_s": 6.5,
    }  # fmt: skip
    return Design(n_experts, top_k, ffn_size, hidden_frac=hidden_frac, holds_from_bytes_per_s=rate, **(fields | more))


DESIGNS = DesignResult(
    (design(16, 2, 1536, 0.0, None), design(48, 2, 512, 0.4, 2e9), design(96, 2, 256, 0.95, 9e8)),
    0.9, "4.00 B parameters", True, False, None,
    {"device": "Some board; and more", "routing": "made up", "ram_cap": "7.20 GiB (all that is left)"},
    ("No such model exists.",),
)  # fmt: skip
RESIDENT = replace(
    DESIGNS,
    designs=tuple(
        design(
            8,
            2,
            size,
            None,
            None,
            verdict="resident",
            tokens_per_s=Interval(speed, speed - 1, speed + 1),
            all_in_ram_bytes=need,
        )
        for size, speed, need in ((256, 30.0, 2 * GIB), (64, 40.0, round(2.1601 * GIB)))
    ),
)
ONE = replace(RESIDENT, designs=RESIDENT.designs[1:])


def test_figures_are_the_same_bytes_each_time() -> None:
    """No clock and no random ids; also where nothing is read."""
    for result in (DESIGNS, RESIDENT):
        assert design_figure(result) == design_figure(result)


def test_a_size_stands_once_in_a_line_of_the_figure() -> None:
    """A line goes from size to size: designs of one size lie on lines with names that tell them apart."""
    shapes = [(n, k, size) for n in (32, 64) for k in (2, 4) for size in (64, 128)]
    result = replace(DESIGNS, designs=tuple(design(n, k, size, 0.5, None) for n, k, size in shapes))
    figure = design_figure(result)
    for name in ("top-2, 32 experts", "top-4, 64 experts"):
        assert name in figure
    fewer = design_figure(replace(result, designs=result.designs[:4]))
    assert "top-4" in fewer
    assert "32 experts" not in fewer


def test_a_design_says_where_it_holds_and_what_it_would_take() -> None:
    """The largest experts for which it holds; nowhere: the design that asks least of the storage."""
    assert design_headline(DESIGNS) == "Attention hides the reads of experts of up to 648 KiB"
    assert design_tone(DESIGNS) == "yes"
    assert "96 x 256, top-2" in design_reason(DESIGNS)
    nowhere = replace(DESIGNS, designs=DESIGNS.designs[:2])
    assert design_tone(nowhere) == "no"
    assert "At most 40 % of the cases with a miss are hidden, and it holds from 90 % on." in design_reason(nowhere)
    assert "that would do, for 48 x 512, top-2, reads 2.00 GB/s in sequence." in design_reason(nowhere)
    hopeless = replace(DESIGNS, designs=DESIGNS.designs[:1])
    assert "No read is hidden" in design_reason(hopeless)
    assert "no storage up to what the RAM sustains" in design_reason(hopeless)
    stuck = design(8, 2, 64, None, None, verdict="cannot_run", tokens_per_s=None, no_locality_tokens_per_s=None)
    poor = replace(DESIGNS, designs=(replace(stuck, reason="64 MiB are missing"),))
    assert design_headline(poor) == "Nothing here can run"
    assert design_tone(poor) == "no"
    assert design_reason(poor) == "8 x 64, top-2: 64 MiB are missing"


def test_where_all_fits_into_ram_the_answer_is_good_and_says_how_to_ask_on(tmp_path: Path) -> None:
    """Green; nothing need be read; the cap from which reads begin; a figure of speeds alone, without empty axes."""
    assert design_tone(RESIDENT) == "yes"
    page = page_of(RESIDENT, tmp_path)
    for text in (" ".join(printed(RESIDENT).split()), page):
        assert "Nothing need be read: every design fits into RAM" in text
        assert "of which the model may take 7.20 GiB" in text
        assert "every design fits from --ram-cap 2.161GiB on" in text
        assert "takes as long" not in text
    assert 'class="answer yes"' in (tmp_path / "design.html").read_text(encoding="utf-8")
    assert "t_attention dashed" not in page
    assert "Holds" not in page.partition("Small print")[0]
    assert len(design_figure(RESIDENT)) < len(design_figure(DESIGNS))
    some = replace(RESIDENT, designs=(*RESIDENT.designs, design(8, 2, 64, None, None, verdict="cannot_run")))
    assert design_headline(some) == "Nothing need be read: every design that runs fits into RAM"


def test_designs_in_ram_beside_others_are_counted() -> None:
    """They read nothing, which the headline of the others does not say."""
    both = replace(DESIGNS, designs=(*DESIGNS.designs, *RESIDENT.designs))
    assert "2 of the 5 designs fit into RAM and read nothing." in design_reason(both)
    none_hidden = replace(DESIGNS, designs=(*DESIGNS.designs[:2], *RESIDENT.designs))
    assert design_headline(none_hidden) == (
        "Attention hides the reads of none of the 2 designs that read; the other 2 fit into RAM and read nothing"
    )
    assert design_tone(none_hidden) == "likely"
    assert "fit into RAM" not in design_reason(DESIGNS)


@pytest.mark.parametrize(
    ("result", "target", "tone", "words", "cautious"),
    [
        (RESIDENT, 28, "yes", "Yes: 2 of 2 designs reach 28 tokens/s", "All 2 do at the low end"),
        (RESIDENT, 29.5, "yes", "Yes: 2 of 2 designs reach 29.5 tokens/s", "1 of these does at the low end"),
        (RESIDENT, 39.5, "likely", "Likely: 1 of 2 designs reach 39.5 tokens/s", "It does not at the low end"),
        (RESIDENT, 50, "no", "No: none of 2 designs reaches 50 tokens/s", "They run at"),
        (DESIGNS, 7, "likely", "Likely: 3 of 3 designs reach 7 tokens/s", "All 3 do at the low end"),
        (DESIGNS, 8, "likely", "Likely: 3 of 3 designs reach 8 tokens/s", "None does at the low end"),
        (DESIGNS, 9, "no", "No: none of 3 designs reaches 9 tokens/s", "All run alike"),
        (ONE, 39, "yes", "Yes: the design reaches 39 tokens/s", "It does at the low end"),
        (ONE, 41, "no", "No: the design does not reach 41 tokens/s", "The fastest is"),
    ],
)
def test_a_target_decides_first(
    result: DesignResult, target: float, tone: str, words: str, cautious: str, tmp_path: Path
) -> None:
    """
    Tone and first sentence are about the target, then come the low end and the speeds; a plain yes needs a design whose
    speed hangs on no routing.
    """
    asked = replace(result, target_tokens_per_s=target)
    assert (design_tone(asked), design_headline(asked)) == (tone, words)
    assert f"reach {target:g} tokens/s on Some board" in design_question(asked)
    first, why = design_reasons(asked)
    assert first.startswith(cautious)
    assert first.endswith(design_speed(asked))
    assert ("made up" in first) == (result is DESIGNS and target == 7)
    assert why.startswith(f"{design_headline(result)}. ")
    page = page_of(asked, tmp_path)
    for text in (" ".join(printed(asked).split()), page):
        assert text.index(words) < text.index(first) < text.index(why[:60])
    assert f'class="answer {tone}"' in (tmp_path / "design.html").read_text(encoding="utf-8")
    assert ("no storage makes them faster" in page) == (tone == "no" and result is not DESIGNS)


def test_storage_that_the_device_cannot_have_is_marked_and_told(tmp_path: Path) -> None:
    """In the sentence, on each speed of the table, and once below it; nothing is marked where all can be had."""
    link = "more than the link of it carries (1 GB/s)"
    beyond = replace(DESIGNS.designs[1], holds_from_doubt=link, holds_safely_from_doubt=link)
    asked = replace(beyond, holds_safely_from_bytes_per_s=2.5e9)
    result = replace(DESIGNS, designs=(asked,))
    assert design_reason(result).endswith(f"reads 2.00 GB/s in sequence (2.50 GB/s to be safe): {link}.")
    assert "2.00† (2.50†)" in printed(result)
    for text in (" ".join(printed(result).split()), page_of(result, tmp_path)):
        assert text.count(f"†: this device cannot have that storage, {link}") == 1
    assert "2.50 GB/s †" in page_of(result, tmp_path)
    half = replace(DESIGNS, designs=(replace(asked, holds_from_doubt=""),))
    assert design_reason(half).endswith(f"(2.50 GB/s to be safe); the safe one is {link}.")
    assert "2.00 (2.50†)" in printed(half)
    assert "†" not in printed(DESIGNS) + page_of(DESIGNS, tmp_path)


def speeds(*values: float, **more) -> DesignResult:
    """Designs that differ in their speeds."""
    made = (
        design(8 + index, 2, 64, 1.0, 1e8, tokens_per_s=Interval(value, value, value))
        for index, value in enumerate(values)
    )
    return replace(DESIGNS, designs=tuple(made), target_tokens_per_s=None, **more)


def test_a_fastest_is_named_only_where_it_is_faster() -> None:
    """A few percent are no difference; a design that computes less than all others is told to."""
    assert design_speed(speeds(10.0, 20.0)) == "The fastest is 9 x 64, top-2: 20.0 tokens/s (20.0 to 20.0)."
    assert design_speed(speeds(20.0, 19.9)) == "All run alike, at 20.0 tokens/s (20.0 to 20.0) and little less."
    assert design_speed(speeds(20.0, 19.1, 7.0)).startswith("The fastest are alike (8 x 64, top-2; 9 x 64, top-2): 20")
    assert "and 2 more)" in design_speed(speeds(20.0, 19.9, 19.95, 19.9, 20.0, 7.0))
    result = speeds(10.0, 20.0)
    lean = replace(result, designs=(result.designs[0], replace(result.designs[1], n_active_params=3 * 10**8)))
    assert design_speed(lean).endswith("; it also computes least, 300 M parameters a token.")


def test_where_nothing_is_read_no_size_of_experts_is_called_the_fastest() -> None:
    """Its few parameters a token are: the range of speeds and what decides are told; with A fixed it is a fair race."""
    told = design_speed(RESIDENT)
    assert told.startswith("They run at 30.0 to 40.0 tokens/s")
    assert "fastest" not in told
    assert "The fastest is 8 x 64" in design_speed(replace(RESIDENT, active_fixed=True))


def test_without_prefetch_attention_is_not_said_to_hide_anything(tmp_path: Path) -> None:
    """What holds is what a prefetch would do, on the terminal, on the page and where none holds."""
    late = replace(DESIGNS, is_prefetched=False)
    told, page = printed(late), page_of(late, tmp_path)
    for text in (told, page, design_reason(replace(late, designs=DESIGNS.designs[:1]))):
        assert "Attention hides" not in text
    assert "With a prefetch before it attention would hide the reads of experts of up to 648 KiB" in page
    assert "Attention hides the reads of experts of up to 648 KiB" in printed(DESIGNS)


def test_a_design_that_was_not_simulated_is_told_with_the_reason(tmp_path: Path) -> None:
    """Beside those that were; in the row it is not called one that cannot run."""
    many = design(999, 2, 64, None, None, verdict="failed", reason="too many", tokens_per_s=None)
    both = replace(DESIGNS, designs=(*DESIGNS.designs, many, replace(many, n_experts=888)))
    for text in (" ".join(printed(both).split()), page_of(both, tmp_path)):
        assert "Not simulated: 999 x 64, top-2; 888 x 64, top-2 (too many)" in text
        assert "not tried" in text
        assert "cannot run" not in text
    assert "and be simulated" in design_headline(replace(DESIGNS, designs=(many,)))


def test_what_is_safe_for_a_design_stands_beside_what_is_predicted(tmp_path: Path) -> None:
    """Share and storage speed with those of the low end, on the page and on the terminal; likely is not yes."""
    likely = replace(DESIGNS.designs[2], hidden_low_frac=0.87, holds_safely_from_bytes_per_s=1.31e9)
    safe = replace(DESIGNS.designs[1], hidden_frac=0.97, hidden_low_frac=0.92, holds_safely_from_bytes_per_s=4e8)
    result = replace(DESIGNS, designs=(likely,))
    page, told = page_of(result, tmp_path), printed(result)
    assert all(text in page for text in ("87 %", "1.31 GB/s", "likely"))
    assert all(text in told for text in ("likely", "95 (87)", "0.900 (1.31)"))
    assert "at the low end of the 80 % interval it holds for none." in design_reason(result)
    assert "at the low end of the 80 % interval it holds up to 1.27 MiB" in design_reason(
        replace(DESIGNS, designs=(replace(likely, expert_bytes=2 * safe.expert_bytes), safe))
    )
    assert "it holds as well." in design_reason(replace(DESIGNS, designs=(safe,)))
    assert "yes" in printed(replace(DESIGNS, designs=(safe,)))


def test_a_larger_expert_that_holds_beside_smaller_ones_that_do_not_is_said() -> None:
    """The share is not assumed to rise as experts get smaller."""
    odd = replace(DESIGNS, designs=(design(48, 2, 512, 0.95, 9e8), design(96, 8, 256, 0.2, 2e9)))
    assert "1 of the 1 designs with smaller ones miss it all the same" in design_reason(odd)


@pytest.mark.parametrize("fixed", [(True, True), (True, False), (False, True), (False, False)])
def test_terminal_and_page_show_every_design(tmp_path: Path, fixed: tuple[bool, bool]) -> None:
    """Shapes, times, shares and speeds, on lines of at most 100 columns; one that cannot run has none."""
    stuck = design(8, 2, 64, None, None, verdict="cannot_run", tokens_per_s=None, no_locality_tokens_per_s=None)
    result = replace(DESIGNS, designs=(*DESIGNS.designs, stuck), params_fixed=fixed[0], active_fixed=fixed[1])
    told, page = printed(result), page_of(result, tmp_path)
    assert all(len(line) <= 100 for line in told.splitlines())
    for text in ("likely", "no", "40 (-)", "95 (-)", "cannot run", "2.00 (none)", "8.02 (7.20 to 8.50)", "Some board"):
        assert text in told
    assert ("4.00 B" in told.replace("4.00 B parameters", "")) == (not fixed[0])
    assert ("600 M" in told) == (not fixed[1])
    for text in ("16 x 1536", "96 x 256", "cannot run", "2.00 GB/s", "8.02", "6.50", "No such model exists."):
        assert text in page


def test_designs_beyond_the_device_are_what_ifs_and_count_nowhere(tmp_path: Path) -> None:
    """Told once and first; their speeds have a mark; where all that run are beyond, the headline says so."""
    cap = "The RAM cap of 12.0 GiB is more than the 7.20 GiB that this device leaves to a program"
    small, large = RESIDENT.designs
    mixed = replace(
        RESIDENT, designs=(small, replace(large, is_beyond_device=True)), target_tokens_per_s=35.0, larger_cap=cap
    )
    assert design_headline(mixed) == "No: the design does not reach 35 tokens/s"
    first = f"{cap}; 1 of the 2 designs takes more: a what-if, with ? at its speed. Only the others count below."
    assert design_reasons(mixed)[0] == first
    for text in (" ".join(printed(mixed).split()), page_of(mixed, tmp_path)):
        assert first in text
        assert text.count("more than the 7.20 GiB") == 1
        assert "40.0?" in text
        assert "30.0?" not in text
    elsewhere = replace(mixed, designs=tuple(replace(one, is_beyond_device=True) for one in RESIDENT.designs))
    assert design_headline(elsewhere) == (
        "Not on this device as bought; with that RAM: 1 of 2 designs reach 35 tokens/s"
    )
    assert design_tone(elsewhere) == "cannot_run"
    assert design_reasons(elsewhere)[0] == f"{cap}. Every figure here is for a device that has the RAM."
    fits = replace(RESIDENT, larger_cap=cap)
    assert design_reasons(fits)[0] == f"{cap}; every design that runs takes less of it and fits."
    assert "RAM cap" not in design_reasons(RESIDENT)[0]


def test_a_target_far_out_of_reach_is_not_drawn() -> None:
    """It would flatten the speeds; one within sight is."""
    for target, is_drawn in ((20.0, True), (1000.0, False)):
        assert ("target" in design_figure(replace(DESIGNS, target_tokens_per_s=target))) == is_drawn
