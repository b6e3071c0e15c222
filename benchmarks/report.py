"""Sections as Markdown, on the terminal and in a file, and the picture of the growth."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeplan.files import atomic_path


@dataclass(frozen=True)
class Section:
    """A table: title, head, rows of text, a note below; figures: the same as numbers in SI units, for latest.json."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """Costs over sizes of one work: what is on the axes (with unit), and the exponent between the largest sizes."""

    title: str
    size: str
    cost: str
    sizes: Sequence[float]
    costs: Sequence[float]
    exponent: float


def as_markdown(section: Section) -> str:
    """The section with its columns aligned, so that it reads well as it is."""
    widths = [max(len(row[i]) for row in (section.head, *section.rows)) for i in range(len(section.head))]
    lines = [_line(section.head, widths), "|" + "|".join(f"{'-' * (width + 1)}:" for width in widths) + "|"]
    lines[1] = "|" + "-" * (widths[0] + 2) + lines[1][widths[0] + 3 :]
    lines += [_line(row, widths) for row in section.rows]
    return f"## {section.title}\n\n" + "\n".join(lines) + f"\n\n{section.note}\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = cells
    padded = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
    return "| " + " | ".join(padded) + " |"


def write_report(folder: Path, sections: Sequence[Section], curves: Sequence[Curve], about: dict[str, str]) -> Path:
    """latest.md, latest.json and latest.png; the Markdown file's path. about: command line, machine, date."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = "\n".join(f"- {name}: {value}" for name, value in about.items())
    picture = "\n![growth](latest.png)\n" if curves else ""
    text = f"# Benchmarks\n\n{facts}\n\n" + "\n".join(map(as_markdown, sections)) + picture
    numbers = {"about": about} | {section.title: section.figures for section in sections}
    for name, content in (("latest.md", text), ("latest.json", json.dumps(numbers, indent=1) + "\n")):
        with atomic_path(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    if curves:
        draw(curves, folder / "latest.png")
    return folder / "latest.md"


def draw(curves: Sequence[Curve], path: Path) -> None:
    """One panel a curve, both axes logarithmic; the dotted line through the last point is linear growth."""
    from matplotlib.figure import Figure

    from reports.figure_style import BLUE, GREY, WIDTH_IN, figure_style

    n_rows = -(-len(curves) // 2)
    with figure_style():
        figure = Figure(figsize=(WIDTH_IN, 2.4 * n_rows), layout="constrained", dpi=150)
        for curve, axes in zip(curves, figure.subplots(n_rows, 2, squeeze=False).flat, strict=False):
            axes.loglog(curve.sizes, curve.costs, "o-", color=BLUE, markersize=4)
            linear = [curve.costs[-1] * size / curve.sizes[-1] for size in curve.sizes]
            axes.loglog(curve.sizes, linear, ":", color=GREY)
            axes.set_title(f"{curve.title}: exponent {curve.exponent:.2f}", fontsize=9.5)
            axes.set(xlabel=curve.size, ylabel=curve.cost, xticks=curve.sizes, xticklabels=map(_short, curve.sizes))
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        for axes in figure.axes[len(curves) :]:
            axes.remove()
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})


def _short(size: float) -> str:
    """A size for an axis: 1600 as 1.6k."""
    return f"{size / 1000:g}k" if size >= 1000 else f"{size:g}"
