"""A RAM cap in the unit in which it was asked for."""

UNITS = (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("kB", 10**3))


def cap_text(n_bytes: int) -> str:
    """In the unit that needs the fewest digits for so many bytes, of two such the larger: '1.9 GB', '24 MiB'."""
    texts = [f"{n_bytes / size:.9g} {unit}" for unit, size in UNITS if n_bytes >= size]
    return min(texts or [f"{n_bytes} B"], key=len)
