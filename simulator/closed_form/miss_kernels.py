"""
The compiled loops of a sweep: misses counted into histograms, and the sums of totals.py over these.

They are called seldom, for many scenarios at once, and hold no lock: threads that went back and forth between short
calls would wait for one another at each.  All stand in one file, as simulator/cache_passes/compiled.py asks.
"""

from simulator.cache_passes.compiled import lean

STEP, WAIT = range(2)  # of sums in seconds: what is added to a step beside its waits, and the waits
ISSUE, DELAY, WAKE, READ = range(4)  # rows of a table of what 0, 1, ... misses cost, seconds
BLOCK = 32  # contexts between two sums that are kept: all of them would not stay in a core's cache


@lean
def count_misses(n_misses, n_layers, kind_of, context_of, out):  # type: ignore[no-untyped-def]
    """
    Add one to out[context, capacity, kind, misses] for every counted step, layer and capacity.

    n_misses (n_steps * n_layers, n_capacities); kind_of int64 (n_layers,);
    context_of int64 (n_steps,), below 0 where a step is not counted; out uint32.
    """
    for step in range(len(context_of)):
        context = context_of[step]
        if context < 0:
            continue
        for layer in range(n_layers):
            row, kind = step * n_layers + layer, kind_of[layer]
            for capacity in range(n_misses.shape[1]):
                out[context, capacity, kind, n_misses[row, capacity]] += 1


@lean
def sum_before(counts, order, attention_s, n_below, below_s):  # type: ignore[no-untyped-def]
    """
    Row i of n_below int64 and below_s float64 (n_sums(n_contexts), width): pairs, and their attention, of the i * BLOCK
    contexts with the least attention; the last row: of all.

    counts int64 (n_contexts, width); order int64, attention_s float64 (n_contexts,): contexts in ascending attention.
    """
    for misses in range(counts.shape[1]):
        n_below[0, misses], below_s[0, misses] = 0, 0.0
    row = 0
    for place in range(len(order)):
        if place % BLOCK == 0:
            row += 1
            for misses in range(counts.shape[1]):
                n_below[row, misses], below_s[row, misses] = n_below[row - 1, misses], below_s[row - 1, misses]
        for misses in range(counts.shape[1]):
            n = counts[order[place], misses]
            n_below[row, misses] += n
            below_s[row, misses] += n * attention_s[place]


def n_sums(n_contexts: int) -> int:
    """Rows of sum_before."""
    return -(-n_contexts // BLOCK) + 1


@lean
def add_waits(  # type: ignore[no-untyped-def]
    counts, order, attention_s, n_below, below_s, v, w, prefetched, table, seconds
):
    """
    Add the sums of one layer kind to seconds (STEP and WAIT); returns its hidden pairs.  Equations: see totals.py.

    counts, order, attention_s, n_below, below_s: as sum_before has them; v, w: speeds of compute and of reads
    while both run; table float64 (4, width): see ISSUE.
    """
    n_hidden, n_contexts, last = 0, len(attention_s), len(n_below) - 1
    for misses in range(1, n_below.shape[1]):
        n_all, read_s = n_below[last, misses], table[READ, misses]
        issue_s = table[ISSUE, misses] if prefetched else 0.0
        bound_s = read_s
        if prefetched:
            read_s += table[DELAY, misses]
            bound_s = read_s * v / w - issue_s
        first, end = 0, n_contexts  # the first context whose attention is at least the bound
        while first < end:
            middle = (first + end) // 2
            if attention_s[middle] < bound_s:
                first = middle + 1
            else:
                end = middle
        row = first // BLOCK
        n, sum_s = n_below[row, misses], below_s[row, misses]
        for place in range(row * BLOCK, first):
            n_here = counts[order[place], misses]
            n += n_here
            sum_s += n_here * attention_s[place]
        n_hidden += n_all - n
        if prefetched:
            sum_s += n * issue_s
            seconds[WAIT] += read_s * n - w / v * sum_s
            seconds[STEP] += (1 - v) * (sum_s / v + read_s * (n_all - n) / w)
            seconds[STEP] += issue_s * n_all + table[WAKE, misses] * n
        else:
            seconds[WAIT] += read_s * n_all
            seconds[STEP] += table[WAKE, misses] * n_all
    return n_hidden


@lean
def add_all_waits(  # type: ignore[no-untyped-def]
    counts, orders, attention_s, attention_of, speeds, prefetched, tables, n_below, below_s, seconds, n_hidden
):  # fmt: skip
    """
    add_waits for all capacities, variants of a device and storages.

    counts int64 (n_capacities, n_kinds, n_contexts, width); orders int64, attention_s float64 (n_attentions, n_kinds,
    n_contexts); attention_of int64 (n_variants,): the attention of each; speeds (n_variants, n_storages, 2): v and w;
    prefetched bool (n_storages,); tables (n_variants, n_storages, 4, width); n_below, below_s: room for sum_before;
    seconds float64 (n_capacities, n_variants, n_storages, 2), n_hidden int64 without the last axis: begin at 0
    """
    for capacity in range(counts.shape[0]):
        for variant in range(len(attention_of)):
            which = attention_of[variant]
            for kind in range(counts.shape[1]):
                ascending_s = attention_s[which, kind]
                sum_before(counts[capacity, kind], orders[which, kind], ascending_s, n_below, below_s)
                for storage in range(len(prefetched)):
                    v, w = speeds[variant, storage, 0], speeds[variant, storage, 1]
                    n_hidden[capacity, variant, storage] += add_waits(
                        counts[capacity, kind], orders[which, kind], ascending_s, n_below, below_s, v, w,
                        prefetched[storage], tables[variant, storage], seconds[capacity, variant, storage],
                    )  # fmt: skip
