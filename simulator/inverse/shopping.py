"""
The cheapest parts that meet a target together: every combination of storage and compute, each with its cheapest RAM.

Where RAM is sold by the GiB its cap is searched as in caps.py; where it is sold in parts, all parts are tried.  Parts
that are no better than today's are left out, and so is what another purchase beats.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from moeplan.quantity import format_bytes
from simulator.inverse.caps import CapGrid
from simulator.inverse.prices import Prices, RamPerGib
from simulator.inverse.proofs import more_slots_never_slower
from simulator.inverse.search import first_reaching
from simulator.inverse.sold import doubt_of_ram, doubt_of_storage
from simulator.inverse.speeds import Speeds
from simulator.plan_result import Purchase, Shopping
from simulator.question import Question, available_ram_bytes, question_rates

GIB = 2**30
MAX_SHOWN = 20  # purchases of a kind: the cheapest ones
WORTH_MORE = 1.05  # a dearer purchase is so many times as fast as all cheaper ones, or is not told

Speed = Callable[[Question], float]


def price_of_ram(prices: Prices, now_bytes: int, wanted_bytes: int) -> float | None:
    """What a RAM cap costs above today's: the cheapest part of at least its size; None where none is that large."""
    if isinstance(prices.ram, RamPerGib):
        return max(0, wanted_bytes - now_bytes) / GIB * prices.ram.per_gib
    return _cheapest((part.price for part in prices.ram if part.ram_cap >= wanted_bytes), wanted_bytes <= now_bytes)


def price_of_storage(prices: Prices, wanted_bytes_per_s: float) -> float | None:
    """The cheapest storage that reads at least so fast, None where none does."""
    return _cheapest(part.price for part in prices.storage if part.read >= wanted_bytes_per_s)


def price_of_compute(prices: Prices, wanted_factor: float) -> float | None:
    """The cheapest processor of at least that factor, None where there is none."""
    return _cheapest(part.price for part in prices.compute if part.factor >= wanted_factor)


def _cheapest(prices: Iterable[float], has_already: bool = False) -> float | None:
    return 0.0 if has_already else min(prices, default=None)


@dataclass(frozen=True)
class _Offer:
    """A storage and a compute factor with their price."""

    question: Question
    price: float


def shopping(speeds: Speeds, prices: Prices, target: float) -> Shopping:
    """The purchases whose central value meets the target and those whose low end does, cheapest first."""
    offers, n_useless = list(_offers(speeds.question, prices)), _n_useless(speeds.question, prices)
    rams = _ram_offers(speeds, prices)
    found: list[Purchase] = []
    for is_cautious, speed in ((False, speeds.speed), (True, speeds.low)):
        bought = [
            _purchase(speeds, offer, cap, price, is_cautious)
            for offer in offers
            if (cap_price := rams.cheapest(offer.question, speed, target)) is not None
            for cap, price in [cap_price]
        ]
        found += _unbeaten(bought)[:MAX_SHOWN]
    useless = f"; {n_useless} of the list, no better than today's, left out" if n_useless else ""
    grid = f"{len(offers)} pairs of storage and processor, today's among them{useless}; RAM: {rams.text}"
    return Shopping(prices.currency, tuple(found), len(offers), grid)


def _unbeaten(bought: list[Purchase]) -> list[Purchase]:
    """Cheapest first, each dearer one faster by WORTH_MORE; what the device cannot have beats nothing that it can."""
    kept: list[Purchase] = []
    for buy in sorted(bought, key=lambda buy: (buy.price, bool(buy.note), -_speed(buy))):
        if not any(WORTH_MORE * _speed(one) > _speed(buy) and (not one.note or buy.note) for one in kept):
            kept.append(buy)
    return kept[:1] if kept and kept[0].price == 0 else kept


def _speed(buy: Purchase) -> float:
    return buy.tokens_per_s.low if buy.is_cautious else buy.tokens_per_s.value


