"""
Changes: what a device that misses its target would need, one thing at a time, in the order of what they cost.

First settings, which cost nothing, a RAM cap within the device's RAM among them; then what costs quality of the
answers; then parts, by their price where there is one, else by how much more they ask of the device; last what this
device cannot have, or nobody sells.
"""

from collections.abc import Iterator
from dataclasses import replace

from moeplan.quantity import format_bytes, format_bytes_up, format_rate, format_rate_up
from simulator.inverse.caps import CapGrid
from simulator.inverse.prices import Prices
from simulator.inverse.proofs import (
    faster_compute_never_slower,
    faster_storage_never_slower,
    more_slots_never_slower,
)
from simulator.inverse.search import first_reaching
from simulator.inverse.shopping import price_of_compute, price_of_ram, price_of_storage
from simulator.inverse.speeds import Speeds
from simulator.inverse.storage_grid import rate_grid
from simulator.plan_result import CHANGE_KINDS, Change, ChangeKind, Limit
from simulator.policies import POLICIES
from simulator.prefetch import default_prefetch
from simulator.question import Question, available_ram_bytes, question_rates
from simulator.result import Result
from simulator.sold import doubt_of_cap, doubt_of_ram, doubt_of_storage

COMPUTE_FACTORS = tuple(min(64.0, 1.01**power) for power in range(419))  # steps of 1 %; beyond is out of reach
STORAGE_STEPS = (1.5, 2.0, 3.0, 4.0, 6.0)  # factors on the storage's speed that are tried together with more RAM


def changes(
    speeds: Speeds, target: float, result: Result, limits: tuple[Limit, ...], prices: Prices | None
) -> tuple[Change, ...]:
    """
    Single changes, and RAM and storage together, those that reach the target first.

    Where the value meets it already: the settings with which the low end of the interval does too, none where it does.
    limits: of the same question and target, which say what other top-k and quantisation would do.
    """
    if result.tokens_per_s is not None and result.tokens_per_s.value >= target:
        return () if result.tokens_per_s.low >= target else tuple(_safe_settings(speeds, target))
    if result.reason == "storage_capacity":
        return (_more_storage_space(speeds, target),)
    return tuple(sorted(_all_changes(speeds, target, result, limits, prices), key=_order))


def _safe_settings(speeds: Speeds, target: float) -> Iterator[Change]:
    """Settings with which the low end of the interval meets the target, those that cost nothing first."""
    for change in (*_setting_changes(speeds, target), *_predictor(speeds, target)):
        if change.tokens_per_s is not None and change.tokens_per_s.low >= target:
            yield change


def _order(change: Change) -> tuple[bool, int, bool, float, float]:
    is_unpriced = change.price is None
    return not change.reaches, CHANGE_KINDS.index(change.kind), is_unpriced, change.price or 0.0, change.ratio


def _all_changes(
    speeds: Speeds, target: float, result: Result, limits: tuple[Limit, ...], prices: Prices | None
) -> Iterator[Change]:
    runs = speeds.prepared(speeds.question).scenario is not None
    if runs:  # no setting makes room for what must be resident
        yield from _setting_changes(speeds, target)
        yield from _predictor(speeds, target)
    yield from _quality_changes(speeds, limits)
    if result.verdict != "resident":
        search = RamSearch(speeds)
        ram = search.change(target, prices)
        yield ram
        yield from search.all_experts(target)
        if runs:
            yield _faster_storage(speeds, target, prices)
            both, is_free = ram_and_storage(search, target, prices), ram.reaches and ram.kind == "setting"
            if both is not None and not (is_free and both.kind == "other_device"):
                yield both
    if runs:
        yield faster_compute(speeds, target, prices)


def _setting_changes(speeds: Speeds, target: float) -> Iterator[Change]:
    """Changes that cost nothing: the best of the other cache policies, prefetch, layout."""
    question = speeds.question
    if question.model.experts is None:
        return
    if speeds.n_misses(question):
        yield _best_policy(speeds, target)
    best = default_prefetch(question.model)
    if question.prefetch != best:
        changed = replace(question, prefetch_policy=best)
        yield _one(speeds, changed, target, "setting", "prefetch", question.prefetch, best)
    if question.layout != "bundle":
        changed = replace(question, layout="bundle")
        yield _one(speeds, changed, target, "setting", "expert layout", question.layout, "bundle")


