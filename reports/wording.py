"""What a result says, in words and a few derived numbers: shared by the page and the terminal."""

from dataclasses import dataclass

from moeplan.quantity import format_bytes, format_rate, format_seconds
from simulator.result import Interval, Result

BOUND = {
    "compute": "Compute bounds it: the CPU's FLOP/s, not memory or storage, set the pace.",
    "ram_bandwidth": "RAM bandwidth bounds it: the weights of a token pass through RAM at its sustained rate.",
    "storage_bandwidth": "Storage bandwidth bounds it: the experts that miss arrive at the SSD's read rate.",
    "storage_latency": "Storage latency bounds it: the time per read request, not the bytes, sets the pace.",
}
ELSEWHERE = "Not on this device as bought; with that RAM"
BOUND_NAME = {
    "compute": "compute",
    "ram_bandwidth": "RAM bandwidth",
    "storage_bandwidth": "storage bandwidth",
    "storage_latency": "storage latency",
}
MAPPED_BOUND = {
    "storage_bandwidth": "Storage bandwidth bounds it: the pages that are missing arrive at the storage's read rate.",
}
REASON = {
    "ram_floor": "The RAM cap is below what has to stay resident.",
    "storage_capacity": "The model's file does not fit on the free storage.",
}
OP = {
    "embedding": "embedding",
    "router": "router",
    "attention": "attention",
    "wait": "wait for experts",
    "dense_ffn": "dense FFN",
    "expert_ffn": "expert FFN",
    "lm_head": "LM head",
}


@dataclass(frozen=True)
class Overlap:
    """
    The check t_attention >= t_prefetch over all layers.

    hidden_frac: of the (token, layer) pairs with a miss, the share that meets it, None where nothing missed;
    no_miss_frac: of all pairs; bubble_s: mean of a layer; bubble_s_per_token: sum over the layers.
    """

    hidden_frac: float | None
    no_miss_frac: float
    bubble_s: float
    bubble_s_per_token: float


def overlap(result: Result) -> Overlap:
    """
    The check over all layers of a result.

        hidden_frac = sum(hidden_frac_l (1 - no_miss_frac_l)) / sum(1 - no_miss_frac_l)
    """
    if not result.layers:
        return Overlap(None, 1.0, 0.0, 0.0)
    weights = [0.0 if layer.hidden_frac is None else 1.0 - layer.no_miss_frac for layer in result.layers]
    hidden = sum(w * (layer.hidden_frac or 0.0) for w, layer in zip(weights, result.layers, strict=True))
    bubble_s = sum(layer.bubble_s for layer in result.layers)
    n = len(result.layers)
    no_miss = sum(layer.no_miss_frac for layer in result.layers) / n
    return Overlap(hidden / sum(weights) if sum(weights) > 0 else None, no_miss, bubble_s / n, bubble_s)


def cache_line(result: Result) -> str:
    """The expert cache, or the page cache of a mapped file, in one line; empty for a dense model."""
    cache, pages = result.cache, result.page_cache
    if cache is None:
        return ""
    read = f"{size(cache.bytes_read_per_token)} read per token"
    if pages is not None:
        counts = f"{cache.hits:,} pages found in RAM, {cache.misses:,} page faults: {100 * cache.hit_rate:.1f} % found"
        return f"{pages.eviction}, {size(pages.capacity_bytes)}; {counts}; {read}"
    counts = f"{cache.hits:,} hits, {cache.misses:,} misses: {100 * cache.hit_rate:.1f} % hit"
    bound = " (a bound: told the future)" if cache.is_upper_bound else ""
    return f"{cache.policy}{bound}, {cache.slots:,} experts; {counts}; {read}"


def number(value: float) -> str:
    """Three significant digits without an exponent: '0.123', '1.23', '12.3', '1,234'."""
    if value == 0:
        return "0"
    if abs(value) < 0.9995:
        return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"
    return f"{value:,.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def percent(fraction: float) -> str:
    """'38 %'; a share that is neither none nor all never reads as 0 % or 100 %."""
    if 0 < fraction < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < fraction < 1 else f"{100 * fraction:.0f} %"


def goal(target_tokens_per_s: float) -> str:
    """A target as a person would type it: '15', '2.5'."""
    return f"{target_tokens_per_s:g}"


def size(n_bytes: float) -> str:
    """Three significant digits in binary units, never four: '1.00 GiB' for 1023 MiB."""
    for unit, unit_bytes in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if 999.5 / 1024 <= n_bytes / unit_bytes < 1:
            return f"{n_bytes / unit_bytes:.2f} {unit}"
    return format_bytes(n_bytes)


def round_bytes(n_bytes: float) -> str:
    """A size as an axis or a sentence has it: '1 GiB', '1.5 GiB', '768 MiB'."""
    return _trimmed(size(n_bytes))


