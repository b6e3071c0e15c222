"""The conditions behind a number, in words, and the warnings that a reader must not miss."""

from moeplan.quantity import format_bytes, format_rate
from simulator.memory import lap_slots
from simulator.model.spec import ModelSpec
from simulator.page_cache import PAGE_BYTES
from simulator.policies import OFFLINE_POLICIES
from simulator.prefetch import PREFETCH_POLICIES
from simulator.question import Prepared, Question, available_ram_bytes
from simulator.result import PageCacheResult
from simulator.scenario import WARM_UP_FRAC
from simulator.sold import doubt_of_storage
from simulator.trace_steps import StepColumns

ENGINES = {
    "simpy": "event by event",
    "fast": "in closed form, equal to the event simulation",
    "mapped": "page faults replayed, their reads added to compute",
}
NEAR_CLIFF_FACTOR = 1.25  # slots within this factor above a cliff are called near it


def small_print(prepared: Prepared, engine: str, n_samples: int, seed: int) -> dict[str, str]:
    """Name to text, in the order in which a person would ask."""
    question, model, profile = prepared.question, prepared.question.model, prepared.question.profile
    steps = StepColumns.of(prepared.steps)
    contexts, n_tokens = steps.contexts[steps.is_decode], steps.stops - steps.firsts
    n_prompt, largest = n_tokens[~steps.is_decode].sum(), n_tokens[~steps.is_decode].max(initial=0)
    first = steps.firsts[steps.is_decode][0] - steps.firsts[0]
    types = model.tensor_types
    weights = f"FFN {types.dense_ffn}" if model.experts is None else f"experts {types.experts}"
    rate, limit = question.storage_read_bytes_per_s, question.storage_limit_bytes_per_s
    asked = "asked for" if question.ram_cap_bytes else "all that is left"
    text = {
        "model": f"{model.title}; {weights}, attention {types.attention}, KV cache {model.kv_type}",
        "device": profile.title,
        "threads": f"{question.n_threads or profile.cpu.threads} of {profile.cpu.cores} cores, for which the "
        "profile's figures hold",
        "compute": _compute_source(prepared),
        "ram_cap": f"{format_bytes(question.cap_bytes)} ({asked})",
        "storage": f"{profile.storage.kind}"
        + (f", sequential read set to {format_rate(rate)}, latencies unchanged" if rate else "")
        + (f", behind a limiter of {format_rate(limit)}" if limit else ""),
        "context": f"{contexts[0] - 1} tokens in the KV cache when decode begins, up to {contexts.max()} at its end"
        + _why_context(question),
        "tokens": f"{len(contexts)} decode tokens, {n_prompt} prompt tokens in chunks of at most {largest}, one stream",
        "first_token": _first_token(question, first),
        "start": _start(prepared),
        "lm_head": "predictor on: lossy" if question.lm_head_predictor else "full",
    }
    if model.experts is not None and question.trace is not None:
        header = question.trace.header
        text |= {
            "expert_layout": f"{prepared.layout.name}: {prepared.layout.n_requests} read(s) of "
            f"{format_bytes(prepared.layout.request_bytes)} per expert",
            "cache": f"{question.cache_policy}, {prepared.plan.n_slots} experts"
            + ("; told the future: a bound that no runtime reaches" if is_upper_bound(question) else ""),
            "prefetch": f"{question.prefetch}: {PREFETCH_POLICIES[question.prefetch]}",
            "gate_sparsity": f"{model.experts.gate_sparsity.value:.2f} of the gate neurons are zero",
            "routing": _origin(question) + (f", a stand-in for {model.name}" if is_stand_in(question) else ""),
            "trace_source": f"{header.source} ({header.licence}); recorded by {header.engine}",
        }
    if n_samples:
        fixed = "" if model.experts is None else "; routing is fixed"
        text["interval"] = f"80 %: {n_samples} draws of the stated uncertainties, seed {seed}{fixed}"
        text["engine"] = f"{engine} ({ENGINES[engine]})"
    return text


def _first_token(question: Question, n_prompt: int) -> str:
    if question.trace is None:
        return f"after a prompt of {n_prompt} tokens" + ("" if question.layout == "mmap" else ", all weights loaded")
    prompt = f"after the trace's own first prompt of {n_prompt} tokens"
    if question.layout == "mmap":
        return prompt
    if question.model.experts is None:
        return f"{prompt}, all weights loaded"
    return f"{prompt}, on an empty expert cache whatever the start; dense part loaded"


def _compute_source(prepared: Prepared) -> str:
    table = prepared.question.profile.cpu.kernels
    if table is None:
        return "roofline: the profile's FLOP/s and RAM bandwidth"
    return f"measured times of the kernels of {table.engine}; the roofline for what was not measured"


def mapped_small_print(page_cache: PageCacheResult, model: ModelSpec) -> dict[str, str]:
    """What differs where the operating system reads a mapped file."""
    window = page_cache.window_bytes
    read = "the missing page only" if window <= PAGE_BYTES else f"{format_bytes(window)} around the missing page"
    has_experts = model.experts is not None
    return {
        "expert_layout" if has_experts else "file": "mmap: the model file is mapped"
        + (", its experts in three tensors a layer" if has_experts else ""),
        "cache": f"page cache of {format_bytes(page_cache.capacity_bytes)}, {page_cache.eviction}; hits and misses are "
        f"pages, a fault reads {read}",
        "prefetch": "none but the kernel's read-ahead" + (", which knows nothing of experts" if has_experts else ""),
    }


def _why_context(question: Question) -> str:
    if question.context is not None:
        return " (asked for)"
    return " (the trace's own positions)" if question.trace is not None else " (no context asked for)"


