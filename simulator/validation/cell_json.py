"""A compared cell as plain JSON values."""

from dataclasses import asdict
from typing import Any

from simulator.validation.cell_result import CellComparison, RunComparison, Verdicts
from simulator.validation.hindsight import hindsight_of


def cell_json(cell: CellComparison) -> dict[str, Any]:
    """The cell without its layers, which have a table of their own."""
    return {
        "cell": cell.cell,
        "conditions": asdict(cell.conditions),
        "class": cell.cell_class,
        "predicted": {"tokens_per_s": asdict(cell.predicted)},
        "measured": {"tokens_per_s": cell.measured_tokens_per_s},
        "error": cell.error_frac,
        "noise": cell.noise_frac,
        "run_noise": cell.run_noise_frac,
        "in_interval": cell.in_interval,
        "in_interval_with_noise": cell.in_interval_with_noise,
        "without_own_shape_error": cell.held_out_error_frac,
        "without_own_shape_kept": list(cell.held_out_kept),
        "naive": {"tokens_per_s": cell.naive_tokens_per_s, "error": cell.naive_error_frac},
        "slots": asdict(cell.runs[0].slots),
        "wait_frac": cell.wait_frac,
        "miss_rate": cell.miss_rate,
        "bytes_per_token": cell.bytes_per_token,
        "read_ratio": cell.read_ratio,
        "worst_op": cell.worst_op,
        "reason": cell.reason,
        "error_s_per_token": {op: pair.difference for op, pair in cell.ops.items()},
        "abs_error_s_per_token": cell.off_s,
        "measured_s_per_token": {op: pair.measured for op, pair in cell.ops.items()},
        "reads_s_per_token": asdict(cell.reads_s),
        "hidden_frac": {
            "predicted": cell.verdicts.predicted_hidden_frac,
            "measured": cell.verdicts.measured_hidden_frac,
        },
        "verdicts": _shares(cell.verdicts),
        "alike_verdicts": _shares(cell.alike_verdicts),
        "clear_verdicts": _shares(cell.clear_verdicts),
        "hindsight": asdict(hindsight_of((run.boundary for run in cell.runs), clear_only=False)),
        "runs": [_run_json(run) for run in cell.runs],
    }


def _shares(verdicts: Verdicts) -> dict[str, Any]:
    return {name: verdicts.as_json()[name] for name in ("n_pairs", "agreement_frac", "balanced_frac", "majority_frac")}


def _run_json(run: RunComparison) -> dict[str, Any]:
    names = ("hits", "misses", "bytes_read")
    return {
        "repeat": run.repeat,
        "order": run.order,
        "n_counted": run.n_counted,
        "predicted": {"tokens_per_s": run.speed.value, **dict(zip(names, run.counts.predicted, strict=True))},
        "measured": {"tokens_per_s": run.measured_tokens_per_s, **dict(zip(names, run.counts.measured, strict=True))},
        "error": run.error_frac,
        "steal_frac": run.steal_frac,
        "noise": run.noise_frac,
        "clear_margin": run.margin,
        "boundary_distance": run.boundary.distance,
        "boundary_noise": run.boundary.noise,
    }
