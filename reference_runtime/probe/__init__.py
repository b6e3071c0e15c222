"""
The probe: what this machine needs for the runtime's own kernels and reads, as figures of a hardware profile.

    plan.py       what is measured: sizes, shapes, seconds
    sampling.py   samples in rounds, medians, spreads
    memory.py     weights in memory that a product is timed on, larger than every cache
    products.py   matrix products, rows of experts and attention alone
    in_situ.py    whole forward passes, and what is left of an operation without its products
    storage.py    the file that is read, closed loops, bursts
    sharing.py    compute beside reads, and how late a sleeper wakes
    issue.py      asking for experts that have to be read
    machine.py    names, sizes and settings of the machine
    rows.py       from samples to the rows of the kernel table
    figures.py    from samples to the profile
    writer.py     the profile as YAML
    probe.py      all of it in order
"""
