"""
Limits: the least RAM, the least storage speed, the largest context and top-k, the best quantisation for a target.

Each is the first value of a grid that reaches it, all else as the question asks.  Bisected where it is proven that
nothing after it falls short, scanned elsewhere; the answer says which.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Generic, TypeVar

from moeplan.quantity import format_rate
from simulator.inverse.caps import CapGrid, floor_bytes
from simulator.inverse.proofs import faster_storage_never_slower, more_slots_never_slower
from simulator.inverse.routing import Locality, locality_of, routing_for, routing_text, same_every_token
from simulator.inverse.search import first_reaching, thinned
from simulator.inverse.speeds import Speeds
from simulator.inverse.storage_grid import rate_grid
from simulator.model.size import file_bytes
from simulator.model.spec import with_quantisation, with_top_k
from simulator.plan_result import Limit, Search
from simulator.question import Question, question_rates
from simulator.result import Interval
from simulator.sold import doubt_of_cap, doubt_of_storage

CONTEXT_STEP = 256  # tokens
FEW_CONTEXTS = 24  # where each has to be tried
MANY_TOP_K = 2  # every top-k up to so many times the model's own, doublings beyond
MAX_ACCESSES = 2**26  # experts of all rows of a made-up trace: 128 MB; a long one has no doublings beyond
# From the best down; types that runtimes on devices have kernels for.
QUANTISATIONS = ("f16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k", "q2_k")

N_LIMITS = 5  # at most
MAX_ASKED = 1  # questions with their speeds at once: those of a long trace take 100s of MB; results are kept instead

Value = TypeVar("Value", int, float, str)


@dataclass(frozen=True)
class Asked:
    """A question with one value in place, and the speeds to answer it."""

    speeds: Speeds
    question: Question


@dataclass(frozen=True)
class Found(Generic[Value]):
    """The values that reach a target at the centre and at the low end of the interval, with their speeds."""

    value: Value | None
    tokens_per_s: Interval | None
    cautious_value: Value | None
    cautious_tokens_per_s: Interval | None
    n_tried: int


def find(
    runs: Sequence[Sequence[Value]], ask: Callable[[Value], Asked | None], target: float, *, is_monotone: bool
) -> Found[Value]:
    """The first values that reach the target; ask gives None for a value that nobody can ask for."""
    values: dict[Value, float] = {}

    def speed(value: Value) -> float:
        if value not in values:
            asked = ask(value)
            values[value] = 0.0 if asked is None else asked.speeds.speed(asked.question)
        return values[value]

    @cache
    def interval(value: Value | None) -> Interval | None:
        asked = None if value is None else ask(value)
        return None if asked is None else asked.speeds.interval(asked.question)

    def is_safe(value: Value) -> bool:
        return speed(value) >= target and (interval(value) or Interval(0, 0, 0)).low >= target

    value = first_reaching(runs, lambda value: speed(value) >= target, is_monotone=is_monotone)
    cautious = None if value is None else first_reaching(runs, is_safe, is_monotone=is_monotone)
    return Found(value, interval(value), cautious, interval(cautious), len(values))


def limits(speeds: Speeds, target: float) -> Iterator[Limit]:
    """One limit after the other; those that a model has."""
    question = speeds.question
    if question.model.experts is not None:
        yield ram_limit(speeds, target)
        yield storage_limit(speeds, target)
    yield context_limit(speeds, target)
    if question.model.experts is not None:
        yield top_k_limit(speeds, target)
    yield quantisation_limit(speeds, target)


def _limit(found: Found[Value], is_monotone: bool, **said: object) -> Limit:
    search: Search = "bisected" if is_monotone else "scanned"
    return Limit(
        value=found.value,
        tokens_per_s=found.tokens_per_s,
        cautious_value=found.cautious_value,
        cautious_tokens_per_s=found.cautious_tokens_per_s,
        n_tried=found.n_tried,
        search=search,
        **said,  # type: ignore[arg-type]
    )


def ram_limit(speeds: Speeds, target: float) -> Limit:
    """The least RAM cap."""
    question, grid = speeds.question, CapGrid(speeds, speeds.question)

    def ask(cap: int) -> Asked:
        return Asked(speeds, replace(question, ram_cap_bytes=cap))

    found = find(grid.runs, ask, target, is_monotone=grid.is_monotone)
    note = doubt_of_cap(question.profile, max(found.value or 0, found.cautious_value or 0))
    return _limit(
        found, grid.is_monotone, what="ram_cap", sense="least", today=question.cap_bytes, grid=grid.text, note=note
    )


def storage_limit(speeds: Speeds, target: float) -> Limit:
    """The least sequential read rate; latencies stay."""
    question, is_monotone = speeds.question, faster_storage_never_slower(speeds, speeds.question)
    today = question_rates(question).sequential_read_bytes_per_s
    grid = rate_grid(question.profile.ram.peak_bandwidth.value)
    rates = sorted({*grid, today})  # where today's meets it, the answer is no more

    def ask(rate: float) -> Asked:
        return Asked(speeds, replace(question, storage_read_bytes_per_s=rate))

    found = find([rates], ask, target, is_monotone=is_monotone)
    text = f"{len(rates):,} rates, {format_rate(rates[0])} to {format_rate(rates[-1])}, in steps of 1 %"
    wanted = found.cautious_value or found.value
    doubt = "" if wanted is None else doubt_of_storage(question.profile, wanted)
    note = (f"{doubt}; " if doubt else "") + "latencies as they are; the grid ends at the RAM's bandwidth"
    return _limit(found, is_monotone, what="storage_read", sense="least", today=today, grid=text, note=note)


def context_limit(speeds: Speeds, target: float) -> Limit:
    """The largest context at which decode begins."""
    question, is_monotone = speeds.question, _longer_never_faster(speeds)

    @lru_cache(maxsize=MAX_ASKED)
    def ask(context: int) -> Asked:
        return _afresh(speeds, replace(question, context=context))

    n_decode = max(step.context for step in ask(0).speeds.prepared(ask(0).question).steps if step.is_decode)
    longest = question.model.context_length - n_decode
    today = next(step.context for step in speeds.prepared(question).steps if step.is_decode) - 1
    contexts = sorted({*range(0, longest + 1, CONTEXT_STEP), max(0, longest)}, reverse=True)
    if not is_monotone:
        contexts = thinned(contexts, FEW_CONTEXTS)
    contexts = sorted({*contexts, min(today, longest)}, reverse=True)  # what today meets is met
    found = find(_context_runs(contexts, ask), ask, target, is_monotone=is_monotone)
    return _limit(
        found,
        is_monotone,
        what="context",
        sense="largest",
        today=today,
        grid=f"{len(contexts):,} contexts from {contexts[-1]:,} to {contexts[0]:,} tokens",
        note="tokens in the KV cache when decode begins"
        + ("" if question.model.experts is None else "; its bytes are taken from the experts"),
    )


def _longer_never_faster(speeds: Speeds) -> bool:
    """
    Whether a longer context is proven never to be faster: less room for the cache, more keys to read.

    Measured kernel times, and bursts after a rest, may fall somewhere; the roofline cannot.
    """
    profile = speeds.question.profile
    is_roofline = profile.cpu.kernels is None and profile.storage.bursts is None
    return is_roofline and more_slots_never_slower(speeds, speeds.question)


def _context_runs(contexts: Sequence[int], ask: Callable[[int], Asked]) -> list[Sequence[int]]:
    """
    Contexts that leave room, longest first; the more keys and values, the less room.

    Long ones, where only smaller chunks of the prompt have room, stand alone.
    """

    def has_room(chunk_tokens: int) -> Callable[[int], bool]:
        def fits(context: int) -> bool:
            asked = ask(context)
            return floor_bytes(asked.speeds, asked.question, chunk_tokens) <= asked.question.cap_bytes

        return fits

    whole = ask(contexts[0]).question.chunk_tokens
    longest, roomy = (first_reaching([contexts], has_room(chunk), is_monotone=True) for chunk in (1, whole))
    if longest is None:
        return []
    alone = [context for context in contexts if context <= longest and (roomy is None or context > roomy)]
    rest = [] if roomy is None else [context for context in contexts if context <= roomy]
    return [*([context] for context in alone), rest]


def top_k_limit(speeds: Speeds, target: float) -> Limit:
    """The largest number of experts per token; routing that nobody recorded is made up with the trace's locality."""
    question = speeds.question
    model, trace = question.model, question.trace
    assert model.experts is not None
    assert trace is not None
    own, n_experts = model.experts.top_k, model.experts.n_experts
    doublings = [own * 2**power for power in range(2, n_experts.bit_length() + 1)]
    beyond = [k for k in (*doublings, n_experts) if k * trace.n_tokens * trace.n_moe_layers <= MAX_ACCESSES]
    values = sorted({k for k in [*range(1, MANY_TOP_K * own + 1), *beyond] if k <= n_experts})
    locality = locality_of(trace)

    @lru_cache(maxsize=MAX_ASKED)
    def unmissed(top_k: int) -> Speeds:
        changed = with_top_k(model, top_k)
        return _afresh(speeds, replace(question, model=changed, trace=same_every_token(changed, trace))).speeds

    def is_possible(top_k: int) -> bool:
        return unmissed(top_k).compute_bound(unmissed(top_k).question) >= target  # else no routing helps

    @lru_cache(maxsize=MAX_ASKED)
    def ask(top_k: int) -> Asked:
        routing = routing_for(with_top_k(model, top_k), trace, locality, speeds.seed, question.recorded)
        changed = unmissed(top_k).with_routing(routing)
        return Asked(changed, changed.question)

    more_work_is_slower = question.profile.cpu.kernels is None
    most = first_reaching([values[::-1]], is_possible, is_monotone=more_work_is_slower)
    possible = [value for value in values[::-1] if most is not None and value <= most]
    too_many = [value for value in values if value > (most or 0)]
    why = f"; above {most or 0} {_why_not(unmissed(too_many[0]))}" if too_many else ""
    found = find([possible], ask, target, is_monotone=False)
    return _limit(
        found,
        False,
        what="top_k",
        sense="largest",
        today=own,
        grid=f"{len(values)} values from {values[-1]} down to 1{why}",
        note=_top_k_note(found, question, locality, "" if possible else _why_not(unmissed(values[0]))),
    )


