"""What bounds a question: each resource of its device doubled in turn."""

from collections.abc import Callable
from dataclasses import replace

from hardware_profiles.rates import DeviceRates
from simulator.expert_layout import expert_layout
from simulator.question import Question, device_rates, with_what_ifs
from simulator.result import Bound

Seconds = Callable[[DeviceRates, float | None], float]  # of some steps on a device, with a gate sparsity


def bound_by(decode: Seconds, question: Question) -> Bound:
    """The resource whose doubling (for latency: halving) saves the most time; ties go to the first."""
    twice = twice_as_fast(question, device_rates(question))
    return min(twice, key=lambda name: decode(twice[name], None))


def twice_as_fast(question: Question, device: DeviceRates) -> dict[Bound, DeviceRates]:
    """
    The question's device with each resource doubled in turn, latency halved; device: before the question's what-ifs.

    A limiter before the storage is a part of its bandwidth and doubled with it.
    """
    limit = question.storage_limit_bytes_per_s
    if limit is not None:
        twice = twice_as_fast(replace(question, storage_limit_bytes_per_s=None), device)
        request_bytes = expert_layout(question.model, question.layout).request_bytes
        factors = {name: 2 if name == "storage_bandwidth" else 1 for name in twice}
        return {name: rates.limited(factors[name] * limit, request_bytes) for name, rates in twice.items()}
    rates = with_what_ifs(question, device)
    return {
        "ram_bandwidth": replace(rates, ram_bytes_per_s=2 * rates.ram_bytes_per_s),
        "compute": rates.faster_compute(2),
        "storage_bandwidth": replace(
            rates,
            storage=rates.storage.at_read_rate(
                2 * rates.sequential_read_bytes_per_s, rates.sequential_read_bytes_per_s
            ),
        ),
        "storage_latency": replace(
            rates,
            storage=replace(
                rates.storage,
                latency_s=rates.storage.latency_s / 2,
                request_overhead_s=rates.storage.request_overhead_s / 2,
            ),
        ),
    }
