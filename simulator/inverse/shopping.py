"""
The cheapest parts that meet a target together: every combination of storage and compute, each with its cheapest RAM.

RAM that the device leaves to a program is there and costs nothing; its cap is searched as in caps.py, and so is one
above it where RAM is sold by the GiB; where it is sold in parts, all larger ones are tried.  Parts that are no better
than what is there are left out, and so are those that the device cannot have, and what another purchase beats.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hardware_profiles.schema import HardwareProfile
from moeplan.quantity import format_bytes, format_rate
from simulator.inverse.caps import CapGrid
from simulator.inverse.prices import Prices, RamPerGib
from simulator.inverse.proofs import more_slots_never_slower
from simulator.inverse.search import first_reaching
from simulator.inverse.speeds import Speeds
from simulator.plan_result import Purchase, Shopping
from simulator.question import Question, available_ram_bytes, question_rates
from simulator.sold import doubt_of_cap, doubt_of_ram, doubt_of_storage

GIB = 2**30
MAX_SHOWN = 20  # purchases of a kind: the cheapest ones
WORTH_MORE = 1.05  # a dearer purchase is so many times as fast as all cheaper ones, or is not told

Speed = Callable[[Question], float]


def there_bytes(question: Question) -> int:
    """RAM that need not be bought: what the device leaves to a program, or a larger cap that was asked for."""
    return max(question.cap_bytes, available_ram_bytes(question.profile))


def price_of_ram(prices: Prices, question: Question, wanted_bytes: int) -> float | None:
    """What a RAM cap costs, nothing where it is there; the cheapest part of at least its size, None where none is."""
    if wanted_bytes <= there_bytes(question):
        return 0.0
    if isinstance(prices.ram, RamPerGib):
        return (wanted_bytes - there_bytes(question)) / GIB * prices.ram.per_gib
    return min((part.price for part in prices.ram if part.ram_cap >= wanted_bytes), default=None)


def price_of_storage(prices: Prices, profile: HardwareProfile, wanted_bytes_per_s: float) -> float | None:
    """The cheapest storage that reads at least so fast, None where none does; one beyond the link for more alone."""
    is_beyond = bool(doubt_of_storage(profile, wanted_bytes_per_s))
    enough = [part for part in prices.storage if part.read >= wanted_bytes_per_s]
    return min((part.price for part in enough if is_beyond or not doubt_of_storage(profile, part.read)), default=None)


def price_of_compute(prices: Prices, wanted_factor: float) -> float | None:
    """The cheapest processor of at least that factor, None where there is none."""
    return min((part.price for part in prices.compute if part.factor >= wanted_factor), default=None)


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
    useless = f"; {n_useless} of the list, no better than what is there, left out" if n_useless else ""
    grid = f"{len(offers)} pairs of storage and processor, today's among them{useless}; RAM: {rams.text}"
    return Shopping(prices.currency, tuple(found), len(offers), grid, _left_out(speeds.question, prices))


def _left_out(question: Question, prices: Prices) -> tuple[str, ...]:
    """The parts that the device cannot have, or nobody sells, a line for each reason."""
    told: dict[str, list[str]] = {}
    for part in prices.storage:
        told.setdefault(doubt_of_storage(question.profile, part.read), []).append(f"storage {format_rate(part.read)}")
    for processor in prices.compute:
        doubt = doubt_of_ram(question.profile, question.compute_factor * processor.factor)
        told.setdefault(doubt, []).append(f"CPU and RAM x {processor.factor:g}")
    return tuple(f"{', '.join(dict.fromkeys(parts))}: {doubt}" for doubt, parts in told.items() if doubt)


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
    """Parts of the list that are no better than what is there."""
    rams = () if isinstance(prices.ram, RamPerGib) else prices.ram
    return (
        sum(part.ram_cap <= there_bytes(question) for part in rams)
        + sum(not _is_faster(question, part.read) for part in prices.storage)
        + sum(part.factor <= 1 for part in prices.compute)
    )


def _offers(question: Question, prices: Prices) -> Iterator[_Offer]:
    """Today's parts at no price, and those of the list that are better and that the device can have."""
    profile, now = question.profile, question.compute_factor
    storages: list[tuple[float | None, float]] = [(question.storage_read_bytes_per_s, 0.0)]
    storages += [
        (part.read, part.price)
        for part in prices.storage
        if _is_faster(question, part.read) and not doubt_of_storage(profile, part.read)
    ]
    better = [part for part in prices.compute if part.factor > 1 and not doubt_of_ram(profile, now * part.factor)]
    computes = [(1.0, 0.0), *((part.factor, part.price) for part in better)]
    for (factor, compute_price), (read, storage_price) in product(computes, storages):
        changed = replace(question, storage_read_bytes_per_s=read, compute_factor=now * factor)
        yield _Offer(changed, storage_price + compute_price)


@dataclass(frozen=True)
class _Rams:
    """
    RAM caps with their prices: runs in the order of price, first those that are there; a run is bisected where more is
    never slower, those that are sold only where they ascend.
    """

    speeds: Speeds
    there: Sequence[Sequence[int]]
    sold: Sequence[Sequence[int]]
    price_of: dict[int, float]
    is_monotone: bool
    sold_ascend: bool
    text: str

    def cheapest(self, question: Question, speed: Speed, target: float) -> tuple[int, float] | None:
        """The cheapest cap that meets the target with this storage and compute, and its price."""

        def reaches(cap: int) -> bool:
            return speed(replace(question, ram_cap_bytes=cap)) >= target

        is_monotone = self.is_monotone and more_slots_never_slower(self.speeds, question)
        cap = first_reaching(self.there, reaches, is_monotone=is_monotone)
        if cap is not None:
            return cap, 0.0
        cap = first_reaching(self.sold, reaches, is_monotone=is_monotone and self.sold_ascend)
        return None if cap is None else (cap, self.price_of[cap])


def _ram_offers(speeds: Speeds, prices: Prices) -> _Rams:
    question = speeds.question
    today, most = question.cap_bytes, there_bytes(question)
    grid = CapGrid(speeds, question, least_bytes=today)
    there = [[today], *([cap for cap in run if today < cap <= most] for run in grid.runs)]
    text = f"today's or {grid.text}; up to {format_bytes(most)} is there"
    if isinstance(prices.ram, RamPerGib):
        sold = [[cap for cap in run if cap > most] for run in grid.runs]
        price_of = {cap: (cap - most) / GIB * prices.ram.per_gib for run in sold for cap in run}
        return _Rams(speeds, there, sold, price_of, grid.is_monotone, True, text)
    price_of = {}
    for part in prices.ram:
        if part.ram_cap > most:
            price_of[part.ram_cap] = min(part.price, price_of.get(part.ram_cap, part.price))
    parts = sorted(price_of, key=lambda cap: (price_of[cap], cap))
    text += f", {len(parts)} larger sizes are tried" if parts else ""
    return _Rams(speeds, there, [parts], price_of, grid.is_monotone, False, text)


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
        note=_doubts(question, cap, rate, there_bytes(speeds.question)),
    )


def _doubts(question: Question, cap: int, rate: float, there_bytes: int) -> str:
    """Why the device cannot have these parts, or nobody sells them; RAM that the question takes as there is no part."""
    profile = question.profile
    doubts = [
        doubt_of_cap(profile, cap) if cap > there_bytes else "",
        doubt_of_storage(profile, rate),
        doubt_of_ram(profile, question.compute_factor),
    ]
    return "; ".join(doubt for doubt in doubts if doubt)
