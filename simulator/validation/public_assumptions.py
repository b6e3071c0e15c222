"""
Facts that a published row does not state, what is assumed instead, and how wide.

A half-width u widens figures of the profile: the assumed factor is log-normal, with an 80 % chance between 1 / (1 + u)
and 1 + u, independent of the figure's own uncertainty, so the squares of the logarithms add.  They are drawn in the
same Monte Carlo as the profile's figures.  Assumed contexts and routings are strata of it (see public_questions.py).
"""

import math
from dataclasses import dataclass

from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError, nearest
from simulator.validation.public_rows import PublicRow

FEW_THREADS = 2  # so many may not fill the memory bus


@dataclass(frozen=True)
class Assumption:
    """A fact that the row lacks; widens: profile figures (dotted keys) and the half-width of the factor on each."""

    fact: str
    text: str
    widens: tuple[tuple[str, float], ...] = ()


GEMV, GEMM, OVERHEAD, RAM = "cpu.gemv_flop_per_s", "cpu.gemm_flop_per_s", "cpu.op_overhead", "ram.gemv_bandwidth"
SEQUENTIAL, SMALL = "storage.sequential_read", "storage.random_4k_read"

# The facts that a row's `assumed` cell may name.
NAMED: dict[str, Assumption] = {
    item.fact: item
    for item in (
        Assumption("ram", "memory of the profile: speed and modules are not stated (the profile's own uncertainty)"),
        Assumption("quantisation", "mix by the file's size or the engine's default", ((GEMV, 0.15), (RAM, 0.15))),
        Assumption("model", "the spec stands for what the source names", ((RAM, 0.1), (OVERHEAD, 1.0))),
        Assumption("device", "a like device", ((GEMV, 1.0), (OVERHEAD, 1.0), (RAM, 0.5), (SEQUENTIAL, 0.5))),
        Assumption("overlap", "reads beside experts that are there count in full", ((SEQUENTIAL, 0.5),)),
    )
}

THREADS = Assumption("threads", "as many as the profile's", ((GEMV, 0.5), (GEMM, 0.5), (RAM, 0.15)))
BUS = Assumption("bandwidth of few threads", "as much as all threads reach", ((RAM, 0.3),))
STORAGE = Assumption("storage", "of the profile", ((SEQUENTIAL, 1.0), (SMALL, 1.0)))
CONTEXT = Assumption("context", "decode begins at 128 keys; drawn from 16 to 1024, even in the logarithm")
ROUTING = Assumption("routing", "a fifth of the experts used by 0.5 of the tokens each (0.4 to 0.6, arXiv:2507.20984)")
# Skipping rows of up and down saves less than their bytes: rows are short and scattered, and no prefetcher follows.
# The nntrainer port (https://github.com/nntrainer/nntrainer) gained 2 % on the 4B, lost 6 % or gained 8 % on the 21B.
SKIPPING = Assumption("row skipping", "skipping rows saves half of their bytes, drawn from none to all")


def assumptions_of(row: PublicRow, is_sparse: bool) -> tuple[Assumption, ...]:
    """
    Everything that is assumed for a row, in a fixed order. is_sparse: its model has gates that are zero.

    Raises InputError for a fact that is not known by name.
    """
    found = [_named(fact, row) for fact in row.assumed]
    streams = row.row_class == "streaming"
    found += [CONTEXT] * (row.context is None)
    found += [THREADS] * (row.threads is None) + [BUS] * (row.threads is not None and row.threads <= FEW_THREADS)
    found += [SKIPPING] * is_sparse
    found += [STORAGE] * (streams and row.lanes is None) + [ROUTING] * (streams and row.hit_rate is None)
    return tuple(found)


def _named(fact: str, row: PublicRow) -> Assumption:
    if fact not in NAMED:
        raise InputError(f"{row.id}: assumed", "must be a known fact", repr(fact), nearest(fact, NAMED))
    return NAMED[fact]


def widened(profile: HardwareProfile, assumptions: tuple[Assumption, ...]) -> HardwareProfile:
    """The profile with the assumptions' half-widths added to its figures' own uncertainties."""
    for assumption in assumptions:
        for key, half_width in assumption.widens:
            part_name, name = key.split(".")
            part = getattr(profile, part_name)
            figure = getattr(part, name)
            sum_log = math.hypot(math.log1p(figure.uncertainty), math.log1p(half_width))
            wider = figure.model_copy(update={"uncertainty": math.expm1(sum_log)})
            profile = profile.model_copy(update={part_name: part.model_copy(update={name: wider})})
    return profile


def at_threads(profile: HardwareProfile, threads: int | None) -> HardwareProfile:
    """
    The profile on fewer threads than its own: compute goes with the threads, the memory bus and overheads stay.

    More threads than the profile's change nothing: what the further cores would add is not known.
    """
    if threads is None or threads >= profile.cpu.threads:
        return profile
    share, cpu = threads / profile.cpu.threads, profile.cpu
    rates = {
        name: getattr(cpu, name).model_copy(update={"value": getattr(cpu, name).value * share})
        for name in ("peak_flop_per_s", "gemm_flop_per_s", "gemv_flop_per_s")
    }
    return profile.model_copy(update={"cpu": cpu.model_copy(update={**rates, "threads": threads})})


def at_lanes(profile: HardwareProfile, lanes: int | None) -> HardwareProfile:
    """The profile with so many reads in flight at most; rows of its table beyond that are left out of the fit."""
    storage = profile.storage
    if lanes is None or lanes >= storage.queue_depth:
        return profile
    table = storage.table
    if table is not None:
        rows = tuple(row for row in table.rows if row.queue_depth <= lanes)
        table = table.model_copy(update={"rows": rows})
    return profile.model_copy(update={"storage": storage.model_copy(update={"queue_depth": lanes, "table": table})})