def _why_not(speeds: Speeds) -> str:
    """Why a model that never waits for an expert misses the target."""
    prepared = speeds.prepared(speeds.question)
    return "it does not fit the RAM cap" if prepared.scenario is None else "compute alone is too slow"


def _top_k_note(found: Found[int], question: Question, locality: Locality, why_none: str) -> str:
    """Why there is none, or which routing the answers are for."""
    if why_none:
        return f"even with one expert a token {why_none}"
    values = [value for value in (found.value, found.cautious_value) if value is not None]
    model, trace = question.model, question.trace
    assert trace is not None
    told = dict.fromkeys(
        routing_text(with_top_k(model, value), trace, locality, question.recorded) for value in values
    )  # fmt: skip
    routing = f"routing: {' and '.join(told)}; " if told else ""
    return f"{routing}another top-k than the trained one changes the output"


def quantisation_limit(speeds: Speeds, target: float) -> Limit:
    """The type with the most bytes; all big matrices stored as it."""
    question, model = speeds.question, speeds.question.model
    types = model.tensor_types
    today = types.dense_ffn if model.experts is None else types.experts
    known = dict.fromkeys((today, *QUANTISATIONS))  # of types with as many bytes today's is asked first
    names = sorted(known, key=lambda name: -file_bytes(with_quantisation(model, name)))

    @lru_cache(maxsize=MAX_ASKED)
    def ask(name: str) -> Asked:
        return _afresh(speeds, replace(question, model=with_quantisation(model, name)))

    found = find([names], ask, target, is_monotone=False)
    kernels = question.profile.cpu.kernels
    return _limit(
        found,
        False,
        what="quantisation",
        sense="best",
        today=today,
        grid=", ".join(names),
        note="all big matrices as this type"
        + ("; types whose kernels were not measured by their bytes" if kernels else ", its speed by its bytes alone"),
    )


def _afresh(speeds: Speeds, question: Question) -> Asked:
    """A question that shares neither model, trace nor context with the first one, with as many draws."""
    return Asked(Speeds(question, speeds.n_samples, speeds.seed), question)
