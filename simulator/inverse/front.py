"""
The Pareto front of RAM against storage speed: for every RAM cap of a grid the least speed that meets a target.

The grid is coarse in RAM; the least caps at the device's own storage speed, which the limits found, are put into it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from moeplan.quantity import format_bytes, format_rate
from simulator.inverse.caps import CapGrid
from simulator.inverse.proofs import faster_storage_never_slower
from simulator.inverse.search import first_reaching, thinned
from simulator.inverse.speeds import Speeds
from simulator.inverse.storage_grid import rate_grid
from simulator.plan_result import Front, FrontPoint
from simulator.question import Question, available_ram_bytes, question_rates
from simulator.sold import doubt_of_cap, doubt_of_storage

N_FRONT_CAPS = 33  # RAM caps from the floor to all experts: 3 % of them a step

Speed = Callable[[Question], float]


def pareto_front(speeds: Speeds, target: float, exact_caps: Iterable[int] = ()) -> Front:
    """
    The points that no other point of the grid beats in both RAM and storage, central and cautious.

    exact_caps: RAM caps that are tried beside those of the grid.
    """
    question = speeds.question
    caps = sorted({*thinned(CapGrid(speeds, question).caps, N_FRONT_CAPS), *exact_caps})
    rates = front_rates(question)
    is_monotone = faster_storage_never_slower(speeds, question)
    speeds.decide([replace(question, ram_cap_bytes=cap) for cap in caps])

    def least_rates(speed: Speed) -> list[tuple[int, float]]:
        """(cap, least rate) of the front: a larger cap stands in it where a slower storage does with it."""
        found: list[tuple[int, float]] = []
        for cap in caps:
            asked = replace(question, ram_cap_bytes=cap)
            # a cap that needs no slower storage than a smaller one is beaten by it, so only slower ones are searched
            slower = [rate for rate in rates if not found or rate < found[-1][1]]
            rate = first_reaching([slower], _with_rate(asked, speed, target), is_monotone=is_monotone)
            if rate is not None:
                found.append((cap, rate))
        return found

    def points(speed: Speed) -> tuple[FrontPoint, ...]:
        return tuple(_point(speeds, cap, rate) for cap, rate in least_rates(speed))

    def low(question: Question) -> float:
        """The low end, 0 where not even the value meets the target: it never lies above it."""
        return speeds.low(question) if speeds.speed(question) >= target else 0.0

    return Front(
        points(speeds.speed),
        points(low),
        "bisected" if is_monotone else "scanned",
        f"{len(caps)} RAM caps, {format_bytes(caps[0])} to {format_bytes(caps[-1])}; for each the least of "
        f"{len(rates):,} storage speeds, {format_rate(rates[0])} to {format_rate(rates[-1])}, in steps of 1 %",
        available_ram_bytes(question.profile),
        question.start == "warm",
    )


def front_rates(question: Question) -> list[float]:
    """Ascending storage speeds in bytes per second: the grid's, and the question's own."""
    own = question_rates(question).sequential_read_bytes_per_s
    return sorted({*rate_grid(question.profile.ram.peak_bandwidth.value), own})


def _with_rate(question: Question, speed: Speed, target: float) -> Callable[[float], bool]:
    return lambda rate: speed(replace(question, storage_read_bytes_per_s=rate)) >= target


def _point(speeds: Speeds, cap: int, rate: float) -> FrontPoint:
    interval = speeds.interval(replace(speeds.question, ram_cap_bytes=cap, storage_read_bytes_per_s=rate))
    assert interval is not None
    return FrontPoint(cap, rate, interval, _doubts(speeds.question, cap, rate))


def _doubts(question: Question, cap: int, rate: float) -> str:
    """Why this device cannot have it, or nobody sells it."""
    doubts = doubt_of_cap(question.profile, cap), doubt_of_storage(question.profile, rate)
    return "; ".join(doubt for doubt in doubts if doubt)
