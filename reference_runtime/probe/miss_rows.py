"""
Rows of the kernel table for what reads cost beside their own time, from the parts of with_reads.py.

    issue            attention beside reads, less attention without a miss and wake_attention
    delay            span beside compute, less that of the same reads on demand
    wake             router and expert FFN where there are reads, less those without; and the hand-over, less a wait
                     without a miss
    wake_on_demand   the same with attention, of reads on demand
    wake_attention   attention beside slower reads, less beside those as fast as the disk

What the profile's contention explains of issue and delay is taken off: the simulator counts it by itself.  What a wait
costs is a function of the span, and never falls with it: the nearest such function to the measured points, at the
microseconds of WAKE_US.  In the same way issue and delay never fall with the number of misses.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from reference_runtime.probe.plan import Plan
from reference_runtime.probe.products import RowKey
from reference_runtime.probe.rows import LEAST_S
from reference_runtime.probe.sampling import Samples, trimmed_mean
from reference_runtime.probe.with_reads import COUNTED_TOKENS, PARTS, SLOW_TOKENS, ReadsKey
from simulator.expert_layout import layout_of_bytes
from simulator.model.size import expert_bytes

WAKE_US = tuple(round(100 * 2 ** (step / 2)) for step in range(17))  # of reads: 100 us to 25.6 ms; then the end's cost
OWN_PARTS = ("router", "expert_ffn", "hand_over")  # of a wait that attention has no part in


def miss_times(plan: Plan, samples: Samples, compute: float, read: float) -> dict[RowKey, float]:
    """
    The rows of issue, delay and what a wait costs; see the top of this file.

    compute, read: speed of each beside the other at full rate, 1 alone.
    """
    result: dict[RowKey, float] = {}
    sizes = {spec.name: layout_of_bytes(expert_bytes(spec), "bundle").padded_bytes for spec in plan.shapes}
    still = [key for key in samples.values if isinstance(key, ReadsKey) and key.part == "span" and not key.n_misses]
    for key in still:
        curves = _wake_curves(samples, key, compute, read)
        rows = [*_beside_times(samples, key, curves["wake_attention"], compute, read)]
        rows += [(op, us, curve.at(us * 1e-6)) for op, curve in curves.items() for us in WAKE_US]
        for op, n, seconds in rows:
            row = RowKey(op, "f32", sizes[key.shape], n, 0.0, plan.arena_bytes, key.threads)
            result[row] = max(LEAST_S, seconds)
    return result


@dataclass(frozen=True, eq=False)
class _Curve:
    """What a wait costs, seconds, over the seconds that its reads take, both ascending (n,)."""

    spans: np.ndarray
    costs: np.ndarray

    def at(self, span_s: float) -> float:
        """Linear between the points, that of the end beyond them."""
        return float(np.interp(span_s, self.spans, self.costs))


def _beside_times(
    samples: Samples, still: ReadsKey, slowness: _Curve, compute: float, read: float
) -> Iterator[tuple[str, int, float]]:
    """
    (op, misses, seconds) of issue and delay, each the nearest to the measured that never falls with the misses.

    slowness: of attention after waits, which is no part of issue.
    """
    attention_s = _parts(samples, still)["attention"]
    points = defaultdict[str, list[tuple[int, float]]](list)
    for key in _with_misses(samples, still):
        if not key.at_least_s:
            beside, after = _parts(samples, key), _parts(samples, key._replace(is_prefetch=False))
            own_span, issue = _alone(beside, "span", read), _alone(beside, "attention", compute) - attention_s
            slow_s = slowness.at(trimmed_mean(own_span.tolist()))
            points["issue"].append((key.n_misses, trimmed_mean(issue.tolist()) - slow_s))
            points["delay"].append((key.n_misses, trimmed_mean((own_span - after["span"]).tolist())))
    for op, measured in points.items():
        counts, costs = zip(*sorted(measured), strict=True)
        yield from ((op, n, seconds) for n, seconds in zip(counts, isotonic_regression(costs).x.tolist(), strict=True))


def _alone(beside: Mapping[str, np.ndarray], part: str, speed: float) -> np.ndarray:
    """Attention or span without their contention, which the simulator counts by itself; speed: beside the other."""
    return beside[part] - (1 - speed) * np.minimum(beside["attention"], beside["span"])


def _wake_curves(samples: Samples, still: ReadsKey, compute: float, read: float) -> dict[str, _Curve]:
    """By op: what waits cost, never less for longer reads."""
    without, points = _parts(samples, still), defaultdict[str, list[tuple[float, float, int]]](list)
    keys = _with_misses(samples, still)
    slowed = {key.n_misses for key in keys if key.at_least_s}
    for key in keys:
        beside, after = _parts(samples, key), _parts(samples, key._replace(is_prefetch=False))
        as_fast = _parts(samples, key._replace(at_least_s=0.0))
        own_span = _alone(beside, "span", read)
        measured = [
            ("wake", own_span, [beside[part] - without[part] for part in OWN_PARTS]),
            ("wake_on_demand", after["span"], [after[part] - without[part] for part in (*OWN_PARTS, "attention")]),
        ]
        if key.n_misses in slowed:
            slower_s = _alone(beside, "attention", compute) - _alone(as_fast, "attention", compute)
            measured.append(("wake_attention", own_span, [slower_s]))
        n_tokens = SLOW_TOKENS if key.at_least_s else COUNTED_TOKENS
        for op, span, costs in measured:
            point = trimmed_mean(span.tolist()), trimmed_mean(np.sum(costs, axis=0).tolist()), n_tokens
            points[op].append(point)
    return {op: _rising(measured) for op, measured in points.items()}


def _rising(points: list[tuple[float, float, int]]) -> _Curve:
    """The nearest curve to (span, cost, weight) that never falls."""
    spans, costs, weights = np.array(sorted(points)).T
    return _Curve(spans, isotonic_regression(costs, weights=weights).x)


def _with_misses(samples: Samples, still: ReadsKey) -> list[ReadsKey]:
    """The keys of a shape's spans beside attention."""
    keys = [key for key in samples.values if isinstance(key, ReadsKey) and key.n_misses and key.is_prefetch]
    return [key for key in keys if (key.shape, key.part, key.threads) == (still.shape, still.part, still.threads)]


def _parts(samples: Samples, key: ReadsKey) -> dict[str, np.ndarray]:
    """The parts of a layer, a value for each round: differences are taken within a round."""
    return {part: np.array(samples.values[key._replace(part=part)]) for part in PARTS}