def round_rate(bytes_per_s: float) -> str:
    """A rate as an axis or a sentence has it: '2 GB/s', '419 MB/s'."""
    return _trimmed(format_rate(bytes_per_s))


def span(interval: Interval) -> str:
    """'9.10 to 13.8': the 80 % interval."""
    return f"{number(interval.low)} to {number(interval.high)}"


def question(result: Result, target_tokens_per_s: float | None = None) -> str:
    """The question as one sentence: model, device, RAM cap and the target where there is one."""
    model, device = scenario_names(result.small_print)
    cap = round_bytes(result.memory.ram_cap_bytes)
    aim = f", and does it reach {goal(target_tokens_per_s)} tokens/s" if target_tokens_per_s is not None else ""
    return f"How fast does {model} run on {device} with at most {cap} of RAM{aim}?"


def scenario_names(small_print: dict[str, str]) -> tuple[str, str]:
    """The model's and the device's names: what the small print has before the first semicolon."""
    model, device = (small_print.get(key, "").partition(";")[0].strip() for key in ("model", "device"))
    return model or "this model", device or "this device"


def headline(result: Result) -> str:
    """The answer without a target, in two or three words."""
    if result.verdict == "cannot_run":
        return "It cannot run"
    if result.beyond_device:
        return ELSEWHERE
    if is_bound(result):
        return "Upper bound"
    if result.verdict == "resident":
        return "It runs from RAM"
    return "It runs, streaming experts" if result.page_cache is None else "It runs, reading pages as they are missed"


def is_bound(result: Result) -> bool:
    """Whether its speed is a bound: experts are missed under a policy that is told the future."""
    return result.verdict == "streams" and result.cache is not None and result.cache.is_upper_bound


def bound_sentence(result: Result) -> str:
    """What bounds it, or why it cannot run."""
    if result.verdict == "cannot_run":
        return REASON.get(result.reason or "", "")
    bound = (BOUND | MAPPED_BOUND) if result.page_cache is not None else BOUND
    return bound.get(result.bound_by or "", "")


def token_s(result: Result) -> float:
    """Mean seconds of a decode token, the sum over its ops."""
    return sum(result.seconds_per_token.values())


def time_finding(result: Result) -> str:
    """The finding over the figure of a token's time."""
    total_s = token_s(result)
    wait_s = result.seconds_per_token.get("wait", 0.0)
    if wait_s > 0:
        what = "experts" if result.page_cache is None else "pages"
        return f"Waiting for {what} takes {percent(wait_s / total_s)} of the {format_seconds(total_s)} of a token"
    op, most_s = max(result.seconds_per_token.items(), key=lambda item: item[1])
    return (
        f"Nothing waits: {OP.get(op, op)} is the largest part, {percent(most_s / total_s)} of {format_seconds(total_s)}"
    )


def has_expert_cache(result: Result) -> bool:
    """Whether experts are cached one by one: not in a dense model, nor where the model file is mapped."""
    return result.cache is not None and result.page_cache is None


def reads_on_demand(result: Result) -> bool:
    """Whether no prefetch runs: the whole read is the bubble, and hidden_frac is what a prefetch would have hidden."""
    return result.prefetch_policy == "none"


def overlap_line(result: Result) -> str:
    """Where t_attention >= t_prefetch holds, and the mean bubble: short, for one line of a terminal."""
    check = overlap(result)
    if check.hidden_frac is None:
        return "always: no token missed an expert"
    bubble = f"mean bubble {format_seconds(check.bubble_s)} a layer, {format_seconds(check.bubble_s_per_token)} a token"
    if reads_on_demand(result):
        return f"not used, reads are on demand (a prefetch would hide {percent(check.hidden_frac)}); {bubble}"
    return f"{percent(check.hidden_frac)} of cases with a miss; {bubble}"


def overlap_finding(result: Result) -> str:
    """The check t_attention >= t_prefetch as a sentence, the finding over the figure of the layers."""
    check = overlap(result)
    if check.hidden_frac is None:
        return "No token missed an expert: there is nothing to hide and nothing waits"
    bubble = f"the mean bubble is {format_seconds(check.bubble_s)} a layer"
    if reads_on_demand(result):
        would = f"a prefetch beside attention would hide {percent(check.hidden_frac)} of the cases with a miss"
        return f"Reads are on demand, so nothing is hidden: {bubble}; {would}"
    if check.hidden_frac == 1:
        return "Attention hides every read: no layer waits"
    if check.hidden_frac == 0:
        return f"Attention hides none of the reads: {bubble}, {format_seconds(check.bubble_s_per_token)} a token"
    hidden = f"Attention hides the reads in {percent(check.hidden_frac)} of the cases with a miss"
    return f"{hidden}; {bubble}, {format_seconds(check.bubble_s_per_token)} a token"


def _trimmed(text: str) -> str:
    value, unit = text.split(" ")
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"
