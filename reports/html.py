"""Results as HTML pages: one file each, self-contained, without JavaScript, the same bytes for the same input."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeplan.files import write_text
from reports import design_wording, inverse_wording, wording
from reports.design_figure import design_figure
from reports.figure_style import as_data_uri
from reports.figures import layer_figure, memory_figure, time_figure
from reports.front_figure import front_figure
from reports.glossary import DESIGN_WORDS, LAYER_WORDS, PLAN_WORDS
from reports.grid import Grid, as_grids, cell_of, current_row
from reports.heat_map import has_intervals, heat_map
from reports.html_environment import html_environment
from reports.memory_wording import memory_finding, memory_rows
from simulator.plan_result import DesignResult, PlanResult
from simulator.result import Result, SweepRow


@dataclass(frozen=True)
class Picture:
    """A figure on the page: its finding as the title, the image, and what the marks mean."""

    title: str
    source: str
    caption: str = ""


def write_plan_report(plan: PlanResult, path: Path) -> None:
    """
    Write the page that answers "does it reach the target, and what would have to change?".

    Raises InputError when path cannot be written.
    """
    now = current_row(plan)
    page = {
        "title": wording.question(plan.result, plan.target_tokens_per_s),
        "headline": wording.plan_headline(plan),
        "tone": plan.decision,
        "reason": wording.plan_reason(plan),
        "target": plan.target_tokens_per_s,
        "reaching": [change for change in plan.changes if change.reaches],
        "not_reaching": [change for change in plan.changes if not change.reaches],
        "maps": _heat_maps(plan.grid, plan.target_tokens_per_s, now),
        "words": PLAN_WORDS | LAYER_WORDS,
        **_inverse_context(plan),
    }
    _write("plan.html.j2", path, **_result_context(plan.result), **page)


def write_result_report(result: Result, path: Path) -> None:
    """Write the page of one simulated scenario. Raises InputError when path cannot be written."""
    page = {
        "title": wording.question(result),
        "headline": wording.headline(result),
        "tone": result.verdict,
        "reason": "",
        "words": LAYER_WORDS,
    }
    _write("result.html.j2", path, **_result_context(result), **page)


def write_sweep_report(rows: Sequence[SweepRow], path: Path, small_print: dict[str, str]) -> None:
    """Write the page of a sweep: a heat map per pair of policies and all rows. Raises InputError as above."""
    model, device = wording.scenario_names(small_print)
    page = {
        "title": f"How fast does {model} run on {device}, over RAM cap and storage speed?",
        "headline": wording.sweep_headline(rows),
        "tone": "streams" if any(row.verdict != "cannot_run" for row in rows) else "cannot_run",
        "reason": wording.sweep_reason(rows),
        "maps": _heat_maps(rows, None, None),
        "small_print": small_print,
        "words": LAYER_WORDS,
    }
    _write("sweep.html.j2", path, **page)


def write_design_report(result: DesignResult, path: Path) -> None:
    """Write the page of the shapes of a hypothetical model. Raises InputError as above."""
    runs = any(design.tokens_per_s is not None for design in result.designs)
    page = {
        "title": design_wording.design_question(result),
        "headline": design_wording.design_headline(result),
        "tone": "yes" if design_wording.largest_that_holds(result) else "no",
        "reasons": (
            design_wording.design_reason(result),
            design_wording.design_target(result),
            *design_wording.not_simulated(result),
        ),
        "warnings": result.warnings,
        "picture": _design_picture(result) if runs else None,
        "rows": [design_wording.design_row(design, result.holds_frac) for design in result.designs],
        "caption": design_wording.DESIGN_CAPTION,
        "small_print": result.small_print,
        "words": DESIGN_WORDS | LAYER_WORDS,
    }
    _write("design.html.j2", path, **page)


def _design_picture(result: DesignResult) -> Picture:
    caption = (
        "Above: t_attention dashed, t_prefetch in full, means over the cases with a miss. Below: tokens/s with the "
        "80 % interval. A filled mark: it holds there, or nothing has to be read."
    )
    return Picture(design_wording.picture_title(result), as_data_uri(design_figure(result)), caption)


def _inverse_context(plan: PlanResult) -> dict[str, Any]:
    """Limits, front and purchases as the page has them."""
    target, result, front = plan.target_tokens_per_s, plan.result, None
    if plan.front is not None:
        now = result.memory.ram_cap_bytes, result.storage_read_bytes_per_s or 0.0
        source = as_data_uri(front_figure(plan.front, now))
        caption = f"On a line and above it the target is met. Tried: {plan.front.grid}."
        front = Picture(inverse_wording.front_finding(plan.front, target), source, caption)
    shop = None
    if plan.shopping is not None:
        meeting, safe = inverse_wording.purchase_rows(plan.shopping)
        title = inverse_wording.shopping_finding(plan.shopping, target)
        shop = {"title": title, "meeting": meeting, "safe": safe, "grid": plan.shopping.grid}
    return {
        "limits": inverse_wording.limit_rows(plan),
        "limits_title": inverse_wording.limits_title(plan),
        "limits_caption": inverse_wording.LIMITS_CAPTION,
        "front": front,
        "front_rows": [] if plan.front is None else inverse_wording.front_rows(plan.front),
        "shopping": shop,
    }


def _result_context(result: Result) -> dict[str, Any]:
    """What the plan's and the result's page share."""
    runs = result.verdict != "cannot_run"
    return {
        "result": result,
        "small_print": result.small_print,
        "bound": wording.bound_sentence(result),
        "memory_rows": memory_rows(result.memory),
        "layers": _layers_picture(result) if runs and result.layers else None,
        "time": _time_picture(result) if runs and wording.token_s(result) > 0 else None,
        "memory": _memory_picture(result) if runs else None,
    }


def _layers_picture(result: Result) -> Picture:
    finding = wording.overlap_finding(result)
    source = as_data_uri(layer_figure(result.layers, on_demand=wording.reads_on_demand(result)))
    if wording.overlap(result).hidden_frac is None:
        return Picture(finding, source)
    caption = (
        "Above: the mean time of attention in each layer, the bubble on top of it, and the mean t_prefetch as a dash; "
        "a read is free when t_attention >= t_prefetch for that token. Below: how the decode tokens fared in the layer."
    )
    return Picture(finding, source, caption)


def _time_picture(result: Result) -> Picture:
    return Picture(wording.time_finding(result), as_data_uri(time_figure(result)))


def _memory_picture(result: Result) -> Picture:
    return Picture(memory_finding(result.memory), as_data_uri(memory_figure(result.memory)))


def _heat_maps(
    rows: Sequence[SweepRow], target_tokens_per_s: float | None, now: SweepRow | None
) -> list[tuple[Grid, Picture]]:
    """One picture per pair of policies, all on one colour scale."""
    top = max((row.tokens_per_s for row in rows), default=0.0)
    pictures = []
    for grid in as_grids(rows):
        cell = cell_of(grid, now)
        if target_tokens_per_s is None:
            finding = wording.range_finding(grid)
        else:
            finding = wording.grid_finding(grid, target_tokens_per_s, now)
        image = as_data_uri(heat_map(grid, target_tokens_per_s, cell, top))
        caption = _heat_map_caption(grid, target_tokens_per_s, cell is not None)
        pictures.append((grid, Picture(finding, image, caption)))
    return pictures


def _heat_map_caption(grid: Grid, target_tokens_per_s: float | None, is_marked: bool) -> str:
    parts = ["Decode tokens/s; small: the 80 % interval." if has_intervals(grid) else "Decode tokens/s."]
    if target_tokens_per_s is not None and grid.reaching(target_tokens_per_s):
        parts.append(f"Bold, inside the thick line: the value reaches {wording.goal(target_tokens_per_s)} tokens/s.")
    if is_marked:
        parts.append("Framed: this scenario.")
    others = f"; {grid.others}" if grid.others else ""
    parts.append(f"Cache policy {grid.cache_policy}, prefetch policy {grid.prefetch_policy}{others}.")
    return " ".join(parts)


def _write(template: str, path: Path, **context: Any) -> None:
    write_text(path, html_environment().get_template(template).render(**context))
