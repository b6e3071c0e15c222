"""
One run against its prediction, joined on the OpRecords' (token, layer, op); counted decode tokens alone.

The operations of a token follow one another without a gap on both sides, so the signed differences by op add up to
the error of the token's time; reads run beside them and are compared as t_prefetch.
"""

from typing import TYPE_CHECKING

import numpy as np

from moeplan.errors import InputError
from simulator.validation.baselines import naive_tokens_per_s
from simulator.validation.cell_result import CountPair, LayerComparison, Pair, RunComparison, Verdicts
from simulator.validation.grid_cells import MeasuredRun
from simulator.validation.hindsight import boundary_of, typical_rows
from simulator.validation.predict import Prediction, gate_sparsity
from simulator.validation.run_noise import CLEAR_Z, standard_error_frac
from traces.op_record import NO_LAYER, OPS

if TYPE_CHECKING:
    import pandas as pd

TOKEN_OPS = tuple(op for op in OPS if op != "read")  # they tile a token's time


def compare(
    run: MeasuredRun,
    prediction: Prediction,
    held_out_tokens_per_s: float | None = None,
    held_out_kept: tuple[str, ...] = (),
) -> RunComparison:
    """
    All figures of a run beside the predicted ones; held_out_*: see held_out.py.

    Raises InputError where the records do not fit together.
    """
    measured = op_table(run.records(), run.first_counted)
    predicted = op_table(prediction.records, run.first_counted)
    if not measured.index.equals(predicted.index):
        got = f"{len(measured)} against {len(predicted)} rows"
        raise InputError(str(run.folder / "ops.parquet"), "must have the trace's tokens and the model's layers", got)
    n = run.cell.n_counted
    n_tokens = measured.index.get_level_values("token").nunique()
    if n_tokens != n:
        must = f"must hold {n} decode tokens after the warm-up, as cell.json says"
        raise InputError(str(run.folder / "ops.parquet"), must, n_tokens)
    predicted_moe, measured_moe = _moe_rows(predicted), _moe_rows(measured)
    missed = measured_moe["n_misses"] > 0
    counts = CountPair(_counts(predicted), _counts(measured))
    rate, typical = prediction.read_bytes_per_s, typical_rows(measured_moe)
    with_miss, alike = measured_moe.index[missed], typical.typical.index
    return RunComparison(
        repeat=run.cell.repeat,
        order=run.cell.order,
        started_at=run.cell.started_at,
        n_counted=n,
        speed=prediction.speed,
        wide_speed=prediction.wide_speed,
        measured_tokens_per_s=run.result.tokens_per_s,
        naive_tokens_per_s=naive_tokens_per_s(prediction.scenario, counts.predicted[2] / n, rate),
        slots=Pair(prediction.n_slots, run.result.memory.get("slots", -1)),
        counts=counts,
        read_s=counts.predicted[2] / n / rate,
        ops={
            op: Pair(*(float(t[op].sum()) / n for t in (predicted, measured))) for op in _present(predicted, measured)
        },
        reads_s=Pair(*(float(t["read"].sum()) / n for t in (predicted, measured))),
        miss_wait_s=Pair(*(float(t["wait"][missed].sum()) / n for t in (predicted_moe, measured_moe))),
        attention_alone_s=_mean_pair(predicted_moe, measured_moe, ~missed),
        attention_reading_s=_mean_pair(predicted_moe, measured_moe, missed),
        layers=_layers(predicted_moe, measured_moe),
        verdicts=verdicts(predicted_moe, measured_moe, with_miss),
        alike_verdicts=verdicts(predicted_moe, measured_moe, alike),
        clear_verdicts=verdicts(predicted_moe, measured_moe, alike[typical.clear]),
        read_ratio=_read_ratio(measured_moe),
        n_prompt=run.n_prefill,
        prompt_s=prediction.prompt_s,
        measured_prompt_s=run.result.prompt_s if run.n_prefill else None,
        gate_sparsity=gate_sparsity(run),
        steal_frac=run.cell.steal_frac,
        noise_frac=standard_error_frac(_token_s(measured), _token_misses(measured)),
        margin=CLEAR_Z * typical.noise,
        held_out_tokens_per_s=held_out_tokens_per_s,
        held_out_kept=held_out_kept,
        boundary=boundary_of(typical),
    )


