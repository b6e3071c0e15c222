"""A run beside its prediction: no error where there is none, and an error is traced to the operation that is off."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from forward_oracle import SMALL, random_tokens, random_weights, vocabulary
from validation_grids import (
    CAP_BYTES,
    N_COUNTED,
    N_PROMPT,
    N_WARM_UP,
    add_run,
    run_file,
    slower,
    start_grid,
    write_json,
)

from hardware_profiles.catalog import load_profile
from moeplan.errors import InputError
from reference_runtime.run import Task, run
from reference_runtime.runtime import open_runtime
from reference_runtime.runtime_options import RuntimeOptions, prepare_store
from reference_runtime.training.export import Q8_0, write_gguf
from reports.validation_findings import against_majority, balanced_text
from simulator.validation.compare import compare, op_table, verdicts
from simulator.validation.grid_cells import read_grid
from simulator.validation.predict import predict
from simulator.validation.result import ValidationResult
from simulator.validation.validate import validate
from traces.store import write_trace

PREFETCH = ("none", "pre-attention")


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A folder with profile and model, and no run yet."""
    start_grid(tmp_path)
    return tmp_path


def validated(folder: Path) -> ValidationResult:
    return validate(read_grid(folder), n_samples=20)


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_a_machine_that_does_what_the_simulator_says_has_no_error(grid: Path, prefetch: str) -> None:
    """Speed, prompt, every operation, every layer and every verdict are equal; the value lies in its interval."""
    add_run(grid, prefetch=prefetch)
    result = validated(grid)
    (cell,) = result.cells
    assert cell.error_frac == pytest.approx(0, abs=1e-9)
    assert cell.in_interval
    assert cell.counts_equal
    assert cell.bytes_equal
    assert cell.runs[0].counts.measured[1] > 0
    assert all(pair.difference == pytest.approx(0, abs=1e-12) for pair in [*cell.ops.values(), cell.reads_s])
    for layer in cell.layers:
        assert layer.t_prefetch_s.measured > 0
        assert layer.t_attention_s.difference == layer.t_prefetch_s.difference == layer.bubble_s.difference == 0
        assert layer.predicted_hidden_frac == layer.measured_hidden_frac
    assert cell.verdicts.n_pairs > 0
    assert cell.verdicts.agreement_frac == 1
    assert (0 if result.verdicts is None else result.verdicts.verdicts.n_pairs) == (
        0 if prefetch == "none" else cell.verdicts.n_pairs
    )
    assert result.prefill[0].error_frac == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("op", ["embedding", "router", "attention", "wait", "expert_ffn", "lm_head"])
def test_the_operation_that_is_off_is_named(grid: Path, op: str, prefetch: str) -> None:
    """With one operation slower it is the worst one, by as much as it was made slower, and the prediction too fast."""
    measured = add_run(grid, change=slower(op, 3.0), prefetch=prefetch)
    (cell,) = validated(grid).cells
    assert cell.worst_op == op
    assert cell.reason.startswith(f"{op} -")
    assert cell.ops[op].measured == pytest.approx(3 * cell.ops[op].predicted)
    assert cell.error_frac > 0
    token_s = 1 / cell.measured_tokens_per_s - 1 / cell.predicted.value
    assert -sum(pair.difference for pair in cell.ops.values()) == pytest.approx(token_s)
    assert measured.result.tokens_per_s == cell.measured_tokens_per_s


def test_a_slow_attention_is_split_by_reads(grid: Path) -> None:
    """The reason for attention tells the rows that had a read beside them from those that had none."""
    add_run(grid, change=slower("attention", 2.0))
    (cell,) = validated(grid).cells
    assert "-50.0 % without a read, -50.0 % with a read" in cell.reason


def test_slow_reads_show_as_reads(grid: Path) -> None:
    """t_prefetch is compared apart from the operations that tile a token, which a slow read alone does not change."""
    add_run(grid, change=slower("read", 2.0))
    (cell,) = validated(grid).cells
    assert cell.reads_s.measured == pytest.approx(2 * cell.reads_s.predicted)
    assert cell.error_frac == pytest.approx(0, abs=1e-9)


def test_prompt_and_warm_up_do_not_count(grid: Path) -> None:
    """What the first tokens did changes nothing."""

    def slow_start(records: pd.DataFrame) -> pd.DataFrame:
        late = records["token"] >= N_PROMPT + N_WARM_UP
        return records.assign(end_s=records["end_s"].where(late, records["end_s"] + 5.0))

    add_run(grid, change=slow_start)
    (cell,) = validated(grid).cells
    assert cell.error_frac == pytest.approx(0, abs=1e-9)
    assert cell.runs[0].n_counted == N_COUNTED


