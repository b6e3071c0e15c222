"""
How fast the cache passes are: accesses/s on one core, beside plain Python and beside reading the trace once.

    python -m simulator.cache_passes.bench [--tokens N] [--repeats N] [--policies a,b] [--python-tokens N]

The traces are made up: Zipf-popular experts, a part of which repeats from token to token.  Each figure is the median of
the repeats, in time of this thread's CPU, so that other work on the machine disturbs it less.  The first calls compile.
"""

import argparse
from collections import OrderedDict
from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time

import numpy as np

from simulator.cache_passes.compiled import compiled
from simulator.cache_passes.miss_counts import PASSES, miss_counts
from simulator.cache_passes.rows import Rows
from simulator.cache_passes.stack_distances import sorted_distances

SHAPES = {"4B": (32, 32, 4), "21B": (52, 64, 6), "DeepSeek-V3": (58, 256, 8)}  # MoE layers, experts, top-k
N_CAPACITIES = 20
ZIPF, REPEAT_FRAC = 1.0, 0.3  # of the made-up routing: near to what recorded traces show at half the experts
DEFAULT_TOKENS, DEFAULT_REPEATS, PYTHON_TOKENS = 4_000, 3, 200


@compiled
def _synthesize(n_tokens, n_layers, n_experts, top_k, cumulative, order, repeat_frac, seed, out):  # type: ignore[no-untyped-def]
    """Keys of rows into out uint16 (n_tokens, n_layers, top_k)."""
    np.random.seed(seed)
    for token in range(n_tokens):
        for layer in range(n_layers):
            n = 0
            if token > 0:
                for slot in range(top_k):
                    if np.random.random() < repeat_frac:
                        out[token, layer, n] = out[token - 1, layer, slot]
                        n += 1
            while n < top_k:
                rank = min(np.searchsorted(cumulative, np.random.random()), n_experts - 1)
                key, is_new = layer * n_experts + order[layer, rank], True
                for slot in range(n):
                    is_new &= out[token, layer, slot] != key
                if is_new:
                    out[token, layer, n] = key
                    n += 1


def made_up_rows(n_tokens: int, n_layers: int, n_experts: int, top_k: int, seed: int = 0) -> Rows:
    """Decode rows of a made-up trace."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, n_experts + 1) ** -ZIPF
    order = np.stack([rng.permutation(n_experts) for _ in range(n_layers)])
    out = np.empty((n_tokens, n_layers, top_k), np.uint16)
    cumulative = np.cumsum(weights / weights.sum())
    _synthesize(n_tokens, n_layers, n_experts, top_k, cumulative, order, REPEAT_FRAC, seed, out)
    offsets = np.arange(0, out.size + 1, top_k).astype(np.uint32)
    return Rows(out.reshape(-1), offsets, n_layers, n_experts)


def capacities_of(rows: Rows) -> list[int]:
    """Twenty capacities from one lap of the model to nearly all experts."""
    lap = int(rows.offsets[rows.n_layers])
    return np.linspace(1.06 * lap, 0.95 * rows.n_keys, N_CAPACITIES).astype(int).tolist()


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


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of this thread."""
    times = []
    for _ in range(repeats):
        start = thread_time()
        work()
        times.append(thread_time() - start)
    return median(times)


def first_rows(rows: Rows, n_tokens: int) -> Rows:
    """The rows of the first tokens."""
    n_rows = min(rows.n_rows, n_tokens * rows.n_layers)
    return Rows(rows.keys[: rows.offsets[n_rows]], rows.offsets[: n_rows + 1], rows.n_layers, rows.n_experts)


def measure(name: str, rows: Rows, policies: list[str], repeats: int, python_tokens: int) -> None:
    """Print the figures of one shape."""
    n, half, capacities = len(rows.keys), [rows.n_keys // 2], capacities_of(rows)
    few = first_rows(rows, python_tokens)
    plain = len(few.keys) / median_s(lambda: python_lru(few, half[0]), repeats)
    words = rows.keys[: n // 4 * 4].view(np.uint64)
    floor = n / median_s(lambda: words.sum(), max(repeats, 5))
    print(f"{name}: {rows.n_layers} layers x {rows.n_experts} experts, {n:,} accesses")
    print(f"  {'pass':<34}{'M accesses/s':>13}{'x plain Python':>16}{'of reading once':>17}{'miss ratio':>12}")
    print(f"  {'reading the keys once':<34}{floor / 1e6:13.0f}")
    print(f"  {'LRU in plain Python, half':<34}{plain / 1e6:13.1f}")
    works: list[tuple[str, Callable[[Rows], np.ndarray]]] = []
    if "lru" in policies:
        works.append(("lru, all capacities", sorted_distances))
    for policy in policies:
        for label, slots in ((f"{policy}, {N_CAPACITIES} capacities", capacities), (f"{policy}, half", half)):
            works.append((label, lambda rows, policy=policy, slots=slots: miss_counts(rows, policy, slots)))  # type: ignore[misc]
    for label, work in works:
        work(first_rows(rows, 2))  # compiles, or reads what is compiled
        result = work(rows)
        rate = n / median_s(lambda work=work: work(rows), repeats)  # type: ignore[misc]
        ratio = "" if "all" in label else f"{result.mean(dtype=float) * rows.n_rows / n:12.3f}"
        print(f"  {label:<34}{rate / 1e6:13.1f}{rate / plain:16.1f}{rate / floor:17.1%}{ratio}", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m simulator.cache_passes.bench", description=__doc__.split("\n")[1])
    parser.add_argument("--tokens", type=int, default=DEFAULT_TOKENS, help="tokens of the 21B shape; others as large")
    parser.add_argument("--repeats", type=int, default=DEFAULT_REPEATS)
    parser.add_argument("--python-tokens", type=int, default=PYTHON_TOKENS, help="tokens that plain Python replays")
    parser.add_argument("--policies", default=",".join(PASSES))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    options = parser.parse_args()
    start = perf_counter()
    for name in options.shapes.split(","):
        n_layers, n_experts, top_k = SHAPES[name]
        n_tokens = max(1, options.tokens * 52 * 6 // (n_layers * top_k))
        rows = made_up_rows(n_tokens, n_layers, n_experts, top_k)
        measure(name, rows, options.policies.split(","), options.repeats, options.python_tokens)
    print(f"in all {perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
