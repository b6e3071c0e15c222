"""
The command behind `make bench`: progress on standard error, tables on standard output, a report on disk.

    python -m benchmarks [--quick] [--output DIR] [--libcachesim PYTHON] [--only SECTION ...]
"""

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from benchmarks.cache_passes import lru_section, policies_section
from benchmarks.growth import growth_section, pass_curves, sweep_curves
from benchmarks.peer import has_libcachesim
from benchmarks.report import Curve, Section, as_markdown, write_report
from benchmarks.sweeps import ROOT, Sweep, sweeps_section
from benchmarks.times import times_section
from reference_runtime.conditions import machine_conditions

SECTIONS = ("lru", "policies", "times", "sweeps", "growth")
LIBRARIES = ("numba", "numpy", "pyarrow", "simpy")
THREE_POLICIES = ("lru", "belady", "s3-fifo")


class Sizes:
    """How much of everything; quick: enough to see that it works, not to be quoted."""

    def __init__(self, quick: bool) -> None:
        self.n_rounds = 1 if quick else 5
        self.pass_tokens, self.python_tokens = (60, 20) if quick else (20_000, 1_000)
        self.growth_tokens = 20 if quick else 2_000
        self.times_tokens, self.simpy_tokens = (500, 4) if quick else (100_000, 300)
        many = (Sweep(100_000, 20, 20), 5), (Sweep(100_000, 20, 20, THREE_POLICIES), 3), (Sweep(1_000_000, 20, 20), 1)
        self.sweeps = ((Sweep(30, 2, 2), 1),) if quick else many
        self.growing_sweep = Sweep(0, 10, 10)
        self.sweep_tokens = () if quick else (10_000, 30_000, 100_000, 300_000, 1_000_000)


def run(chosen: list[str], sizes: Sizes, traces: Path, peer: Path | None) -> tuple[list[Section], list[Curve]]:
    """The chosen sections in order; each is printed when it is there."""
    curves: list[Curve] = []

    def growth() -> Section:
        curves.extend(pass_curves(sizes.growth_tokens, sizes.n_rounds))
        if sizes.sweep_tokens:
            curves.extend(sweep_curves(sizes.growing_sweep, sizes.sweep_tokens, traces))
        return growth_section(curves)

    works = {
        "lru": lambda: lru_section(sizes.pass_tokens, sizes.python_tokens, sizes.n_rounds),
        "policies": lambda: policies_section(sizes.pass_tokens, sizes.n_rounds, peer),
        "times": lambda: times_section(sizes.times_tokens, sizes.simpy_tokens, sizes.n_rounds),
        "sweeps": lambda: sweeps_section(sizes.sweeps, traces),
        "growth": growth,
    }
    sections = []
    for place, name in enumerate(chosen, 1):
        start = perf_counter()
        print(f"{place} of {len(chosen)}: {name}", file=sys.stderr, flush=True)
        sections.append(works[name]())
        print(f"  took {perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        print(as_markdown(sections[-1]), flush=True)
    return sections, curves


def about() -> dict[str, str]:
    """Command line, machine, date: without them no figure below means anything."""
    machine = machine_conditions()
    load = f"{os.getloadavg()[0]:.2f} of {machine['cores']} cores before it began" if hasattr(os, "getloadavg") else ""
    return {
        "command": "python -m benchmarks " + shlex.join(sys.argv[1:]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {int(machine['ram_bytes']) / 2**30:.0f} GiB RAM",
        "system": f"{machine['system']}, Python {machine['python']}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
        "load": load,
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: to see that it works")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: reports/bench; output/bench with --quick")
    parser.add_argument("--traces", type=Path, default=ROOT / "output" / "bench", help="folder of made-up traces")
    parser.add_argument("--libcachesim", type=Path, metavar="PYTHON", help="a Python that has libcachesim")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections; default: all")
    options = parser.parse_args()
    output = options.output or ROOT / ("output" if options.quick else "reports") / "bench"
    start, facts = perf_counter(), about()
    peer = options.libcachesim if "policies" in options.only and has_libcachesim(options.libcachesim) else None
    sections, curves = run(options.only, Sizes(options.quick), options.traces, peer)
    facts["took"] = f"{perf_counter() - start:.0f} s"
    print(f"report: {write_report(output, sections, curves, facts)}")


if __name__ == "__main__":
    main()