def _is_faster(question: Question, read_bytes_per_s: float) -> bool:
    return read_bytes_per_s > question_rates(question).sequential_read_bytes_per_s


def _n_useless(question: Question, prices: Prices) -> int:
    """Parts of the list that are no better than today's."""
    rams = () if isinstance(prices.ram, RamPerGib) else prices.ram
    return (
        sum(part.ram_cap <= question.cap_bytes for part in rams)
        + sum(not _is_faster(question, part.read) for part in prices.storage)
        + sum(part.factor <= 1 for part in prices.compute)
    )


def _offers(question: Question, prices: Prices) -> Iterator[_Offer]:
    """Today's parts at no price, and those of the list that are better."""
    faster = [(part.read, part.price) for part in prices.storage if _is_faster(question, part.read)]
    storages = [(question.storage_read_bytes_per_s, 0.0), *faster]
    computes = [(1.0, 0.0), *((part.factor, part.price) for part in prices.compute if part.factor > 1)]
    for (factor, compute_price), (read, storage_price) in product(computes, storages):
        changed = replace(question, storage_read_bytes_per_s=read, compute_factor=question.compute_factor * factor)
        yield _Offer(changed, storage_price + compute_price)


@dataclass(frozen=True)
class _Rams:
    """RAM caps with their prices; by_price: runs in the order of price, each bisected where more is never slower."""

    speeds: Speeds
    price_of: dict[int, float]
    by_price: list[list[int]]
    is_monotone: bool
    text: str

    def cheapest(self, question: Question, speed: Speed, target: float) -> tuple[int, float] | None:
        """The cheapest cap that meets the target with this storage and compute, and its price."""
        cap = first_reaching(
            self.by_price,
            lambda cap: speed(replace(question, ram_cap_bytes=cap)) >= target,
            is_monotone=self.is_monotone and more_slots_never_slower(self.speeds, question),
        )
        return None if cap is None else (cap, self.price_of[cap])


def _ram_offers(speeds: Speeds, prices: Prices) -> _Rams:
    today = speeds.question.cap_bytes
    if isinstance(prices.ram, RamPerGib):
        grid = CapGrid(speeds, speeds.question, least_bytes=today)
        caps = [[today], *([cap for cap in run if cap > today] for run in grid.runs)]
        price_of = {cap: (cap - today) / GIB * prices.ram.per_gib for run in caps for cap in run}
        return _Rams(speeds, price_of, [run for run in caps if run], grid.is_monotone, f"today's or {grid.text}")
    price_of = {today: 0.0}
    for part in prices.ram:
        if part.ram_cap > today:
            price_of[part.ram_cap] = min(part.price, price_of.get(part.ram_cap, part.price))
    parts = sorted(price_of, key=lambda cap: (price_of[cap], cap))
    return _Rams(speeds, price_of, [parts], False, f"{len(parts)} sizes, each tried")


def _purchase(speeds: Speeds, offer: _Offer, cap: int, ram_price: float, is_cautious: bool) -> Purchase:
    question = replace(offer.question, ram_cap_bytes=cap)
    interval = speeds.interval(question)
    assert interval is not None
    factor = question.compute_factor / speeds.question.compute_factor
    rate = question_rates(question).sequential_read_bytes_per_s
    return Purchase(
        price=offer.price + ram_price,
        ram_cap_bytes=cap,
        storage_read_bytes_per_s=rate,
        compute_factor=factor,
        tokens_per_s=interval,
        is_cautious=is_cautious,
        note=_doubts(question, cap, rate),
    )


def _doubts(question: Question, cap: int, rate: float) -> str:
    """Why the device cannot have these parts, or nobody sells them."""
    profile, available = question.profile, available_ram_bytes(question.profile)
    doubts = [
        "" if cap <= available else f"more RAM than the {format_bytes(available)} that this device leaves",
        doubt_of_storage(profile, rate),
        doubt_of_ram(profile, question.compute_factor),
    ]
    return "; ".join(doubt for doubt in doubts if doubt)