def op_table(records: "pd.DataFrame", first_token: int) -> "pd.DataFrame":
    """
    Seconds by op, a row a (token, layer), from first_token on; with n_hits, n_misses and n_bytes of the row's reads.

    An op that a row has not is 0; "read" is t_prefetch, 0 without a miss.
    """
    counted = records[records["token"] >= first_token]
    spans = counted.assign(op=counted["op"].astype(str), span_s=counted["end_s"] - counted["start_s"])
    table = spans.pivot_table(index=["token", "layer"], columns="op", values="span_s", aggfunc="sum")
    table = table.reindex(columns=list(OPS)).fillna(0.0)
    reads = counted[counted["op"] == "read"].groupby(["token", "layer"])[["n_hits", "n_misses", "n_bytes"]].sum()
    table = table.join(reads.reindex(table.index).fillna(0).astype(np.int64))
    table["read"] = table["read"].where(table["n_misses"] > 0, 0.0)
    return table


def verdicts(predicted: "pd.DataFrame", measured: "pd.DataFrame", rows: "pd.Index") -> Verdicts:
    """Both sides' t_attention >= t_prefetch on some rows."""
    hidden, says_hidden = ((t["attention"] >= t["read"]).loc[rows].to_numpy() for t in (measured, predicted))
    return Verdicts.of(hidden, says_hidden)


def _token_s(table: "pd.DataFrame") -> np.ndarray:
    """Seconds of each token (n,)."""
    return table[list(TOKEN_OPS)].sum(axis=1).groupby(level="token").sum().to_numpy()


def _token_misses(table: "pd.DataFrame") -> np.ndarray:
    """Experts that each token (n,) misses."""
    return table["n_misses"].groupby(level="token").sum().to_numpy()


def _moe_rows(table: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of layers with experts."""
    is_moe = (table.index.get_level_values("layer") != NO_LAYER) & (table["n_hits"] + table["n_misses"] > 0)
    return table[is_moe]


def _counts(table: "pd.DataFrame") -> tuple[int, int, int]:
    return int(table["n_hits"].sum()), int(table["n_misses"].sum()), int(table["n_bytes"].sum())


def _present(*tables: "pd.DataFrame") -> list[str]:
    return [op for op in TOKEN_OPS if any(table[op].any() for table in tables)]


def _mean_pair(predicted: "pd.DataFrame", measured: "pd.DataFrame", rows: "pd.Series") -> Pair | None:
    if not rows.any():
        return None
    return Pair(float(predicted["attention"][rows].mean()), float(measured["attention"][rows].mean()))


def _read_ratio(measured: "pd.DataFrame") -> float | None:
    rows = measured[(measured["n_misses"] > 0) & (measured["attention"] > 0)]
    return float((rows["read"] / rows["attention"]).median()) if len(rows) else None


def _layers(predicted: "pd.DataFrame", measured: "pd.DataFrame") -> tuple[LayerComparison, ...]:
    both = [table.assign(hidden=_hidden(table)).groupby(level="layer") for table in (predicted, measured)]
    means = [
        groups[["attention", "read", "wait", "hidden"]].mean() for groups in both
    ]  # mean skips rows without a miss
    return tuple(_layer(layer, *means) for layer in means[1].index)


def _layer(layer: int, predicted: "pd.DataFrame", measured: "pd.DataFrame") -> LayerComparison:
    attention, read, wait = (
        Pair(float(predicted.at[layer, op]), float(measured.at[layer, op])) for op in ("attention", "read", "wait")
    )
    hidden = (_known(side.at[layer, "hidden"]) for side in (predicted, measured))
    return LayerComparison(int(layer), attention, read, wait, *hidden)


def _hidden(table: "pd.DataFrame") -> "pd.Series":
    """1 where the reads were hidden, 0 where not, NaN without a miss."""
    return (table["attention"] >= table["read"]).astype(float).where(table["n_misses"] > 0)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
