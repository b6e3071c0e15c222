"""From compared runs to cells, classes and summaries."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from hardware_profiles.schema_base import Z_80
from moeplan.quantity import format_seconds, format_signed_percent
from simulator.result import Interval
from simulator.validation.cell_result import CellComparison, Conditions, LayerComparison, Pair, RunComparison, Verdicts
from simulator.validation.result import PrefillRow

COMPUTE_BOUND, BALANCED, STORAGE_BOUND = "compute-bound", "balanced", "storage-bound"
CLASSES = (COMPUTE_BOUND, BALANCED, STORAGE_BOUND)
BALANCED_FROM_FRAC, STORAGE_FROM_FRAC = 0.05, 0.40  # measured share of the decode time that waits for missing experts
BOUNDARY_RATIOS = (0.5, 2.0)  # measured median t_prefetch / t_attention of a cell near the boundary


def cell_comparison(cell: str, conditions: Conditions, runs: Sequence[RunComparison]) -> CellComparison:
    """A cell over its runs."""
    measured = log_median(run.measured_tokens_per_s for run in runs)
    predicted, wide = (_median_interval(runs, name, measured) for name in ("speed", "wide_speed"))
    run_noise = median(run.noise_frac for run in runs)
    held_out = [run.held_out_tokens_per_s for run in runs]
    naive = log_median(run.naive_tokens_per_s for run in runs)
    ops = _mean_ops(runs)
    wait_frac = mean_pair([run.miss_wait_s for run in runs]).measured / sum(pair.measured for pair in ops.values())
    hits, misses, n_bytes = (sum(run.counts.measured[i] for run in runs) for i in range(3))
    off_s = _mean_off(runs)
    worst = max(ops, key=lambda op: off_s[op])
    ratios = [run.read_ratio for run in runs if run.read_ratio is not None]
    return CellComparison(
        cell=cell,
        conditions=conditions,
        cell_class=class_of(wait_frac),
        predicted=predicted,
        measured_tokens_per_s=measured,
        error_frac=predicted.value / measured - 1,
        noise_frac=spread_frac([run.measured_tokens_per_s for run in runs]),
        run_noise_frac=run_noise,
        in_interval=is_inside(measured, predicted),
        in_interval_with_noise=is_inside(measured, widened(wide, run_noise / math.sqrt(len(runs)))),
        held_out_error_frac=_held_out_error(runs) if None not in held_out else None,
        naive_tokens_per_s=naive,
        naive_error_frac=naive / measured - 1,
        wait_frac=wait_frac,
        miss_rate=misses / (hits + misses) if hits + misses else 0.0,
        bytes_per_token=n_bytes / sum(run.n_counted for run in runs),
        read_s_per_token=fmean(run.read_s for run in runs),
        read_ratio=median(ratios) if ratios else None,
        ops=ops,
        off_s=off_s,
        reads_s=mean_pair([run.reads_s for run in runs]),
        worst_op=worst,
        reason=reason(worst, ops[worst], runs) + _opposite(worst, runs),
        layers=_mean_layers(runs),
        verdicts=total_verdicts(run.verdicts for run in runs),
        alike_verdicts=total_verdicts(run.alike_verdicts for run in runs),
        clear_verdicts=total_verdicts(run.clear_verdicts for run in runs),
        runs=tuple(runs),
    )


def log_median(values: Iterable[float]) -> float:
    """Median, of an even number the geometric mean of the middle two: that of ratios is the ratio of that."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(max(low, math.sqrt(low * high)), high)


def _median_interval(runs: Sequence[RunComparison], name: str, measured: float) -> Interval:
    """Medians over runs of predicted / measured, times measured: predictions differ by run, as routing does."""
    ends = ("value", "low", "high")
    ratios = (log_median(getattr(getattr(run, name), end) / run.measured_tokens_per_s for run in runs) for end in ends)
    return Interval(*(ratio * measured for ratio in ratios))


def _held_out_error(runs: Sequence[RunComparison]) -> float:
    return log_median((run.held_out_tokens_per_s or 0) / run.measured_tokens_per_s for run in runs) - 1


def is_inside(value: float, interval: Interval) -> bool:
    """Whether a value lies in an interval."""
    return interval.low <= value <= interval.high


def widened(interval: Interval, sigma: float) -> Interval:
    """The 80 % interval with another spread, a standard deviation of the logarithm, in quadrature on each side."""
    below, above = math.log(interval.value / interval.low), math.log(interval.high / interval.value)
    low, high = (math.exp(math.hypot(side, Z_80 * sigma)) for side in (below, above))
    return Interval(interval.value, interval.value / low, interval.value * high)


def class_of(wait_frac: float) -> str:
    """The class of a cell by the measured share of its decode time that waits for missing experts."""
    if wait_frac < BALANCED_FROM_FRAC:
        return COMPUTE_BOUND
    return BALANCED if wait_frac <= STORAGE_FROM_FRAC else STORAGE_BOUND


def spread_frac(values: Sequence[float]) -> float | None:
    """(max - min) / median, None for a single value."""
    return (max(values) - min(values)) / median(values) if len(values) > 1 else None


def total_verdicts(verdicts: Iterable[Verdicts]) -> Verdicts:
    """Their sum."""
    return sum(verdicts, Verdicts())


