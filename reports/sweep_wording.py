"""What a sweep says, in words: shared by its page and the terminal."""

from collections import Counter
from dataclasses import dataclass

from reports.grid import Grid
from reports.sweep_findings import (
    NO_DIFFERENCE,
    SAME,
    Effect,
    Split,
    beside,
    effect,
    effects,
    fastest,
    gaps,
    has_speed_there,
    is_beyond,
    leanest,
    n_countable,
    reaching,
    slowest,
)
from reports.sweep_gathered import joined, of_all, refused_sentence, rest_sentence
from reports.sweep_inputs import (
    CACHE_POLICY,
    DEVICE,
    MODEL,
    RAM_CAP,
    STORAGE_READ,
    Input,
    listed,
    said_all,
    values,
)
from reports.wording import BOUND, BOUND_NAME, goal, number, round_bytes, scenario_names
from simulator.result import SweepRow


@dataclass(frozen=True)
class EffectRow:
    """What one input changes, in words: the values tried, the fastest over the slowest, and the best of them."""

    name: str
    tried: str
    ratio: str
    best: str


def sweep_question(sweep: Split, small_print: dict[str, str]) -> str:
    """'How fast do 2 models run on RK3588, by RAM cap and storage read?'; one scenario is named by its RAM cap."""
    model, device = scenario_names(small_print)
    n_models, n_devices = (len(values(sweep.rows, each)) for each in (MODEL, DEVICE))  # asked, refused ones too
    who = f"do {n_models} models" if n_models > 1 else f"does {model}"
    where = f"{n_devices} devices" if n_devices > 1 else device
    by = [each.name for each in sweep.inputs if each.field not in ("model", "device")]
    if not sweep.inputs and sweep.told:
        return f"How fast does {model} run on {device} with at most {round_bytes(sweep.told[0].ram_cap_bytes)} of RAM?"
    tail = f", by {joined(by)}" if by else ""
    return f"How fast {who} run on {where}{tail}?"


def sweep_headline(sweep: Split, target_tokens_per_s: float | None = None) -> str:
    """The answer in a few words: whether the target is reached, or the best speed."""
    best = fastest(sweep)
    if best is None:
        return "Nothing here can run" if sweep.blocked or not sweep.failed else "Nothing here can be asked"
    speed = f"{number(best.tokens_per_s)} tokens/s"
    if not sweep.real and not sweep.bounds:
        return f"Not with the RAM there is; with more: {speed}"
    if not sweep.real:
        return f"Bounds alone: at most {speed}"
    if target_tokens_per_s is None:
        return f"{speed} at best" if len(sweep.told) > 1 else speed
    n_good, target = len(reaching(sweep, target_tokens_per_s)), f"{goal(target_tokens_per_s)} tokens/s"
    if not n_good:
        return f"No: {speed} at best, target {target}"
    word = "Yes" if sweep_tone(sweep, target_tokens_per_s) == "yes" else "Likely"
    return f"{word}: {of_all(n_good, n_countable(sweep))} {'reaches' if n_good == 1 else 'reach'} {target}"


def sweep_tone(sweep: Split, target_tokens_per_s: float | None = None) -> str:
    """The colour of the answer, by the name of a plan's decision or a result's verdict."""
    if not sweep.real:
        return "cannot_run"
    if target_tokens_per_s is None:
        return "streams"
    good = reaching(sweep, target_tokens_per_s)
    return "yes" if any(row.tokens_per_s_low >= target_tokens_per_s for row in good) else "likely" if good else "no"


