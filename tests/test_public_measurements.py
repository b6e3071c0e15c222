"""Published decode speeds: described from facts and predicted without a look at the speed itself."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import validate_public as command
from hardware_profiles.catalog import load_profile
from moeplan.errors import InputError
from simulator.model import size
from simulator.validation import public_rows as table
from simulator.validation.public_assumptions import THREADS, assumptions_of, at_lanes, at_threads, widened
from simulator.validation.public_models import row_model
from simulator.validation.public_predictions import N_SAMPLES, predict_row, summaries, validate_public
from simulator.validation.public_questions import row_questions, simulated_hit_rate
from simulator.validation.public_routing import hot_uses_frac, n_hot, with_hot_experts
from simulator.validation.public_rows import PublicRow, public_rows


def row_of(row_id: str) -> PublicRow:
    """A row of the shipped table."""
    return next(row for row in public_rows() if row.id == row_id)


# assumptions


def test_half_widths_add_as_squares_of_logarithms() -> None:
    """0.5 on a figure of 0.3: sigma^2 = ln(1.3)^2 + ln(1.5)^2; the value and the other figures stay."""
    before = load_profile("i9-14900")
    after = widened(before, (THREADS,))
    wanted = math.exp(math.sqrt(math.log(1.6) ** 2 + math.log(1.5) ** 2)) - 1
    assert before.cpu.gemv_flop_per_s.uncertainty == 0.6
    assert after.cpu.gemv_flop_per_s.uncertainty == pytest.approx(wanted)
    assert after.cpu.gemv_flop_per_s.value == before.cpu.gemv_flop_per_s.value
    assert after.storage == before.storage


def test_half_the_threads_have_half_the_compute_and_the_same_bus() -> None:
    """Decode products go with the threads; the memory bus does not; more threads than the profile's change nothing."""
    whole = load_profile("i9-14900")
    half = at_threads(whole, 4)
    assert half.cpu.gemv_flop_per_s.value == whole.cpu.gemv_flop_per_s.value / 2
    assert half.ram == whole.ram
    assert at_threads(whole, None) is at_threads(whole, 8) is at_threads(whole, 32) is whole


def test_fewer_lanes_never_read_faster() -> None:
    """With two reads in flight at most the fit leaves out the deeper rows of the table."""
    whole = load_profile("oneplus-13")
    two = at_lanes(whole, 2)
    assert two.storage.table is not None
    assert {row.queue_depth for row in two.storage.table.rows} == {1, 2}
    assert two.storage.queue_depth == 2
    assert at_lanes(whole, 4) is whole


def test_what_a_row_lacks_is_assumed_and_what_it_states_is_not() -> None:
    """Context, threads and storage follow the empty cells; an unknown name is refused."""
    stated = replace(row_of("d157"), assumed=())
    assert assumptions_of(stated, is_sparse=False) == ()
    without = replace(stated, threads=None, context=None)
    assert [a.fact for a in assumptions_of(without, is_sparse=True)] == ["context", "threads", "row skipping"]
    with pytest.raises(InputError, match="known fact"):
        assumptions_of(replace(stated, assumed=("weather",)), is_sparse=False)


def test_an_assumed_fact_widens_the_interval() -> None:
    """The same row with its thread count and type in doubt: a wider interval, the same centre."""
    known = replace(row_of("d157"), assumed=())
    doubtful = replace(known, assumed=("device", "quantisation"))
    sure, unsure = predict_row(known).tokens_per_s, predict_row(doubtful).tokens_per_s
    assert sure is not None
    assert unsure is not None
    assert unsure.value == sure.value
    assert unsure.high / unsure.low > 1.2 * sure.high / sure.low


# routing


def test_hot_experts_are_used_as_often_as_stated() -> None:
    """
    Of 32 experts, top 4, 6 are hot; at a frequency of 0.5 they take 6 x 0.5 of 4 uses, each in half of the tokens.

    A hot expert's own share is 0.75 x 4 / 6 = 0.5, another's 0.25 x 4 / 26 = 0.038.
    """
    model = row_model("smallthinker-4b-a0.6b", "q4_0")
    assert model.experts is not None
    assert n_hot(model.experts) == 6
    assert hot_uses_frac(model.experts, 0.5) == 0.75
    trace = with_hot_experts(model, 0.5, n_prefill=100, n_decode=900, seed=3)
    assert int(trace.is_decode.sum()) == 900
    counts = np.stack([np.bincount(trace.expert_ids[:, i].ravel(), minlength=32) for i in range(trace.n_moe_layers)])
    frequency = np.sort(counts / trace.n_tokens, axis=1)
    assert frequency[:, -6:].mean() == pytest.approx(0.5, rel=0.02)
    assert frequency[:, :-6].mean() == pytest.approx(0.25 * 4 / 26, rel=0.05)


@pytest.mark.parametrize("row_id", ["d059", "d062"])
def test_a_stated_hit_rate_is_met(row_id: str) -> None:
    """The made-up routing hits as often as the source counted, and no cache means no hit."""
    row = row_of(row_id)
    assert simulated_hit_rate(row_questions(row).central) == pytest.approx(row.hit_rate, abs=0.02)


