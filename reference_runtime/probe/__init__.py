"""
The probe: what this machine needs for the runtime's own kernels and reads, as figures of a hardware profile.

    plan.py         what is measured: sizes, shapes, seconds
    sampling.py     samples in rounds, means, spreads
    worker.py       a process that measures, one for each number of threads
    bench.py        what such a process holds and measures
    memory.py       weights in memory that a product is timed on, larger than every cache
    products.py     matrix products, rows of experts and attention alone
    in_situ.py      whole forward passes, and what is left of an operation without its products
    with_reads.py   forward passes that miss a known number of experts
    storage.py      the file that is read, closed loops
    bursts.py       some reads at once after a rest, as a row of experts is read
    sharing.py      compute beside reads, and how late a sleeper wakes
    spot_checks.py  short measurements that tell the machine's state, now and later
    machine.py      names, sizes and settings of the machine
    rows.py         from samples to the rows of the kernel table
    figures.py      from samples to the profile
    writer.py       the profile as YAML
    probe.py        all of it in order
"""