def test_another_decision_is_seen(grid: Path) -> None:
    """One expert that was read and not found, and its bytes, make counts and bytes unequal, each by itself."""

    def one_more(column: str) -> None:
        def change(records: pd.DataFrame) -> pd.DataFrame:
            row = records.index[(records["op"] == "read") & (records["token"] == N_PROMPT + N_WARM_UP)][0]
            changed = records.copy()
            changed.loc[row, column] += 1
            return changed

        add_run(grid, cell=column, change=change)

    one_more("n_hits")
    one_more("n_bytes")
    counts, n_bytes = sorted(validated(grid).cells, key=lambda cell: cell.cell, reverse=True)
    assert (counts.cell, counts.counts_equal, counts.bytes_equal) == ("n_hits", False, True)
    assert (n_bytes.cell, n_bytes.counts_equal, n_bytes.bytes_equal) == ("n_bytes", True, False)


def test_a_run_from_a_saved_state_has_no_prompt(grid: Path) -> None:
    """Its trace begins with decode; the context is that of the positions, so its attention takes longer."""
    add_run(grid, cell="long", starts_at=1000, ram_cap_bytes=3_340_000)
    add_run(grid, cell="short")
    result = validated(grid)
    long, short = result.cells
    assert [row.cell for row in result.prefill] == ["short"]
    assert long.error_frac == pytest.approx(0, abs=1e-9)
    assert long.runs[0].prompt_s is None
    assert long.runs[0].counts.measured[1] > 0
    assert long.ops["attention"].predicted > 1.25 * short.ops["attention"].predicted


def test_op_table_by_hand() -> None:
    """Spans add up by token, layer and op; a read without a miss counts as none; tokens before the first are gone."""
    rows = [
        (0, 0, "attention", 0.0, 9.0, 0, 0, 0),
        (1, -1, "embedding", 0.0, 0.25, 0, 0, 0),
        (1, 0, "attention", 1.0, 1.5, 0, 0, 0),
        (1, 0, "wait", 1.5, 1.75, 0, 0, 0),
        (1, 0, "wait", 2.0, 2.25, 0, 0, 0),
        (1, 0, "read", 1.0, 1.75, 4096, 1, 1),
        (1, 1, "read", 3.0, 3.5, 0, 2, 0),
    ]
    names = ["token", "layer", "op", "start_s", "end_s", "n_bytes", "n_hits", "n_misses"]
    table = op_table(pd.DataFrame(rows, columns=names), 1)
    assert list(table.index) == [(1, -1), (1, 0), (1, 1)]
    assert table.loc[(1, 0), ["attention", "wait", "read", "router"]].tolist() == [0.5, 0.5, 0.75, 0.0]
    assert table.loc[(1, 0), ["n_hits", "n_misses", "n_bytes"]].tolist() == [1, 1, 4096]
    assert table.loc[(1, 1), "read"] == 0


def test_verdicts_by_hand() -> None:
    """Both sides' verdicts on the rows that are asked for, and on no other."""
    measured = pd.DataFrame({"attention": [1.0, 1.0, 1.0, 1.0, 1.0], "read": [0.5, 0.95, 2.0, 1.05, 9.0]})
    predicted = pd.DataFrame({"attention": [1.0, 1.0, 1.0, 1.0, 1.0], "read": [0.9, 1.1, 0.5, 1.2, 9.0]})
    four = verdicts(predicted, measured, measured.index[:4])
    assert four.counts == (1, 1, 1, 1)
    assert (four.agreement_frac, four.balanced_frac, four.majority_frac) == (0.5, 0.5, 0.5)
    assert (four.predicted_hidden_frac, four.measured_hidden_frac) == (0.5, 0.5)
    two = verdicts(predicted, measured, measured.index[[0, 2]])
    assert two.counts == (1, 0, 1, 0)
    assert (two.predicted_hidden_frac, two.measured_hidden_frac) == (1.0, 0.5)
    assert (two + four).counts == (2, 1, 2, 1)
    assert verdicts(predicted, measured, measured.index[:0]).measured_hidden_frac is None