def sweep_reasons(sweep: Split, target_tokens_per_s: float | None = None) -> list[str]:
    """Sentences below the headline: the target, the fastest with all its inputs, what limits, the bound, the rest."""
    best = fastest(sweep)
    if best is None:
        return []
    found = [] if target_tokens_per_s is None else _target_sentences(sweep, target_tokens_per_s)
    found.append(refused_sentence(sweep))
    has_speed = target_tokens_per_s is None or not reaching(sweep, target_tokens_per_s)  # in the headline
    found += [_fastest_sentence(sweep, best, has_speed=has_speed), _limits_sentence(sweep, best)]
    worst = slowest(sweep)
    if worst is not None and worst.tokens_per_s * NO_DIFFERENCE < best.tokens_per_s:
        inputs = said_all(worst, sweep.inputs)
        found.append(f"Slowest that runs: {number(worst.tokens_per_s)} tokens/s, with {inputs}.")
    found += [_bound_sentence(sweep, best), rest_sentence(sweep)]
    return [text for text in found if text]


def _fastest_sentence(sweep: Split, best: SweepRow, *, has_speed: bool) -> str:
    """has_speed: whether the headline has it already."""
    interval = f"80 % interval {number(best.tokens_per_s_low)} to {number(best.tokens_per_s_high)}"
    speed = f"{number(best.tokens_per_s)} tokens/s"
    if not sweep.inputs:
        return f"{interval[0].upper()}{interval[1:]} tokens/s." if has_speed else f"{speed} ({interval})."
    inputs = ", ".join(_with_equals(sweep, best, each) for each in sweep.inputs)
    name = "Fastest" if sweep.real or not sweep.bounds else "The highest bound"
    return f"{name} with {inputs} ({interval})." if has_speed else f"{name}: {speed} ({interval}) with {inputs}."


def _with_equals(sweep: Split, best: SweepRow, of: Input) -> str:
    """The value of an input, and which others give the same speed: 'RAM cap 2 GiB or more', 'any storage read'."""
    group = [row for row in beside(sweep, best, of) if _kind(row) == _kind(best)]
    equal = [row for row in group if row.tokens_per_s >= best.tokens_per_s * SAME]
    if len(equal) == 1:
        return of.said(best)
    if len(equal) == len(group):
        return f"any {of.name}"
    ordered = values(group, of)
    if of.is_number and values(equal, of) == ordered[-len(equal) :]:
        return f"{of.said(best)} or more"
    if of.is_number and values(equal, of) == ordered[: len(equal)]:
        return f"{of.name} {of.text(values(equal, of)[-1])} or less"
    return f"{of.name} {listed(equal, of, 'or')}"


def _kind(row: SweepRow) -> tuple[bool, bool, bool]:
    return row.verdict == "cannot_run", row.is_upper_bound, is_beyond(row)


def _limits_sentence(sweep: Split, best: SweepRow) -> str:
    """What bounds the fastest, and how many scenarios each thing bounds where that differs."""
    counts = Counter(row.bound_by for row in sweep.best_kind)
    here = BOUND.get(best.bound_by, "")
    if len(counts) == 1:
        return f"{here[:-1]}, in every scenario that runs." if here and len(sweep.best_kind) > 1 else here
    parts = [f"{BOUND_NAME.get(name, name)} bounds {n:,}" for name, n in counts.most_common()]
    return f"{here} Over all that run: {joined(parts)}."


def _bound_sentence(sweep: Split, best: SweepRow) -> str:
    """How far the bounds lie above what a runtime reaches."""
    if not sweep.bounds:
        return ""
    names = joined([str(name) for name in values(sweep.bounds, CACHE_POLICY)])
    what = f"{names} is told the future: a bound that no runtime reaches"
    found = gaps(sweep)
    if not found:
        return f"{what}."
    widest = max(found, key=lambda gap: gap.ratio)
    if widest.ratio < NO_DIFFERENCE:
        return f"{what}; the best that was tried is as fast everywhere here."
    others = [each for each in sweep.inputs if each is not CACHE_POLICY]
    at = f" (with {said_all(widest.real, others)})" if others else ""
    most = f"at most {widest.above} above the best that was tried{at}"
    here = next((gap for gap in found if gap.real.tokens_per_s >= best.tokens_per_s * SAME), None)
    if here is None or here is widest or not others:
        return f"{what}, {most}."
    return f"{what}, {most}; {here.above} above the fastest."


