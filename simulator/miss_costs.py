"""
What missing experts cost: their reads on idle storage, and what these take longer, or make others take longer.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hardware_profiles.kernel_table import Call, KernelOp, KernelTimes
from hardware_profiles.rates import DeviceRates
from simulator import kernel_calls
from simulator.expert_layout import ExpertLayout
from simulator.prefetch import PRE_ATTENTION


@dataclass(frozen=True, eq=False)
class MissCosts:
    """
    What 0, 1, ... missing experts of a row cost, seconds (n,); all but the reads 0 where it was not measured.

    read_s: their reads when nothing else runs, see read_table; issue_s: what attention beside the reads takes longer;
    delay_s: what the reads take longer meanwhile; wake_s: what the expert FFN takes longer after a wait.

    A thread that slept is slow for a while.  The expert FFN is charged with that, also for the router of the next
    layer and, without prefetch, for its attention.  Attention beside reads has its own part in issue_s, as if each row
    with misses followed another one that waited: on rows that hide their reads it is too much.
    """

    read_s: np.ndarray
    issue_s: np.ndarray
    delay_s: np.ndarray
    wake_s: np.ndarray


def miss_costs(
    rates: DeviceRates, layout: ExpertLayout, most: int, prefetch_policy: str, read_s: np.ndarray | None = None
) -> MissCosts:
    """
    Of up to `most` experts of a layout; no RAM bandwidth has a part in it.

    What a wait costs follows from how long the row's reads take on this storage, not from the single row's wait, so
    that rows with as many misses cost the same.  Beyond the measured sizes and numbers of misses what was measured at
    their end holds.  read_s: of another storage speed than the device's, see read_table.
    """
    factor, kernels, n_bytes = rates.kernel_factor, rates.kernels, layout.padded_bytes
    read_s = read_table(rates, layout, most) if read_s is None else read_s
    if prefetch_policy != PRE_ATTENTION:
        nothing = np.zeros(most + 1)
        return MissCosts(read_s, nothing, nothing, factor * _wake_table(kernels, "wake_on_demand", n_bytes, read_s))
    delay_s = factor * _miss_table(kernels, "delay", n_bytes, most)
    if rates.storage.limit_bytes_per_s is not None:  # a delay of the device is lost in what a limiter adds to its reads
        device = replace(rates, storage=replace(rates.storage, limit_bytes_per_s=None))
        delay_s = np.maximum(0.0, delay_s - (read_s - read_table(device, layout, most)))
    wake_s, attention_s = (
        factor * _wake_table(kernels, op, n_bytes, read_s + delay_s) for op in ("wake", "wake_attention")
    )
    issue_s = factor * _miss_table(kernels, "issue", n_bytes, most) + attention_s
    return MissCosts(read_s, issue_s, delay_s, wake_s)


@lru_cache(maxsize=1024)
def _miss_table(kernels: KernelTimes | None, op: KernelOp, expert_bytes: int, most: int) -> np.ndarray:
    calls = [Call(op, kernel_calls.NO_TYPE, expert_bytes, n) for n in range(1, most + 1)]
    if kernels is None or not calls or not kernels.has(calls[0]):
        return np.zeros(most + 1)
    return np.array([0.0, *map(kernels.seconds, calls)])


def costs_of_waits_rise(rates: DeviceRates, layout: ExpertLayout, prefetch_policy: str) -> bool:
    """
    Whether longer waits never cost less, nor attention beside reads so much more that it hides the longer reads.
    """
    beside = prefetch_policy == PRE_ATTENTION
    of_ffn, of_attention = (
        _wake_curve(rates.kernels, op, layout.padded_bytes)
        for op in ("wake" if beside else "wake_on_demand", "wake_attention")
    )
    slopes = np.diff(of_attention[1]) / np.diff(of_attention[0] / 1e6) if beside else np.zeros(0)
    most = rates.contended_compute_frac / rates.contended_read_frac / rates.kernel_factor
    return bool((np.diff(of_ffn[1]) >= 0).all() and (slopes >= 0).all() and (slopes <= most).all())


def _wake_table(kernels: KernelTimes | None, op: KernelOp, expert_bytes: int, read_s: np.ndarray) -> np.ndarray:
    """Seconds (len(read_s),) after reads of so long, 0 where there are none; beyond the measured ends those hold."""
    microseconds, seconds = _wake_curve(kernels, op, expert_bytes)
    if not len(microseconds):
        return np.zeros(len(read_s))
    return np.where(read_s > 0, np.interp(read_s * 1e6, microseconds, seconds), 0.0)


@lru_cache(maxsize=1024)
def _wake_curve(kernels: KernelTimes | None, op: KernelOp, expert_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    counts = () if kernels is None or not expert_bytes else kernels.counts(op, kernel_calls.NO_TYPE)
    calls = [Call(op, kernel_calls.NO_TYPE, expert_bytes, count) for count in counts]
    seconds = [kernels.seconds(call) for call in calls] if kernels is not None else []
    return np.array(counts, dtype=np.float64), np.array(seconds)


@lru_cache(maxsize=8192)
def read_table(rates: DeviceRates, layout: ExpertLayout, most: int) -> np.ndarray:
    """Seconds (most + 1,) to read 0, 1, ..., most experts issued at once from idle storage, when nothing else runs."""
    bursts = [rates.storage.burst_s(n * layout.n_requests, layout.request_bytes) for n in range(1, most + 1)]
    return np.array([0.0, *bursts])
