"""Storage speeds worth asking for: a grid of 1 % steps with three digits, so that what is printed is what was tried."""

from functools import cache

STEP = 1.01
SLOWEST_BYTES_PER_S = 1e6  # an SD card at its worst
FASTEST_BYTES_PER_S = 1e11  # beyond any drive; a device's grid ends at its RAM bandwidth


@cache
def rate_grid(most_bytes_per_s: float = FASTEST_BYTES_PER_S) -> tuple[float, ...]:
    """Ascending rates in bytes per second up to the most, at least one."""
    rates, rate = [], SLOWEST_BYTES_PER_S
    while rate <= min(most_bytes_per_s, FASTEST_BYTES_PER_S):
        rates.append(float(f"{rate:.3g}"))
        rate *= STEP
    return tuple(dict.fromkeys(rates)) or (SLOWEST_BYTES_PER_S,)
