"""
The cheapest parts that meet a target together: every combination of storage and compute, each with its cheapest RAM.

Where RAM is sold by the GiB its cap is searched as in caps.py; where it is sold in parts, all parts are tried.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from moeplan.quantity import format_bytes
from simulator.inverse.caps import CapGrid
from simulator.inverse.prices import Prices, RamPerGib
from simulator.inverse.search import first_reaching
from simulator.inverse.speeds import Speeds
from simulator.plan_result import Purchase, Shopping
from simulator.question import Question, available_ram_bytes, question_rates

GIB = 2**30
MAX_SHOWN = 20  # purchases of a kind: the cheapest ones

Speed = Callable[[Question], float]


@dataclass(frozen=True)
class _Offer:
    """A storage and a compute factor with their price."""

    question: Question
    price: float


def shopping(speeds: Speeds, prices: Prices, target: float) -> Shopping:
    """The purchases whose central value meets the target and those whose low end does, cheapest first."""
    offers = list(_offers(speeds.question, prices))
    rams = _ram_offers(speeds, prices)
    found: list[Purchase] = []
    for is_cautious, speed in ((False, speeds.speed), (True, speeds.low)):
        bought = [
            _purchase(speeds, offer, cap, price, is_cautious)
            for offer in offers
            if (cap_price := rams.cheapest(offer.question, speed, target)) is not None
            for cap, price in [cap_price]
        ]
        found += sorted(bought, key=lambda buy: (buy.price, -buy.tokens_per_s.value))[:MAX_SHOWN]
    n_storage, n_compute = len(prices.storage) + 1, len(prices.compute) + 1
    grid = f"{n_storage} storages x {n_compute} processors, today's among them; RAM: {rams.text}"
    return Shopping(prices.currency, tuple(found), len(offers), grid)


def _offers(question: Question, prices: Prices) -> Iterator[_Offer]:
    """Today's parts among them, at no price."""
    storages = [(question.storage_read_bytes_per_s, 0.0), *((part.read, part.price) for part in prices.storage)]
    computes = [(1.0, 0.0), *((part.factor, part.price) for part in prices.compute)]
    for (read, storage_price), (factor, compute_price) in product(storages, computes):
        changed = replace(question, storage_read_bytes_per_s=read, compute_factor=question.compute_factor * factor)
        yield _Offer(changed, storage_price + compute_price)


@dataclass(frozen=True)
class _Rams:
    """RAM caps with their prices; by_price: runs in the order of price, each bisected where is_monotone."""

    price_of: dict[int, float]
    by_price: list[list[int]]
    is_monotone: bool
    text: str

    def cheapest(self, question: Question, speed: Speed, target: float) -> tuple[int, float] | None:
        """The cheapest cap that meets the target with this storage and compute, and its price."""
        cap = first_reaching(
            self.by_price,
            lambda cap: speed(replace(question, ram_cap_bytes=cap)) >= target,
            is_monotone=self.is_monotone,
        )
        return None if cap is None else (cap, self.price_of[cap])


def _ram_offers(speeds: Speeds, prices: Prices) -> _Rams:
    today = speeds.question.cap_bytes
    if isinstance(prices.ram, RamPerGib):
        grid = CapGrid(speeds, speeds.question, least_bytes=today)
        caps = [[today], *([cap for cap in run if cap > today] for run in grid.runs)]
        price_of = {cap: (cap - today) / GIB * prices.ram.per_gib for run in caps for cap in run}
        return _Rams(price_of, [run for run in caps if run], grid.is_monotone, f"today's or {grid.text}")
    price_of = {today: 0.0}
    for part in prices.ram:
        price_of[part.ram_cap] = min(part.price, price_of.get(part.ram_cap, part.price))
    parts = sorted(price_of, key=lambda cap: (price_of[cap], cap))
    return _Rams(price_of, [parts], False, f"{len(parts)} sizes, each tried")


def _purchase(speeds: Speeds, offer: _Offer, cap: int, ram_price: float, is_cautious: bool) -> Purchase:
    question = replace(offer.question, ram_cap_bytes=cap)
    interval = speeds.interval(question)
    assert interval is not None
    available = available_ram_bytes(question.profile)
    return Purchase(
        price=offer.price + ram_price,
        ram_cap_bytes=cap,
        storage_read_bytes_per_s=question_rates(question).sequential_read_bytes_per_s,
        compute_factor=question.compute_factor / speeds.question.compute_factor,
        tokens_per_s=interval,
        is_cautious=is_cautious,
        note="" if cap <= available else f"more RAM than the {format_bytes(available)} that this device leaves",
    )
