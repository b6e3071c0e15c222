"""The inputs of a sweep's rows: their names and values in words, which of them vary, and what follows from the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moeplan.quantity import format_seconds
from reports.wording import round_bytes, round_rate
from simulator.result import SweepRow

LISTED = 4  # values that are listed; of more the ends or the first ones are named


@dataclass(frozen=True)
class Input:
    """An input of a SweepRow: its field, its name for one and for several, its values in words, whether they rise."""

    field: str
    name: str
    plural: str
    text: Callable[[Any], str] = str
    is_number: bool = False

    def of(self, row: SweepRow) -> Any:
        """The row's value; None where the trace's own context counts."""
        return getattr(row, self.field)

    def said(self, row: SweepRow) -> str:
        """'RAM cap 1 GiB'; a policy that is told the future is called a bound."""
        return f"{self.name} {self.value_text(row)}"

    def value_text(self, row: SweepRow) -> str:
        """'1 GiB', 'belady (bound)'."""
        is_bound = self is CACHE_POLICY and row.is_upper_bound
        return f"{self.text(self.of(row))}{' (bound)' if is_bound else ''}"


def _count(value: int | None) -> str:
    return "own" if value is None else f"{value:,}"


def _flops(flop_per_s: float) -> str:
    return f"{flop_per_s / 1e9:.3g} GFLOP/s"


MODEL, DEVICE = Input("model", "model", "models"), Input("device", "device", "devices")
CACHE_POLICY = Input("cache_policy", "cache policy", "cache policies")
RAM_CAP = Input("ram_cap_bytes", "RAM cap", "RAM caps", round_bytes, is_number=True)
STORAGE_READ = Input("storage_read_bytes_per_s", "storage read", "storage speeds", round_rate, is_number=True)
# One that follows from those before it (the device's own RAM cap from the device) does not vary by itself.
INPUTS = (
    MODEL,
    DEVICE,
    Input("trace", "trace", "traces"),
    Input("quantisation", "quantisation", "quantisations"),
    Input("top_k", "top-k", "values of top-k", str, is_number=True),
    Input("layout", "expert layout", "expert layouts"),
    Input("context", "context", "contexts", _count, is_number=True),
    CACHE_POLICY,
    Input("prefetch_policy", "prefetch", "prefetch policies"),
    Input("n_threads", "threads", "thread counts", str, is_number=True),
    Input("ram_bytes_per_s", "RAM bandwidth", "RAM bandwidths", round_rate, is_number=True),
    Input("gemv_flop_per_s", "compute", "compute rates", _flops, is_number=True),
    Input("storage_latency_s", "storage latency", "storage latencies", format_seconds, is_number=True),
    RAM_CAP,
    STORAGE_READ,
)


def varied(rows: Sequence[SweepRow]) -> tuple[Input, ...]:
    """The inputs that vary, in the order of INPUTS; one that follows from those before it is left out."""
    found: tuple[Input, ...] = ()
    keys: list[tuple[Any, ...]] = [() for _ in rows]
    n_told = 1
    for each in INPUTS:
        longer = [(*key, each.of(row)) for key, row in zip(keys, rows, strict=True)]
        if (n_values := len(set(longer))) > n_told:
            found, keys, n_told = (*found, each), longer, n_values
    return found


def key_of(row: SweepRow, inputs: Sequence[Input]) -> tuple[Any, ...]:
    """The row's values of these inputs."""
    return tuple(each.of(row) for each in inputs)


def matched(rows: Sequence[SweepRow], inputs: Sequence[Input], but: Input) -> list[list[SweepRow]]:
    """Rows that agree in all these inputs but one, group by group."""
    others = [each for each in inputs if each is not but]
    groups: dict[tuple[Any, ...], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault(key_of(row, others), []).append(row)
    return list(groups.values())


def values(rows: Sequence[SweepRow], of: Input) -> list[Any]:
    """The different values of an input: ascending (own first) where they are numbers, else as they first appear."""
    found = list(dict.fromkeys(of.of(row) for row in rows))
    return sorted(found, key=lambda value: (value is not None, value or 0)) if of.is_number else found


def listed(rows: Sequence[SweepRow], of: Input, joined_by: str = "and") -> str:
    """The values that rows have of an input: '512 MiB and 1 GiB', '512 MiB to 8 GiB', 'lru, fifo, sieve and 5 more'."""
    by_value = {of.of(row): of.value_text(row) for row in rows}
    texts = [by_value[value] for value in values(rows, of)]
    if len(texts) > LISTED:
        if of.is_number:
            return f"{texts[0]} to {texts[-1]}"
        return f"{', '.join(texts[: LISTED - 1])} and {len(texts) - LISTED + 1} more"
    return f" {joined_by} ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def said_all(row: SweepRow, inputs: Sequence[Input]) -> str:
    """'RAM cap 1 GiB, storage read 2 GB/s'."""
    return ", ".join(each.said(row) for each in inputs)


def scope(some: Sequence[SweepRow], among: Sequence[SweepRow], inputs: Sequence[Input]) -> str:
    """
    Which rows these are among others, by the inputs that vary: 'RAM cap 512 MiB or 1 GiB'; '' for all of them.

    'some with ...' where other rows have these values too; an input that a row was never given tells nothing.
    """
    if len(some) == len(among):
        return ""
    given = {each: [row for row in among if each.of(row) not in ("", 0)] for each in inputs}
    inputs = [each for each in inputs if not any(each.of(row) in ("", 0) for row in some)]
    telling = [each for each in inputs if len(values(some, each)) < len(values(given[each], each))]
    if not telling:
        return ""
    n_picked = _n_picked(some, among, telling)
    for each in telling[::-1]:  # one that the others already tell is left out
        fewer = [other for other in telling if other is not each]
        if fewer and _n_picked(some, among, fewer) == n_picked:
            telling = fewer
    words = ", ".join(f"{each.name} {listed(some, each, 'or')}" for each in telling)
    return words if n_picked == len(some) else f"some with {words}"


def _n_picked(some: Sequence[SweepRow], among: Sequence[SweepRow], inputs: Sequence[Input]) -> int:
    """How many rows have values of these inputs that some rows have."""
    picked = [(each, set(values(some, each))) for each in inputs]
    return sum(all(each.of(row) in found for each, found in picked) for row in among)