def test_a_cell_of_one_class_has_no_balanced_accuracy() -> None:
    """Where all pairs wait, always saying so is right every time; that is no accuracy of 100 %."""
    measured = pd.DataFrame({"attention": [1.0, 1.0], "read": [2.0, 3.0], "n_misses": [1, 1]})
    found = verdicts(measured, measured, measured.index)
    assert (found.agreement_frac, found.balanced_frac, found.has_one_class) == (1.0, None, True)
    assert balanced_text(found) == "one class"
    assert against_majority(found) == "100.0 % of 2 (100.0 %)"
    assert not verdicts(measured, measured, measured.index[:0]).has_one_class


@pytest.mark.parametrize(
    ("cap", "prefetch"),
    [(None, "pre-attention"), (550_000, "pre-attention"), (550_000, "none"), (450_000, "pre-attention")],
)
def test_a_real_runs_decisions_are_predicted(tmp_path: Path, cap: int | None, prefetch: str) -> None:
    """
    Slots, hits, misses and bytes of the runtime come out of profile, model file and trace.

    The prompt is shorter than a chunk and the window shorter than the run: the runtime plans for both all the same.
    """
    config = replace(SMALL, hidden_size=64, head_dim=32, expert_ffn_size=64, context_length=128)
    model = tmp_path / "small.gguf"
    write_gguf(random_weights(config), vocabulary(config.vocab_size), model, Q8_0)
    options = RuntimeOptions(model, cap, prefetch=prefetch, n_threads=1)
    prepare_store(options, lambda done, total: None)
    tokens = random_tokens(30, config).tolist()
    with open_runtime(options, len(tokens)) as runtime:
        output = run(runtime, Task(tokens[:12], 18, forced=tokens[12:], n_warm_up=4))
    start_grid(tmp_path)
    folder = add_run(tmp_path, ram_cap_bytes=options.ram_cap_bytes, prefetch=prefetch).folder
    cell = json.loads((folder / "cell.json").read_text())
    write_json(folder / "cell.json", cell | {"model_path": str(model), "n_warm_up": 4, "n_counted": 14, "n_prompt": 12})
    write_json(folder / "run.json", output.result.as_json())
    write_trace(output.trace, folder / "trace.parquet")
    output.records.to_parquet(folder / "ops.parquet")
    measured = read_grid(tmp_path).runs[0]
    prediction = predict(measured, measured.spec(tmp_path), read_grid(tmp_path).profile, n_samples=1)
    compared = compare(measured, prediction)
    assert compared.slots.predicted == compared.slots.measured == output.result.memory["slots"]
    assert compared.counts.predicted == compared.counts.measured
    assert compared.counts.measured == (output.result.hits, output.result.misses, output.result.bytes_read)
    assert (compared.counts.measured[1] > 0) == (cap is not None)
    assert sum(pair.measured for pair in compared.ops.values()) == pytest.approx(1 / output.result.tokens_per_s)
    measured_s = {layer.layer: layer.t_attention_s for layer in output.result.layers}
    for layer in compared.layers:
        assert layer.t_attention_s.measured == pytest.approx(measured_s[layer.layer])


def test_more_gates_shut_means_a_faster_prediction(grid: Path) -> None:
    """The share of zero gates that the run counted enters the prediction of the expert FFN."""
    folder = add_run(grid).folder
    speeds = []
    for share in (0.0, 0.9):
        run_json = run_file(1.0, 1.0, 0)
        write_json(folder / "run.json", run_json | {"layers": [{"zero_gate_frac": share}] * 3})
        measured = read_grid(grid).runs[0]
        speeds.append(predict(measured, measured.spec(grid), load_profile(str(grid / "profile.yaml")), 1).speed.value)
    assert speeds[1] > 1.001 * speeds[0]


def test_records_of_another_run_are_refused(grid: Path) -> None:
    """Operations that do not belong to the trace's tokens cannot be joined."""
    folder = add_run(grid).folder
    records = pd.read_parquet(folder / "ops.parquet")
    records[records["token"] != N_PROMPT + N_WARM_UP].to_parquet(folder / "ops.parquet")
    with pytest.raises(InputError, match="must have the trace's tokens"):
        validated(grid)
    records.drop(columns="n_hits").to_parquet(folder / "ops.parquet")
    with pytest.raises(InputError, match="n_hits"):
        validated(grid)


def test_the_plan_of_a_run_that_could_not_be_is_refused(grid: Path) -> None:
    """A cap below the dense part is an error with the arithmetic and no prediction."""
    folder = add_run(grid).folder
    cell = json.loads((folder / "cell.json").read_text())
    assert cell["ram_cap_bytes"] == CAP_BYTES
    write_json(folder / "cell.json", cell | {"ram_cap_bytes": 1000})
    with pytest.raises(InputError, match="missing"):
        validated(grid)
