"""Compared runs and cells in round numbers."""

from simulator.result import Interval
from simulator.validation.cell_result import CellComparison, Conditions, CountPair, Pair, RunComparison, Verdicts
from simulator.validation.tables import cell_comparison

CONDITIONS = Conditions("m", "tiny", 10_000_000, None, "none", 32, 1, "own")


def made_run(measured: float = 10.0, predicted: float = 10.0, wait_s: float = 0.0, **changes: object) -> RunComparison:
    """A run in round numbers: 10 tokens, 30 hits and 10 misses of 1 MB, read at 100 MB/s."""
    fields: dict = {
        "repeat": 1, "order": 0, "started_at": "2030-01-02", "n_counted": 10,
        "speed": Interval(predicted, 0.9 * predicted, 1.1 * predicted), "measured_tokens_per_s": measured,
        "wide_speed": Interval(predicted, 0.8 * predicted, 1.2 * predicted),
        "naive_tokens_per_s": 2 * measured, "slots": Pair(4, 4),
        "counts": CountPair((30, 10, 10_000_000), (30, 10, 10_000_000)), "read_s": 0.01,
        "ops": {"attention": Pair(0.5, 1 / measured - wait_s), "wait": Pair(wait_s, wait_s)},
        "reads_s": Pair(0.01, 0.01), "miss_wait_s": Pair(wait_s, wait_s), "attention_alone_s": None,
        "attention_reading_s": None, "layers": (), "verdicts": Verdicts(), "alike_verdicts": Verdicts(),
        "clear_verdicts": Verdicts(),
        "read_ratio": None, "n_prompt": 0, "prompt_s": None, "measured_prompt_s": None, "gate_sparsity": None,
    }  # fmt: skip
    return RunComparison(**(fields | changes))


def made_cell(name: str = "a", conditions: Conditions = CONDITIONS, **run: object) -> CellComparison:
    """A cell of one made-up run."""
    return cell_comparison(name, conditions, [made_run(**run)])  # type: ignore[arg-type]