def is_stand_in(question: Question) -> bool:
    """Whether the routing is not the model's own."""
    trace = question.trace
    return trace is not None and question.model.experts is not None and trace.header.model != question.model.name


def is_upper_bound(question: Question) -> bool:
    """Whether the cache is told the future: a bound on what any cache can do, not a speed that a runtime reaches."""
    return question.model.experts is not None and question.cache_policy in OFFLINE_POLICIES


def _origin(question: Question) -> str:
    """Recorded from a model, or made up."""
    assert question.trace is not None
    header = question.trace.header
    return "made up (synthetic)" if "synthetic" in header.conditions else f"recorded from {header.model}"


def _start(prepared: Prepared) -> str:
    counted = prepared.question.warm_up_tokens
    if counted is not None:
        return f"{prepared.question.start}; the first {counted} decode tokens run and do not count"
    if prepared.question.start == "cold":
        return "cold: the cache is empty at the first token, everything counts"
    if prepared.question.model.experts is None and prepared.question.layout == "mmap":
        return "warm: every page of the file was touched once before the first token"
    if prepared.question.model.experts is None:
        return "all weights are in RAM" if prepared.scenario is not None else "all weights have to be in RAM"
    if prepared.plan.verdict == "resident":
        return "warm: all experts are loaded before the first token"
    return f"warm: the first {WARM_UP_FRAC:.0%} of the decode tokens fill the cache and do not count in tokens/s"


def warnings_of(prepared: Prepared) -> list[str]:
    """One sentence each."""
    question, plan = prepared.question, prepared.plan
    found: list[str] = []
    if is_upper_bound(question):
        found.append(
            f"{question.cache_policy} is told the future and so misses least: a bound that no runtime reaches, not a "
            "speed to expect."
        )
    if plan.verdict == "streams" and question.layout != "mmap":
        found += _cliffs(prepared)
    trace = question.trace
    if is_stand_in(question) and plan.verdict != "resident":
        found.append(
            f"The routing was {_origin(question)}, a stand-in: hit rates are its own, {question.model.name} may route "
            f"with more or less locality, and the interval does not cover that."
        )
    for name in ("adapted", "cut"):
        if trace is not None and name in trace.header.conditions:
            found.append(f"The trace was {name}: {trace.header.conditions[name]}.")
    doubt = storage_doubt(question)
    return [*found, doubt] if doubt else found


def storage_doubt(question: Question) -> str:
    """A sentence where a storage speed was asked for that the device's link, or any drive, has not; else empty."""
    rate, limit = question.storage_read_bytes_per_s, question.storage_limit_bytes_per_s
    if rate is None or (limit is not None and limit < rate):
        return ""
    doubt = doubt_of_storage(question.profile, rate)
    return f"A storage read of {format_rate(rate)} is {doubt}: a what-if." if doubt else ""


def larger_cap(prepared: Prepared) -> str:
    """
    That the RAM cap is more than the device leaves, where the model takes less or cannot run with it either; or empty.

    Where it takes more than the device leaves see beyond_device.
    """
    cap = cap_above_device(prepared.question)
    if not cap or prepared.scenario is None:
        return f"{cap}." if cap else ""
    taken = format_bytes(prepared.plan.memory.resident_bytes)
    return "" if beyond_device(prepared) else f"{cap}; the model takes {taken} of it and fits."


def cap_above_device(question: Question) -> str:
    """That the RAM cap is more than the device leaves, without a full stop; empty for one within it."""
    available = available_ram_bytes(question.profile)
    if question.cap_bytes <= available:
        return ""
    cap, left = format_bytes(question.cap_bytes), format_bytes(available)
    return f"The RAM cap of {cap} is more than the {left} that this device leaves to a program"


def beyond_device(prepared: Prepared) -> str:
    """
    Why the device as bought cannot hold what is resident, with the arithmetic; empty where it can.

    A RAM cap above what the device leaves is a question about another device, unless the model takes less than that.
    """
    profile, resident = prepared.question.profile, prepared.plan.memory.resident_bytes
    available = available_ram_bytes(profile)
    if resident <= available:
        return ""
    ram = profile.ram
    limit = ram.app_memory_limit_bytes
    capped = "" if limit is None else f" and lets one program have {format_bytes(limit)} at most"
    return (
        f"{profile.title} has {format_bytes(ram.size_bytes)} of RAM; its system keeps "
        f"{format_bytes(ram.os_reserved_bytes)}{capped}: {format_bytes(available)} are left, and this takes "
        f"{format_bytes(resident)}."
    )


def _cliffs(prepared: Prepared) -> list[str]:
    """Global LRU has its cliff at one lap of the model, per-layer LRU at top_k slots a layer."""
    experts, n_slots = prepared.question.model.experts, prepared.plan.n_slots
    if experts is None:
        return []
    lap = lap_slots(prepared.question.model)
    no_hits = lap - experts.top_k
    if prepared.question.cache_policy == "lru":
        if n_slots <= no_hits:
            return [
                f"Below the cliff: the cache holds {n_slots} experts, one lap of the model takes {lap}; a global LRU "
                f"of at most {no_hits} gets no hits at all."
            ]
        if n_slots < NEAR_CLIFF_FACTOR * lap:
            return [
                f"Near the cliff: the cache holds {n_slots} experts, one lap of the model takes {lap}; at {no_hits} "
                f"and below a global LRU gets no hits at all."
            ]
    elif prepared.question.cache_policy == "lru-per-layer" and n_slots < NEAR_CLIFF_FACTOR * lap:
        place = "Below" if n_slots < lap else "Near"
        return [
            f"{place} the cliff: the cache holds {n_slots / prepared.question.model.n_moe_layers:.1f} experts a layer, "
            f"a row takes {experts.top_k}; below that a per-layer LRU evicts its own row."
        ]
    return []