def _target_sentences(sweep: Split, target_tokens_per_s: float) -> list[str]:
    """Where the target is met, with the least RAM and with the slowest storage that do."""
    good = reaching(sweep, target_tokens_per_s)
    if not good:
        return []
    row = leanest(sweep, target_tokens_per_s)
    assert row is not None
    n_safe = sum(each.tokens_per_s_low >= target_tokens_per_s for each in good)
    safely = f"{format(n_safe, ',') if n_safe else 'none'} with the low end of the 80 % interval too"
    inputs = said_all(row, sweep.inputs)
    named = {RAM_CAP: "With the least RAM", STORAGE_READ: "With the slowest storage"}
    name = next((text for each, text in named.items() if each in sweep.inputs), "The fastest")
    if len(good) == 1 or not sweep.inputs:
        return [f"It is reached with {inputs}: {number(row.tokens_per_s)} tokens/s; {safely}."] if inputs else []
    return [f"{name}: {inputs}, {number(row.tokens_per_s)} tokens/s. Of those that reach it, {safely}."]


def effect_rows(sweep: Split) -> list[EffectRow]:
    """What each input that varies changes, the largest change first."""
    found = sorted(effects(sweep), key=lambda each: -each.most) if sweep.real else []
    return [_effect_row(sweep, each) for each in found]


def _effect_row(sweep: Split, found: Effect) -> EffectRow:
    tried = listed(sweep.told, found.input)
    if not found.n_groups or found.best is None:
        return EffectRow(found.input.name, tried, "", "no two scenarios that run differ in it alone")
    if found.is_nothing:
        return EffectRow(found.input.name, tried, "x 1", "makes no difference")
    return EffectRow(found.input.name, tried, _ratio(found), _best(found))


def _ratio(found: Effect) -> str:
    least, most = f"{found.least:.3g}", f"{found.most:.3g}"
    return f"x {most}" if least == most else f"x {least} to {most}"


def _best(found: Effect) -> str:
    assert found.best is not None
    value = found.input.value_text(found.best)
    if found.n_groups == 1:
        return value
    if found.n_best < found.n_groups and found.end:
        return f"the {found.end}, {in_cases(found.n_groups, found.n_groups)}"
    return f"{value}, {in_cases(found.n_best, found.n_groups)}"


def in_cases(n: int, n_all: int) -> str:
    """'in 3 of 4 cases', 'in both cases', 'in all 4 cases'."""
    if n < n_all:
        return f"in {n:,} of {n_all:,} cases"
    return "in both cases" if n == 2 else f"in all {n:,} cases"


def map_finding(grid: Grid) -> str:
    """The finding over a sweep's heat map: its range, and what makes no difference there."""
    where = f"{grid.others}: " if grid.others else ""
    if not grid.runs:
        return f"{where}nothing here can run" if where else "Nothing here can run"
    runs = [row for row in grid.runs if has_speed_there(row)] or grid.runs
    speeds = [row.tokens_per_s for row in runs]
    blocked = len(grid.cells) - len(grid.runs)
    tail = f"; {blocked} of {len(grid.cells)} combinations cannot run" if blocked else ""
    idle = [each.name for each in (grid.up, grid.across) if effect(runs, (grid.up, grid.across), each).is_nothing]
    verb = "makes" if len(idle) == 1 else "make"
    none = f"; {joined(idle)} {verb} no difference" if idle else ""
    if max(speeds) < min(speeds) * NO_DIFFERENCE:
        place = "" if len(grid.cells) == 1 else " wherever it runs" if blocked else " everywhere"
        return f"{where}{number(max(speeds))} tokens/s{place}{none}{tail}"
    return f"{where}{number(min(speeds))} to {number(max(speeds))} tokens/s{none}{tail}"
