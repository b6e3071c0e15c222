"""
The baselines that stand beside the prediction: a naive formula, and laws that are fitted to the grid itself.

Naive, from the same profile:

    seconds per token = max(max(sum of bytes / RAM bandwidth, sum of FLOP / GEMV rate), bytes read / read rate)

over all operations of the median counted token, without overheads, latencies, contention or the order of operations;
read rate = the profile's sequential read, or the storage limit where that is lower.

Laws, with a, b >= 0 by least squares of the relative error of seconds per token, for each model class by itself where
three fitted cells have it:

    tokens/s = 1 / (a + b x)    x = misses / (hits + misses), or bytes read per token / read rate
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import nnls

from simulator import costs
from simulator.scenario import Scenario, Step
from simulator.validation.cell_result import CellComparison, Conditions
from simulator.validation.error_sizes import typical_and_high
from simulator.validation.result import LeftOut

FEWEST_HELD = 2  # cells: one by itself is a row of the table of cells
FEWEST_TO_FIT = 3  # cells: two parameters and one to spare
OF_NO_TIME = 1e6  # error of a law that says that a token takes no time: above every other, and still a number

CONDITIONS: dict[str, Callable[[Conditions], str]] = {
    "model class": lambda c: c.model_class,
    "RAM cap": lambda c: "none" if c.ram_cap_bytes is None else f"{c.cap_text} ({c.model_class})",
    "storage limit": lambda c: _rate(c.storage_limit_bytes_per_s),
    "prefetch": lambda c: c.prefetch,
    "context": lambda c: str(c.context),
    "threads": lambda c: str(c.threads),
}
LAWS: dict[str, Callable[[CellComparison], float]] = {
    "law_miss_rate": lambda cell: cell.miss_rate,
    "law_read_s": lambda cell: cell.read_s_per_token,
}


def naive_tokens_per_s(scenario: Scenario, bytes_per_token: float, read_bytes_per_s: float) -> float:
    """The naive formula at the top of this file, in tokens/s."""
    decode = [step for step, counts in zip(scenario.steps, scenario.is_counted, strict=True) if counts]
    n_bytes, n_flop = _token_work(scenario, decode[len(decode) // 2])
    rates = scenario.rates
    ram, flop = rates.ram_bytes_per_s, rates.gemv_flop_per_s
    if rates.kernels is not None:  # the profile's own rates are of all threads
        ram = rates.kernels.largest_product_bytes_per_s() or ram
        flop *= min(1.0, ram / rates.ram_bytes_per_s)
    compute_s = max(n_bytes / ram, n_flop / flop)
    return 1 / max(compute_s, bytes_per_token / read_bytes_per_s)


def _token_work(scenario: Scenario, step: Step) -> tuple[float, float]:
    """Bytes from RAM and FLOP of one decode token."""
    model = scenario.model
    works = [costs.embedding_work(model), costs.lm_head_work(model, scenario.lm_head_predictor)]
    for layer in range(model.n_layers):
        works.append(costs.attention_work(model, layer, step.context))
        if model.is_moe_layer(layer) and model.experts is not None:
            works += [costs.router_work(model), costs.expert_ffn_work(model, model.experts.top_k)]
        else:
            works.append(costs.dense_ffn_work(model))
    return sum(work.n_bytes for work in works), sum(work.n_flop for work in works)


def leave_one_out(cells: Sequence[CellComparison]) -> tuple[LeftOut, ...]:
    """
    For each value of each condition that FEWEST_HELD cells have: these, predicted by us and by laws fitted on the
    others.
    """
    rows = []
    for condition, value_of in CONDITIONS.items():
        counts = Counter(value_of(cell.conditions) for cell in cells)
        if len(counts) > 1:  # a condition that does not vary leaves nothing to fit
            rows += [_left_out(cells, condition, value, value_of) for value, n in counts.items() if n >= FEWEST_HELD]
    return tuple(rows)


def _left_out(
    cells: Sequence[CellComparison], condition: str, value: str, value_of: Callable[[Conditions], str]
) -> LeftOut:
    held = [cell for cell in cells if value_of(cell.conditions) == value]
    fitted = [cell for cell in cells if value_of(cell.conditions) != value]
    laws = {name: law_errors(fitted, held, x_of) for name, x_of in LAWS.items()}
    ours = typical_and_high([cell.error_frac for cell in held])
    return LeftOut(condition, value, len(held), len(fitted), ours, **laws)


def law_errors(
    fitted: Sequence[CellComparison], held: Sequence[CellComparison], x_of: Callable[[CellComparison], float]
) -> tuple[float, float] | None:
    """typical_and_high of the errors of 1 / (a + b x), fitted on some cells, on others; None: too few to fit."""
    if len(fitted) < FEWEST_TO_FIT:
        return None
    errors = []
    for cell in held:
        same = [other for other in fitted if other.conditions.model_class == cell.conditions.model_class]
        a, b = fit_law(same if len(same) >= FEWEST_TO_FIT else fitted, x_of)
        predicted_s = a + b * x_of(cell)
        errors.append(1 / (predicted_s * cell.measured_tokens_per_s) - 1 if predicted_s > 0 else OF_NO_TIME)
    return typical_and_high(errors)


def fit_law(cells: Sequence[CellComparison], x_of: Callable[[CellComparison], float]) -> tuple[float, float]:
    """a, b >= 0 that make sum(((a + b x) / t - 1)^2) least; t: measured seconds per token."""
    speeds = np.array([cell.measured_tokens_per_s for cell in cells])
    xs = np.array([x_of(cell) for cell in cells])
    scale = xs.max() or 1.0  # so that both columns have the same size
    (a, b), _ = nnls(np.stack([speeds, speeds * xs / scale], axis=1), np.ones(len(cells)))
    return float(a), float(b / scale)


def _rate(bytes_per_s: float | None) -> str:
    return "none" if bytes_per_s is None else f"{bytes_per_s / 1e6:.4g} MB/s"
