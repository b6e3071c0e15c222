"""Results as HTML pages: one file each, self-contained, without JavaScript, the same bytes for the same input."""

from pathlib import Path
from typing import Any

from reports import design_answer, design_wording, wording
from reports.design_figure import design_figure
from reports.figure_style import as_data_uri
from reports.figures import layer_figure, memory_figure, time_figure
from reports.glossary import DESIGN_WORDS, LAYER_WORDS, scenario_words
from reports.html_environment import write_page
from reports.memory_wording import memory_finding, memory_rows, said_first
from reports.picture import Picture
from reports.plan_page import plan_context
from simulator.plan_result import DesignResult, PlanResult
from simulator.result import Result


def write_plan_report(plan: PlanResult, path: Path) -> None:
    """
    Write the page that answers "does it reach the target, and what would have to change?".

    Raises InputError when path cannot be written.
    """
    write_page("plan.html.j2", path, **_result_context(plan.result), **plan_context(plan))


def write_result_report(result: Result, path: Path) -> None:
    """Write the page of one simulated scenario. Raises InputError when path cannot be written."""
    page = {
        "title": wording.question(result),
        "headline": wording.headline(result),
        "tone": "cannot_run" if result.beyond_device else result.verdict,
        "reason": said_first(result),
        "words": scenario_words(result),
    }
    write_page("result.html.j2", path, **_result_context(result), **page)


def write_design_report(result: DesignResult, path: Path) -> None:
    """Write the page of the shapes of a hypothetical model. Raises InputError as above."""
    runs = any(design.tokens_per_s is not None for design in result.designs)
    page = {
        "title": design_answer.design_question(result),
        "headline": design_answer.design_headline(result),
        "tone": design_answer.design_tone(result),
        "reasons": (
            *design_answer.design_reasons(result),
            *design_answer.not_simulated(result),
        ),
        "warnings": result.warnings,
        "picture": _design_picture(result) if runs else None,
        "rows": [design_wording.design_row(design, result.holds_frac) for design in result.designs],
        "caption": design_wording.design_caption(result),
        "small_print": result.small_print,
        "words": DESIGN_WORDS | LAYER_WORDS,
    }
    write_page("design.html.j2", path, **page)


def _design_picture(result: DesignResult) -> Picture:
    drawn = design_wording.on_device(result)
    caption = design_wording.picture_caption(drawn)
    if len(drawn.designs) < len(result.designs):
        caption += " Not drawn: what takes more RAM than the device leaves."
    return Picture(design_wording.picture_title(drawn), as_data_uri(design_figure(drawn)), caption)


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
