"""`moeplan sweep` as a person calls it: cold processes, from the trace on disk to the table on disk."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.made_up import trace_file
from benchmarks.measure import Run, run_process
from benchmarks.report import Section
from moeplan.errors import InputError

ROOT = Path(__file__).parent.parent
MODEL, DEVICE = "smallthinker-21b-a3b", "rk3588"
MB = 1e6


@dataclass(frozen=True)
class Sweep:
    """A grid of n_caps x n_speeds scenarios for each policy on a trace of the 21B shape."""

    n_tokens: int
    n_caps: int
    n_speeds: int
    policies: tuple[str, ...] = ("lru",)

    @property
    def title(self) -> str:
        """What is swept, for a table."""
        return f"{self.n_tokens:,} tokens, {self.n_caps} x {self.n_speeds}, {' + '.join(self.policies)}"

    @property
    def n_scenarios(self) -> int:
        """Rows of the table."""
        return self.n_caps * self.n_speeds * len(self.policies)

    def run(self, traces: Path) -> Run:
        """One cold process. Raises InputError where the command refuses."""
        trace = trace_file(traces, self.n_tokens, "21B")
        place = Path(tempfile.mkdtemp(dir=traces))
        command = [
            *(sys.executable, "-m", "command_line.app", "sweep", "--model", MODEL, "--hardware", DEVICE),
            *("--trace", str(trace), "--ram-cap", f"2GiB..12GiB:{self.n_caps}", "--cache", ",".join(self.policies)),
            *("--storage-read", f"0.5GB/s..8GB/s:{self.n_speeds}", "--no-report", "--output", str(place / "sweep")),
        ]
        try:
            return run_process(command, ROOT)
        finally:
            shutil.rmtree(place)


def sweeps_section(sweeps: Sequence[tuple[Sweep, int]], traces: Path) -> Section:
    """Each sweep as often as it says: median seconds, most memory; a refused one is a row with the complaint."""
    table, found = [], {}
    for sweep, n_rounds in sweeps:
        print(f"  {sweep.title}", file=sys.stderr, flush=True)
        try:
            runs = [sweep.run(traces) for _ in range(n_rounds)]
        except InputError as error:
            table.append((sweep.title, f"{sweep.n_scenarios:,}", "refused", str(error), ""))
            continue
        times_s = sorted(run.wall_s for run in runs)
        found[sweep] = Run(median(times_s), max(run.peak_bytes or 0 for run in runs))
        spread, peak_mb = f"{times_s[0]:.2f} to {times_s[-1]:.2f}", (found[sweep].peak_bytes or 0) / MB
        table.append((sweep.title, f"{sweep.n_scenarios:,}", f"{median(times_s):.2f}", spread, f"{peak_mb:,.0f}"))
    return Section(
        "Whole sweeps",
        ("sweep", "scenarios", "s, median", "s, range", "peak MB"),
        table,
        "21B shape; cold processes with all cores, without the HTML report; seconds of the clock from start to exit, "
        "what is compiled already on disk. Memory: of the process and its children, shared pages counted once."
        + _ratios(found),
        {sweep.title: {"wall_s": run.wall_s, "peak_bytes": run.peak_bytes} for sweep, run in found.items()},
    )


def _ratios(found: dict[Sweep, Run]) -> str:
    """How much more a longer trace costs than the shortest one of the same grid, in sentences."""
    said = ""
    for sweep, run in found.items():
        same = [other for other in found if replace(other, n_tokens=0) == replace(sweep, n_tokens=0)]
        short = min(same, key=lambda other: other.n_tokens)
        if sweep != short:
            longer, slower = sweep.n_tokens / short.n_tokens, run.wall_s / found[short].wall_s
            heavier = (run.peak_bytes or 0) / (found[short].peak_bytes or 1)
            said += f" {longer:g} x the tokens: {slower:.1f} x the time, {heavier:.1f} x the memory."
    return said