# predictions


def test_the_measured_speed_is_never_used() -> None:
    """A row that claims ten times the speed gets the same prediction, and another error."""
    for row_id in ("d005", "d033", "d046"):
        row = row_of(row_id)
        told, lied = predict_row(row), predict_row(replace(row, tokens_per_s=10 * row.tokens_per_s))
        assert told.tokens_per_s == lied.tokens_per_s
        assert told.error_frac != lied.error_frac


def test_a_row_bound_by_memory_takes_its_bytes_over_the_bandwidth() -> None:
    """
    Llama 3.1 8B in BF16 on two threads: weights without the embedding, and keys and values, over the bandwidth, and
    the overhead of 8 + 3 kernels a layer, 2 of the LM head and 1 of the embedding.
    """
    row = row_of("d189")
    model, profile = row_model(row.spec, row.quantisation), load_profile(row.profile)
    weights = size.file_bytes(model) - size.group_bytes(model)["embedding"]
    mean_context = 128 + 128 / 2
    n_kernels = 11 * model.n_layers + 3
    seconds = (weights + mean_context * size.kv_bytes_per_token(model)) / profile.ram.gemv_bandwidth.value
    seconds += n_kernels * profile.cpu.op_overhead.value
    speed = predict_row(row).tokens_per_s
    assert speed is not None
    assert speed.value == pytest.approx(1 / seconds, rel=0.005)


def test_the_same_seed_gives_the_same_answer() -> None:
    """Draws come from the seed alone; another seed moves the ends a little and the value not at all."""
    row = row_of("d166")
    first, again, other = (predict_row(row, seed=seed).tokens_per_s for seed in (1, 1, 2))
    assert first == again
    assert first is not None
    assert other is not None
    assert other.value == first.value
    assert other.low == pytest.approx(first.low, rel=0.15)
    assert other.low != first.low


def test_rows_in_ram_are_predicted_within_the_goals() -> None:
    """Median error at most 20 %, and the 80 % interval holds at least three in four of the measured speeds."""
    in_ram = [row for row in public_rows() if row.row_class != "streaming"]
    answer = validate_public(in_ram, n_samples=N_SAMPLES)
    found = {summary.row_class: summary for summary in answer.summaries}["all in-RAM CPU"]
    assert found.n_rows == len(in_ram)
    assert found.n_predicted == sum(not row.not_predicted for row in in_ram) >= 35
    assert found.median_abs_error_frac is not None
    assert found.coverage_frac is not None
    assert found.median_abs_error_frac <= 0.20
    assert found.coverage_frac >= 0.75


def test_a_summary_is_of_its_class_alone() -> None:
    """Errors of +10 % and -30 %: median of the sizes 20 %, of the signed -10 %; one of the two is covered."""
    row = row_of("d005")
    one = replace(predict_row(row, n_samples=5), error_frac=0.1, covers=True)
    two = replace(one, error_frac=-0.3, covers=False)
    left_out = predict_row(row_of("d169"))
    found = {s.row_class: s for s in summaries([one, two, left_out])}
    moe = found["in-RAM CPU MoE"]
    assert (moe.n_rows, moe.n_predicted, moe.coverage_frac) == (3, 2, 0.5)
    assert (moe.median_abs_error_frac, moe.median_error_frac) == pytest.approx((0.2, -0.1))
    assert found["in-RAM CPU dense"].median_abs_error_frac is None


# the command


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command sees three rows: one in RAM, one that streams, one that is not predicted."""
    rows = tuple(row_of(row_id) for row_id in ("d033", "d059", "d169"))
    monkeypatch.setattr(table, "public_rows", lambda: rows)
    return [row.id for row in rows]


def test_the_command_prints_every_row(few_rows: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Predicted rows with interval and error, the others with their reason, and what was assumed."""
    command.render_public(as_json=False, output_folder=None)
    out = capsys.readouterr().out
    for row_id in few_rows:
        assert row_id in out
    for text in ("Not predicted:", "linear attention", "context: decode begins", "median |error|", "seed 0"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_commands_json_and_csv_agree(
    few_rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON document and nothing else; the CSV has a line a row with the same figures and the source."""
    command.render_public(as_json=True, output_folder=tmp_path)
    answer = json.loads(capsys.readouterr().out)
    lines = list(csv.DictReader(io.StringIO((tmp_path / command.PUBLIC_CSV).read_text(encoding="utf-8"))))
    assert [line["id"] for line in lines] == [p["row"]["id"] for p in answer["predictions"]] == few_rows
    for line, prediction in zip(lines, answer["predictions"], strict=True):
        assert line["source_url"] == prediction["row"]["source_url"]
        assert bool(line["not_predicted"]) == (prediction["tokens_per_s"] is None) == (line["error_frac"] == "")
        if prediction["tokens_per_s"]:
            assert float(line["predicted_tokens_per_s"]) == pytest.approx(prediction["tokens_per_s"]["value"], rel=1e-3)
            assert line["interval_covers"] == str(prediction["covers"]).lower()