def _best_policy(speeds: Speeds, target: float) -> Change:
    """The fastest of the other cache policies; the note has all of them."""
    question = speeds.question
    others = [replace(question, cache_policy=policy) for policy in sorted(set(POLICIES) - {question.cache_policy})]
    ranked = sorted(others, key=lambda asked: (-speeds.speed(asked), asked.cache_policy))
    told = ", ".join(f"{asked.cache_policy} {speeds.speed(asked):.3g}" for asked in ranked[1:])
    best, before = ranked[0], question.cache_policy
    note = f"the fastest of {len(ranked)} others; then {told}" if told else ""
    return _one(speeds, best, target, "setting", "cache policy", before, best.cache_policy, note=note)


def _predictor(speeds: Speeds, target: float) -> Iterator[Change]:
    question = speeds.question
    if question.model.lm_head_predictor is not None and not question.lm_head_predictor:
        changed = replace(question, lm_head_predictor=True)
        note = "lossy: changes the model's output now and then"
        yield _one(speeds, changed, target, "quality", "LM-head predictor", "off", "on", note=note)


def _quality_changes(speeds: Speeds, limits: tuple[Limit, ...]) -> Iterator[Change]:
    """Another top-k and quantisation, where one reaches the target; what they cost is not known here, and is said."""
    model = speeds.question.model
    notes = {
        "top_k": f"not measured: quality at top-k {{}} of a model trained with {model.experts and model.experts.top_k}",
        "quantisation": "not measured: quality with all big matrices as {}",
    }
    for limit in limits:
        if limit.what in notes and limit.value is not None:
            what, note = limit.what.replace("top_k", "top-k"), notes[limit.what].format(limit.value)
            speed = limit.tokens_per_s
            yield Change(what, str(limit.today), str(limit.value), 1.0, True, speed, note, "quality")


def _one(
    speeds: Speeds, question: Question, target: float, kind: ChangeKind, what: str, before: str, after: str,
    ratio: float = 1.0, note: str = "", price: float | None = None,
) -> Change:  # fmt: skip
    """The change that turns the question into this one."""
    speed = speeds.interval(question)
    reaches = speed is not None and speed.value >= target
    return Change(what, before, after, ratio, reaches, speed, note, kind, price)


class RamSearch:
    """The least RAM cap of at least today's for a target, over the sizes of the expert cache."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds, self.question = speeds, speeds.question
        self._grid = CapGrid(speeds, self.question, least_bytes=self.question.cap_bytes)

    def least_bytes(self, question: Question, target: float) -> int | None:
        """The least cap that reaches the target with the question's speeds, None where all experts in RAM do not."""
        return first_reaching(
            self._grid.runs,
            lambda cap: self.speeds.speed(replace(question, ram_cap_bytes=cap)) >= target,
            is_monotone=self._grid.is_monotone and more_slots_never_slower(self.speeds, question),
        )

    def change(self, target: float, prices: Prices | None = None) -> Change:
        """The least RAM cap that reaches the target, or all experts in RAM where that does not."""
        found, now = self.least_bytes(self.question, target), self.question.cap_bytes
        wanted = self._grid.caps[-1] if found is None else found
        changed = replace(self.question, ram_cap_bytes=wanted)
        doubt = doubt_of_cap(self.question.profile, wanted)
        kind: ChangeKind = "other_device" if doubt else "setting"  # RAM that is there costs nothing
        price = None if prices is None or not doubt else price_of_ram(prices, self.question, wanted)
        return _one(
            self.speeds, changed, target, kind, "RAM cap", format_bytes(now), format_bytes_up(wanted), wanted / now,
            doubt or self._within, price,
        )  # fmt: skip

    def all_experts(self, target: float) -> Iterator[Change]:
        """All experts in RAM, where the device has room for them and fewer reach the target too: the safer change."""
        found, most, now = self.least_bytes(self.question, target), self._grid.caps[-1], self.question.cap_bytes
        if found is None or found == most or doubt_of_cap(self.question.profile, most):
            return
        changed = replace(self.question, ram_cap_bytes=most)
        after, note = format_bytes_up(most), f"no expert is read twice; {self._within}"
        yield _one(
            self.speeds, changed, target, "setting", "all experts in RAM", format_bytes(now), after, most / now, note
        )

    @property
    def _within(self) -> str:
        return f"within the {format_bytes(available_ram_bytes(self.question.profile))} that this device leaves"


def _part(*doubts: str) -> tuple[ChangeKind, str]:
    """A part that can be bought for this device, or one that cannot, and why."""
    note = "; ".join(doubt for doubt in doubts if doubt)
    return "other_device" if note else "hardware", note