def reason(op: str, pair: Pair, runs: Sequence[RunComparison]) -> str:
    """The op that is most off, signed per token, and where that comes from."""
    text = f"{op} {signed(pair.difference)} a token (measured {format_seconds(pair.measured)})"
    if op == "wait":
        reads = mean_pair([run.reads_s for run in runs])
        attention = _mean_ops(runs)["attention"]
        asking = pair.difference - mean_pair([run.miss_wait_s for run in runs]).difference
        beside = f"reads {signed(reads.difference)}, attention {signed(attention.difference)}"
        return f"{text}: {beside}; in layers without a miss {signed(asking)}"
    if op == "attention":
        alone = [run.attention_alone_s for run in runs if run.attention_alone_s is not None]
        reading = [run.attention_reading_s for run in runs if run.attention_reading_s is not None]
        parts = [("without a read", alone), ("with a read", reading)]
        shares = [f"{format_signed_percent(_ratio(mean_pair(pairs)))} {name}" for name, pairs in parts if pairs]
        return f"{text}: {', '.join(shares)}" if shares else text
    return f"{text}: {format_signed_percent(_ratio(pair))}" if pair.measured > 0 else text


def _opposite(op: str, runs: Sequence[RunComparison]) -> str:
    """The ends of an op's differences over the runs where they cancel in the mean, else nothing."""
    differences = [run.ops[op].difference for run in runs if op in run.ops]
    low, high = min(differences), max(differences)
    return f"; by run {signed(low)} to {signed(high)}" if low < 0 < high else ""


def signed(seconds: float) -> str:
    """'+1.20 ms', '-30.0 us'."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def n_boundary_cells(cells: Sequence[CellComparison]) -> int:
    """Cells whose reads take about as long as attention, where a verdict is hard."""
    return sum(is_boundary(cell) for cell in cells)


def reads_beside(cell: CellComparison) -> bool:
    """Whether the cell reads while attention computes; on demand nothing is ever hidden."""
    return cell.conditions.prefetch != "none"


def by_class(cells: Sequence[CellComparison]) -> dict[str, list[CellComparison]]:
    """All cells, under `all`, and those of each class."""
    return {"all": list(cells)} | {name: [cell for cell in cells if cell.cell_class == name] for name in CLASSES}


def is_boundary(cell: CellComparison) -> bool:
    """Whether the cell reads beside attention, with a measured median t_prefetch / t_attention in BOUNDARY_RATIOS."""
    low, high = BOUNDARY_RATIOS
    return reads_beside(cell) and cell.read_ratio is not None and low <= cell.read_ratio <= high


def prefill_rows(cells: Sequence[CellComparison]) -> tuple[PrefillRow, ...]:
    """The cells that ran a prompt: prompt to first logits."""
    rows = []
    for cell in cells:
        pairs = [
            (run.prompt_s, run.measured_prompt_s)
            for run in cell.runs
            if run.prompt_s is not None and run.measured_prompt_s
        ]
        if not pairs:
            continue
        measured = median(seconds for _, seconds in pairs)
        ends = (median(getattr(interval, end) for interval, _ in pairs) for end in ("value", "low", "high"))
        predicted = Interval(*ends)
        inside = predicted.low <= measured <= predicted.high
        noise = spread_frac([seconds for _, seconds in pairs])
        error = predicted.value / measured - 1
        rows.append(PrefillRow(cell.cell, cell.runs[0].n_prompt, predicted, measured, error, noise, inside))
    return tuple(rows)


def mean_pair(pairs: Sequence[Pair]) -> Pair:
    """Both sides' means."""
    return Pair(fmean(pair.predicted for pair in pairs), fmean(pair.measured for pair in pairs))


def _ratio(pair: Pair) -> float:
    return pair.predicted / pair.measured - 1 if pair.measured > 0 else float("inf")


def _mean_ops(runs: Sequence[RunComparison]) -> dict[str, Pair]:
    names = list(dict.fromkeys(op for run in runs for op in run.ops))
    return {op: mean_pair([run.ops.get(op, Pair(0.0, 0.0)) for run in runs]) for op in names}


def _mean_off(runs: Sequence[RunComparison]) -> dict[str, float]:
    """By op the mean over the runs of |predicted - measured| seconds a token: what is off to and fro is off."""
    names = list(dict.fromkeys(op for run in runs for op in run.ops))
    return {op: fmean(abs(run.ops.get(op, Pair(0.0, 0.0)).difference) for run in runs) for op in names}


def _mean_layers(runs: Sequence[RunComparison]) -> tuple[LayerComparison, ...]:
    """Layer by layer over the runs, which all have the model's layers."""
    return tuple(_mean_layer(same) for same in zip(*(run.layers for run in runs), strict=True))


def _mean_layer(same: Sequence[LayerComparison]) -> LayerComparison:
    def mean(of: Callable[[LayerComparison], float | None]) -> float | None:
        known = [value for value in map(of, same) if value is not None]
        return fmean(known) if known else None

    return LayerComparison(
        same[0].layer,
        mean_pair([layer.t_attention_s for layer in same]),
        mean_pair([layer.t_prefetch_s for layer in same]),
        mean_pair([layer.bubble_s for layer in same]),
        mean(lambda layer: layer.predicted_hidden_frac),
        mean(lambda layer: layer.measured_hidden_frac),
    )
