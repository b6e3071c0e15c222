"""What the page of a plan holds beside its scenario's own result."""

from typing import Any

from reports import inverse_wording, plan_wording, wording
from reports.figure_style import as_data_uri
from reports.front_figure import front_figure
from reports.glossary import plan_words
from reports.grid import Grid, as_grids, cell_of, current_row
from reports.heat_map import has_intervals, heat_map
from reports.picture import Picture
from simulator.plan_result import PlanResult


def plan_context(plan: PlanResult) -> dict[str, Any]:
    """Question, decision, savings or changes, purchases, limits, front and maps, as the template has them."""
    changes = () if plan_wording.is_met(plan) else plan.changes  # what makes it safe stands in the savings
    costs = {id(change): plan_wording.change_cost(change, plan.currency) for change in changes}
    return {
        "title": wording.question(plan.result, plan.target_tokens_per_s),
        "headline": plan_wording.plan_headline(plan),
        "tone": plan.decision,
        "reason": plan_wording.plan_reason(plan),
        "target": plan.target_tokens_per_s,
        "saving_title": plan_wording.saving_title(plan) if plan_wording.is_met(plan) else "",
        "savings": plan_wording.savings(plan) if plan_wording.is_met(plan) else [],
        "changes_title": plan_wording.changes_title(plan),
        "changes_order": plan_wording.changes_order(plan),
        "reaching": [(change, costs[id(change)]) for change in changes if change.reaches],
        "not_reaching": [(change, costs[id(change)]) for change in changes if not change.reaches],
        "limits": inverse_wording.limit_rows(plan),
        "has_limits": inverse_wording.has_limits(plan),
        "limits_title": inverse_wording.limits_title(plan),
        "limits_caption": inverse_wording.LIMITS_CAPTION,
        "front": _front_picture(plan),
        "front_rows": [] if plan.front is None else inverse_wording.front_rows(plan.front),
        "front_notes": [] if plan.front is None else inverse_wording.front_notes(plan.front),
        "shopping": _shopping(plan),
        "maps": _maps(plan),
        "words": plan_words(plan.result),
    }


def _front_picture(plan: PlanResult) -> Picture | None:
    if plan.front is None:
        return None
    now = plan.result.memory.ram_cap_bytes, plan.result.storage_read_bytes_per_s or 0.0
    finding = inverse_wording.front_finding(plan.front, plan.target_tokens_per_s)
    title = inverse_wording.as_bound(plan, finding)
    if not plan.front.points:
        return Picture(title, "", f"Tried: {plan.front.grid}.")
    source = as_data_uri(front_figure(plan.front, now, plan.storage_ceiling))
    return Picture(title, source, f"On a line and above it the target is met. Tried: {plan.front.grid}.")


def _shopping(plan: PlanResult) -> dict[str, Any] | None:
    title = inverse_wording.purchases_finding(plan)
    if plan.shopping is None or not title:
        return None
    meeting, safe = inverse_wording.purchase_rows(plan.shopping)
    return {
        "title": title,
        "meeting": meeting,
        "safe": safe,
        "grid": plan.shopping.grid,
        "left_out": plan_wording.left_out(plan.shopping),
    }


def _maps(plan: PlanResult) -> list[tuple[Grid, Picture]]:
    """One picture a pair of policies, all on one colour scale; none of a dense model, whose storage plays no part."""
    if not plan.result.memory.all_experts_bytes:
        return []
    now, target = current_row(plan), plan.target_tokens_per_s
    top = max((row.tokens_per_s for row in plan.grid), default=0.0)
    pictures = []
    for grid in as_grids(plan.grid):
        cell = cell_of(grid, now)
        image = as_data_uri(heat_map(grid, target, cell, top))
        caption = _caption(plan, grid, is_marked=cell is not None)
        title = inverse_wording.as_bound(plan, plan_wording.map_finding(plan, grid, now))
        pictures.append((grid, Picture(title, image, caption)))
    return pictures


def _caption(plan: PlanResult, grid: Grid, *, is_marked: bool) -> str:
    parts = ["Decode tokens/s; small: the 80 % interval." if has_intervals(grid) else "Decode tokens/s."]
    if grid.reaching(plan.target_tokens_per_s):
        goal = wording.goal(plan.target_tokens_per_s)
        parts.append(f"Bold, inside the thick line: the value reaches {goal} tokens/s.")
    if is_marked:
        parts.append("Framed: this scenario.")
    policies = f"Cache policy {grid.cache_policy}, prefetch policy {grid.prefetch_policy}."
    return " ".join(part for part in (*parts, plan_wording.map_caption(plan, grid), policies) if part)