def ram_and_storage(search: RamSearch, target: float, prices: Prices | None = None) -> Change | None:
    """The smallest product of a larger RAM cap and a faster storage that reaches the target together, if any does."""
    question, now = search.question, search.question.cap_bytes
    current = question_rates(question).sequential_read_bytes_per_s
    found = []
    fastest = question.profile.ram.peak_bandwidth.value  # no storage outruns the RAM that it reads into
    for factor in (step for step in STORAGE_STEPS if step * current <= fastest):
        cap = search.least_bytes(replace(question, storage_read_bytes_per_s=factor * current), target)
        if cap is not None and format_bytes(cap) != format_bytes(now):
            doubts = doubt_of_cap(question.profile, cap), doubt_of_storage(question.profile, factor * current)
            found.append((any(doubts), cap / now * factor, factor, cap, doubts))
    if not found:
        return None
    _, ratio, factor, cap, doubts = min(found)
    rate = factor * current
    changed = replace(question, ram_cap_bytes=cap, storage_read_bytes_per_s=rate)
    before, after = f"{format_bytes(now)}, {format_rate(current)}", f"{format_bytes_up(cap)}, {format_rate_up(rate)}"
    kind, note = _part(*doubts)
    price = None
    if prices is not None:
        price = _sum(price_of_ram(prices, question, cap), price_of_storage(prices, question.profile, rate))
    return _one(
        search.speeds, changed, target, kind, "RAM cap and storage read", before, after, ratio, note, price
    )  # fmt: skip


def _sum(*prices: float | None) -> float | None:
    """None where a part has no price."""
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


def _more_storage_space(speeds: Speeds, target: float) -> Change:
    """Room for the model file."""
    question = speeds.question
    storage = question.profile.storage
    wanted, free = speeds.prepared(question).plan.memory.storage_bytes, storage.free_space
    room = storage.model_copy(update={"free_space": free.model_copy(update={"value": float(wanted)})})
    changed = replace(question, profile=question.profile.model_copy(update={"storage": room}))
    before, after, ratio = format_bytes(free.value), format_bytes_up(wanted), wanted / max(1.0, free.value)
    note = "without it the model cannot run at all"
    roomy = Speeds(changed, speeds.n_samples, speeds.seed)
    return _one(roomy, changed, target, "hardware", "free storage", before, after, ratio, note)


def _faster_storage(speeds: Speeds, target: float, prices: Prices | None) -> Change:
    """The least sequential read rate above today's that reaches the target; the latencies stay."""
    question = speeds.question
    current = question_rates(question).sequential_read_bytes_per_s
    rates = [rate for rate in rate_grid(question.profile.ram.peak_bandwidth.value) if rate > current] or [current]
    rate = first_reaching(
        [rates],
        lambda rate: speeds.speed(replace(question, storage_read_bytes_per_s=rate)) >= target,
        is_monotone=faster_storage_never_slower(speeds, question),
    )
    wanted = rates[-1] if rate is None else rate
    changed = replace(question, storage_read_bytes_per_s=wanted)
    kind, doubt = _part(doubt_of_storage(question.profile, wanted))
    return _one(
        speeds, changed, target, kind, "storage read", format_rate(current), format_rate_up(wanted), wanted / current,
        doubt or "sequential read; latencies as they are",
        None if prices is None else price_of_storage(prices, question.profile, wanted),
    )  # fmt: skip


def faster_compute(speeds: Speeds, target: float, prices: Prices | None = None) -> Change:
    """The least factor on CPU rates and RAM bandwidth together that reaches the target."""
    question = speeds.question

    def faster(factor: float) -> Question:
        return replace(question, compute_factor=question.compute_factor * factor)

    found = first_reaching(
        [COMPUTE_FACTORS],
        lambda factor: speeds.speed(faster(factor)) >= target,
        is_monotone=faster_compute_never_slower(speeds, question),
    )
    factor = COMPUTE_FACTORS[-1] if found is None else found
    kind, doubt = _part(doubt_of_ram(question.profile, question.compute_factor * factor))
    return _one(
        speeds, faster(factor), target, kind, "CPU and RAM speed", "1.00 x", f"{factor:.2f} x", factor,
        doubt or "FLOP/s and RAM bandwidth together: another processor",
        None if prices is None else price_of_compute(prices, factor),
    )  # fmt: skip
