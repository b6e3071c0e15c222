"""Hits and misses: accesses a second on one core, beside libcachesim, plain Python and reading the trace once."""

import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.made_up import SHAPES, capacities_of, first_rows, made_up_rows
from benchmarks.measure import medians
from benchmarks.peer import (
    ITS_OWN_HASH_POWER,
    PEER_POLICIES,
    PeerRate,
    fitted_hash_power,
    peer_rates,
    write_requests,
)
from benchmarks.report import Section
from moeplan.errors import InputError
from simulator.cache_passes.miss_counts import miss_counts
from simulator.cache_passes.rows import Rows
from simulator.cache_passes.stack_distances import sorted_distances

N_CAPACITIES = 20
MILLION = 1e6


def python_lru(rows: Rows, n_slots: int) -> int:
    """Misses of the ordered-dictionary LRU that everyone writes first, key by key."""
    cached: OrderedDict[int, None] = OrderedDict()
    n_misses = 0
    for key in rows.keys.tolist():
        if key in cached:
            cached.move_to_end(key)
        else:
            n_misses += 1
            cached[key] = None
            if len(cached) > n_slots:
                cached.popitem(last=False)
    return n_misses


def read_once(rows: Rows) -> np.uint64:
    """The floor: every byte of the keys read once, eight at a time."""
    words = rows.keys[: len(rows.keys) // 4 * 4].view(np.uint64)
    return np.add.reduce(words)


def lru_section(n_tokens: int, python_tokens: int, n_rounds: int) -> Section:
    """LRU at one capacity, at twenty and at all, for each shape; n_tokens of the 21B, others with as many accesses."""
    figures = {}
    for name, shape in SHAPES.items():
        n = max(2, n_tokens * SHAPES["21B"].accesses_per_token // shape.accesses_per_token)
        figures[name] = _lru_rates(made_up_rows(n, shape), python_tokens, n_rounds)
    table = [
        (work, *(f"{found[work] / MILLION:,.1f} ({found[work] / found[PLAIN]:,.1f} x)" for found in figures.values()))
        for work in figures["21B"]
    ]
    shapes = ", ".join(f"{name} {s.n_layers} x {s.n_experts}, top-{s.top_k}" for name, s in SHAPES.items())
    return Section(
        "LRU, M accesses/s (x plain Python)",
        ("pass", *SHAPES),
        table,
        f"One core. Layers x experts: {shapes}. Misses of every row for each capacity; one capacity is half the "
        "experts. Reading is the floor: every byte of the keys once, eight at a time.",
        figures,
    )


PLAIN = "plain Python, one capacity"


def _lru_rates(rows: Rows, python_tokens: int, n_rounds: int) -> dict[str, float]:
    """Accesses a second of each pass."""
    few, half, many = first_rows(rows, python_tokens), rows.n_keys // 2, capacities_of(rows, N_CAPACITIES)
    works: dict[str, Callable[[], object]] = {
        "reading the keys once": partial(read_once, rows),
        PLAIN: partial(python_lru, few, half),
        "one capacity": partial(miss_counts, rows, "lru", [half]),
        f"{N_CAPACITIES} capacities at once": partial(miss_counts, rows, "lru", many),
        "all capacities": partial(sorted_distances, rows),
        "all capacities, a cache a layer": partial(sorted_distances, rows, per_layer=True),
    }
    seconds = medians(_warm(works), n_rounds)
    n_accesses = dict.fromkeys(works, len(rows.keys)) | {PLAIN: len(few.keys)}
    return {work: n_accesses[work] / spent_s for work, spent_s in seconds.items()}


def policies_section(n_tokens: int, n_rounds: int, peer: Path | None) -> Section:
    """Every policy at half the experts beside libcachesim on the same trace, and at twenty capacities at once."""
    rows = made_up_rows(n_tokens, SHAPES["21B"])
    half, many, n = rows.n_keys // 2, capacities_of(rows, N_CAPACITIES), len(rows.keys)
    works: dict[str, Callable[[], object]] = {}
    for policy in PEER_POLICIES:
        works[policy] = partial(miss_counts, rows, policy, [half])
        works[f"{policy} many"] = partial(miss_counts, rows, policy, many)
    _warm(works)
    rounds, its_own, fitted = [], [], []
    missing = " libcachesim was not there: `make bench` installs it where it can." if peer is None else ""
    with tempfile.TemporaryDirectory() as place:
        if peer is not None:
            write_requests(rows, Path(place) / "requests")
        for _ in range(n_rounds):
            rounds.append(medians(works, 1))
            if peer is None:
                continue
            try:
                its_own.append(peer_rates(peer, Path(place) / "requests", rows, half, ITS_OWN_HASH_POWER))
                fitted.append(peer_rates(peer, Path(place) / "requests", rows, half, fitted_hash_power(rows)))
            except InputError as error:
                peer, missing = None, f" {error}; its figures are left out."
                print(missing.strip(), file=sys.stderr)
    table, figures = [], {}
    for policy in PEER_POLICIES:
        rate, at_once = (n / median(spent[work] for spent in rounds) for work in (policy, f"{policy} many"))
        misses = float(miss_counts(rows, policy, [half]).sum(dtype=np.int64)) / n
        figures[policy] = {"one": rate, "twenty at once": at_once, "miss_ratio": misses}
        row = [policy, f"{rate / MILLION:,.1f}", f"{at_once / MILLION:,.1f}", f"{misses:.4f}"]
        if peer is not None:
            of_peer = [_peer_rate(each, policy, n) for each in (its_own, fitted)]
            figures[policy] |= {"libcachesim": of_peer[0], "libcachesim, table fitted": of_peer[1]}
            row += [f"{of_peer[0] / MILLION:,.1f} ({rate / of_peer[0]:.1f} x)"]
            row += [f"{of_peer[1] / MILLION:,.1f} ({rate / of_peer[1]:.1f} x)"]
            row += [f"{at_once * N_CAPACITIES / of_peer[1]:,.0f} x", f"{fitted[0][policy].miss_ratio:.4f}"]
        table.append(tuple(row))
    head = ("policy", "M accesses/s, half", f"{N_CAPACITIES} at once", "miss ratio")
    of_peer_head = ("libcachesim", "its table fitted", f"{N_CAPACITIES} at once : one by one", "its miss ratio")
    return Section(
        "Policies, and libcachesim on the same trace",
        head if peer is None else head + of_peer_head,
        table,
        "21B shape, one core; half: half the experts fit. libcachesim has one miss ratio a replay, no misses by row; "
        "it takes the experts of a row one by one, hence ratios a little apart, and its LFU starts an expert's count "
        "anew when it comes back. `fitted`: its hash table made for just these keys, not for its default of 2^24."
        + missing,
        figures,
    )


def _peer_rate(rounds: list[dict[str, PeerRate]], policy: str, n_accesses: int) -> float:
    return n_accesses / median(each[policy].seconds for each in rounds)


def _warm(works: dict[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """The works after one call each, which compiles or reads what is compiled."""
    for work in works.values():
        work()
    return works
