"""
Cache decisions for many capacities in one pass over a trace, compiled; equal to simulator.policies by property tests.

    rows.py             a trace as a flat array of keys plus row offsets
    stack_distances.py  LRU: stack distances, and from them misses per row for any list of capacities, or for all
    lru_one.py          LRU at one capacity
    stack_policies.py   Belady, LFU and LFU with decay: one stack of buckets serves all capacities
    queue_policies.py   FIFO, CLOCK, SIEVE, S3-FIFO: one bit a capacity in every key's mask
    miss_counts.py      the front door: misses per row for a policy and a list of capacities

Everything here counts hits against the state before a row, as CachePolicy says: the experts of a row are one access.
"""
