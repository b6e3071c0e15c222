"""Figures of llama.cpp, predicted and measured: as rows, as JSON and as a page of Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

EXPLAINED = {
    "routing": """How often both engines choose the same experts on the same forced token ids: llama.cpp, which rounds
activations to Q8_0, and our runtime, whose routing predicts.""",
    "in RAM": """Decode with all weights in RAM.  Predicted from times of single ggml operations, measured in the same
rounds as the runs, so that both see the same state of the machine; no time of a run enters a prediction.""",
    "mapped": """The model file mapped under a memory limit, page cache cold at the start.  Predicted from a replay of
the page cache and from what page faults cost on another file, measured between the runs.""",
}


@dataclass(frozen=True)
class Row:
    """One figure, predicted and measured: the median of runs."""

    part: str
    case: str
    figure: str
    predicted: float
    measured: float
    runs: tuple[float, ...] = ()
    seconds_per_token: dict[str, float] | None = None

    @property
    def error_frac(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1 if self.measured else float("inf")

    @property
    def spread_frac(self) -> float | None:
        """Half of what lies between the fastest and the slowest run, of the median; None for one run."""
        return (max(self.runs) - min(self.runs)) / 2 / self.measured if len(self.runs) > 1 and self.measured else None


HEAD = "| case | figure | predicted | measured | error | runs | spread of runs |\n|---|---|---:|---:|---:|---:|---:|"


def as_line(row: Row) -> str:
    """A line of Markdown under HEAD."""
    spread = "" if row.spread_frac is None else f"± {row.spread_frac:.1%}"
    cells = (
        row.case, row.figure, f"{row.predicted:,.4g}", f"{row.measured:,.4g}", f"{row.error_frac:+.1%}",
        str(len(row.runs) or 1), spread,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def summary(rows: Sequence[Row]) -> list[str]:
    """Median, 90th percentile and worst absolute error of every figure of every part but routing."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.part != "routing":
            errors.setdefault((row.part, row.figure), []).append(abs(row.error_frac))
    return [
        f"- {part}, {figure}: median absolute error {median(of_one):.1%}, worst {max(of_one):.1%}, "
        f"within 10 % in {sum(error <= 0.1 for error in of_one)} of {len(of_one)}"
        for (part, figure), of_one in errors.items()
    ]


def as_markdown(rows: Sequence[Row], conditions: Mapping[str, str]) -> str:
    """A page: under which conditions, the errors in short, then every row."""
    lines = ["# llama.cpp, predicted and measured", "", *(f"- {name}: {text}" for name, text in conditions.items())]
    lines += ["", "Errors are predicted over measured, less one.", "", *summary(rows)]
    for part, explained in EXPLAINED.items():
        of_part = [row for row in rows if row.part == part]
        if of_part:
            lines += ["", f"## {part[0].upper()}{part[1:]}", "", explained, "", HEAD, *map(as_line, of_part)]
    return "\n".join(lines) + "\n"


def as_document(rows: Sequence[Row], conditions: Mapping[str, str]) -> dict:
    """The same for programs, with every run and the predicted seconds of every op."""
    return {"conditions": dict(conditions), "rows": [asdict(row) | {"error_frac": row.error_frac} for row in rows]}
