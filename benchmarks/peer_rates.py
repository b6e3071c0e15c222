"""
The rates of libcachesim (C++): run by the Python of an environment that has it, with nothing of this project.

    python peer_rates.py TRACE N_ACCESSES SLOTS HASH_POWER NAME...

TRACE is in its fastest format, oracleGeneral.  Prints a JSON line: name -> {"s": CPU seconds, "miss_ratio": ...}.
"""

import json
import sys
from time import thread_time

import libcachesim

POLICIES = {
    "lru": libcachesim.LRU,
    "fifo": libcachesim.FIFO,
    "clock": libcachesim.Clock,
    "s3-fifo": libcachesim.S3FIFO,
    "sieve": libcachesim.Sieve,
    "lfu": libcachesim.LFU,
    "belady": libcachesim.Belady,
}


def main(trace: str, n_accesses: str, slots: str, hash_power: str, *names: str) -> None:
    """One replay a policy; every object has size 1, so the cache's size is its slots."""
    found = {}
    for name in names:
        reader = libcachesim.TraceReader(trace, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        cache = POLICIES[name](int(slots), hashpower=int(hash_power))
        start = thread_time()
        miss_ratio, _ = cache.process_trace(reader, max_req=int(n_accesses))
        found[name] = {"s": thread_time() - start, "miss_ratio": miss_ratio}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
