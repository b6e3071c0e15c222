"""
How fast the project is: `make bench`, outside CI.  Ratios within one run; never an absolute claim.

    __main__.py            the command: which sections, how large, where the report goes
    measure.py             medians of works that take turns; wall time and memory of a process tree; exponents of growth
    made_up.py             traces of the shapes that count, of any length
    cache_passes.py        hits and misses: accesses/s beside libcachesim, plain Python and reading the trace once
    peer.py, peer_rates.py libcachesim on the same trace; the second runs in libcachesim's own environment
    times.py               from misses to seconds: the closed form, the fast engine, the SimPy engine
    sweeps.py              `moeplan sweep` as cold processes: seconds and peak memory
    growth.py              the same work, larger and larger
    report.py              tables as text and Markdown, the picture
"""
