"""What a sweep found, as numbers: its fastest scenario, the bounds above it, and what each input changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.sweep_inputs import CACHE_POLICY, INPUTS, RAM_CAP, STORAGE_READ, Input, key_of, matched, values, varied
from simulator.result import SweepRow

SAME = 1 - 1e-9  # of one speed: rounding in sums
# of the rows in tables and lists: as the axes of a sweep are nested
ORDER = (
    "model", "device", "trace", "quantisation", "top_k", "layout", "context", "ram_cap_bytes", "cache_policy",
    "prefetch_policy", "n_threads", "ram_bytes_per_s", "gemv_flop_per_s", "storage_latency_s",
    "storage_read_bytes_per_s",
)  # fmt: skip
NO_DIFFERENCE = 1.0005  # the fastest over the slowest: less than three digits show


@dataclass(frozen=True)
class Split:
    """
    The rows of a sweep by what became of them, and the inputs that vary.

    told: scenarios that somebody can ask; blocked: those that cannot run; beyond: those that could with more RAM than
    the device has; real: those that run there and that a runtime can reach; bounds: those that run there under a policy
    that is told the future.
    """

    rows: tuple[SweepRow, ...]
    told: tuple[SweepRow, ...]
    failed: tuple[SweepRow, ...]
    blocked: tuple[SweepRow, ...]
    beyond: tuple[SweepRow, ...]
    real: tuple[SweepRow, ...]
    bounds: tuple[SweepRow, ...]
    inputs: tuple[Input, ...]

    @property
    def runs(self) -> tuple[SweepRow, ...]:
        """All that have a speed, in the order of the sweep."""
        return tuple(row for row in self.told if row.verdict != "cannot_run")

    @property
    def best_kind(self) -> tuple[SweepRow, ...]:
        """The rows among which the fastest is looked for: real ones; where there are none bounds, or those beyond."""
        return self.real or self.bounds or self.beyond


def split(rows: Sequence[SweepRow]) -> Split:
    """
    The rows of a sweep by what became of them, numbers ascending within the other inputs.

    Rows that are the same in everything, as a device's own value beside the same one asked for, are one.
    """
    rows = _ordered(tuple(dict.fromkeys(rows)))
    failed = tuple(row for row in rows if row.verdict == "failed")
    told = tuple(row for row in rows if row.verdict != "failed")
    blocked = tuple(row for row in told if row.verdict == "cannot_run")
    runs = [row for row in told if has_speed_there(row)]
    beyond = tuple(row for row in told if is_beyond(row))
    real = tuple(row for row in runs if not row.is_upper_bound)
    bounds = tuple(row for row in runs if row.is_upper_bound)
    return Split(rows, told, failed, blocked, beyond, real, bounds, varied(told or rows))


def _ordered(rows: tuple[SweepRow, ...]) -> tuple[SweepRow, ...]:
    """In the order of a sweep's axes; `own` stands among the numbers by what it is."""
    by_field = {each.field: each for each in INPUTS}
    found = [(name, values(rows, by_field[name])) for name in ORDER]
    places = [(name, {value: place for place, value in enumerate(own)}) for name, own in found if len(own) > 1]
    return tuple(sorted(rows, key=lambda row: [place[getattr(row, name)] for name, place in places]))


def is_beyond(row: SweepRow) -> bool:
    """Whether it would run with more RAM than the device has: its speed is a what-if."""
    return row.verdict in ("resident", "streams") and bool(row.reason)


def has_speed_there(row: SweepRow) -> bool:
    """Whether it runs on the device as bought."""
    return row.verdict in ("resident", "streams") and not row.reason


def fastest(sweep: Split) -> SweepRow | None:
    """The fastest row that a runtime can reach; of several with its speed the one with the least RAM, then storage."""
    among = sweep.best_kind
    if not among:
        return None
    best = max(row.tokens_per_s for row in among)
    return min((row for row in among if row.tokens_per_s >= best * SAME), key=_need)


def slowest(sweep: Split) -> SweepRow | None:
    """The slowest row that runs and that a runtime can reach."""
    return min(sweep.best_kind, key=lambda row: row.tokens_per_s, default=None)


def leanest(sweep: Split, target_tokens_per_s: float) -> SweepRow | None:
    """The row that reaches a target with the least RAM, then the slowest storage where these vary; of equals the
    fastest."""
    needs = [each for each in (RAM_CAP, STORAGE_READ) if each in sweep.inputs]
    good = reaching(sweep, target_tokens_per_s)
    return min(good, key=lambda row: (key_of(row, needs), -row.tokens_per_s), default=None)


def reaching(sweep: Split, target_tokens_per_s: float) -> list[SweepRow]:
    """The rows that a runtime can reach whose predicted value is at least the target."""
    return [row for row in sweep.real if row.tokens_per_s >= target_tokens_per_s]


def n_countable(sweep: Split) -> int:
    """Scenarios that were asked and may count as reaching a target: bounds never do."""
    told_the_future = {row.cache_policy for row in sweep.told if row.is_upper_bound}
    return sum(row.cache_policy not in told_the_future for row in sweep.rows)


def _need(row: SweepRow) -> tuple[int, float, float]:
    return row.ram_cap_bytes, row.storage_read_bytes_per_s, -row.tokens_per_s


def beside(sweep: Split, row: SweepRow, but: Input) -> list[SweepRow]:
    """The rows, this one too, that differ from it in one input alone."""
    others = [each for each in sweep.inputs if each is not but]
    return [other for other in sweep.told if key_of(other, others) == key_of(row, others)]


@dataclass(frozen=True)
class Gap:
    """A bound and the best that a runtime reaches with the same inputs; ratio: of their speeds."""

    bound: SweepRow
    real: SweepRow

    @property
    def ratio(self) -> float:
        """The bound's speed over the other's."""
        return self.bound.tokens_per_s / self.real.tokens_per_s

    @property
    def above(self) -> str:
        """How far the bound lies above, in words: '25 %', 'under 1 %', 'none'."""
        if self.ratio < NO_DIFFERENCE:
            return "none"
        return "under 1 %" if self.ratio < 1.01 else f"{100 * (self.ratio - 1):.0f} %"


def gaps(sweep: Split) -> list[Gap]:
    """Every bound beside the best policy with the same inputs."""
    if not sweep.bounds or not sweep.real:
        return []
    found = []
    for group in matched((*sweep.real, *sweep.bounds), sweep.inputs, CACHE_POLICY):
        real = [row for row in group if not row.is_upper_bound]
        bounds = [row for row in group if row.is_upper_bound]
        if real and bounds:
            best = max(real, key=lambda row: row.tokens_per_s)
            found.append(Gap(max(bounds, key=lambda row: row.tokens_per_s), best))
    return found


@dataclass(frozen=True)
class Effect:
    """
    What one input changes, all others equal; bounds and what cannot run left out.

    least, most: the fastest value's speed over the slowest's, over all groups of rows that differ in this input alone;
    best: a row with the value that is fastest in most groups (of equal ones the first), n_best of n_groups.
    n_groups 0: no two rows that run differ in it alone.  end: 'largest' or 'least' where that value is among the
    fastest of every group, whatever values these have.
    """

    input: Input
    least: float = 1.0
    most: float = 1.0
    best: SweepRow | None = None
    n_best: int = 0
    n_groups: int = 0
    end: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether it makes no difference anywhere."""
        return self.n_groups > 0 and self.most < NO_DIFFERENCE


def effects(sweep: Split) -> list[Effect]:
    """Of every input that varies."""
    return [effect(sweep.real, sweep.inputs, each) for each in sweep.inputs]


def effect(rows: Sequence[SweepRow], inputs: Sequence[Input], of: Input) -> Effect:
    """Of one input on these rows, which all run."""
    groups = [group for group in matched(rows, inputs, of) if len(group) > 1]
    if not groups:
        return Effect(of)
    order = {value: place for place, value in enumerate(values(rows, of))}
    tops = [max(row.tokens_per_s for row in group) for group in groups]
    ratios = [top / min(row.tokens_per_s for row in group) for top, group in zip(tops, groups, strict=True)]
    best: dict[object, list[SweepRow]] = {}
    ends = {"largest", "least"} if of.is_number else set()
    for top, group in zip(tops, groups, strict=True):
        winners = [row for row in group if row.tokens_per_s * NO_DIFFERENCE >= top]
        for row in winners:
            best.setdefault(of.of(row), []).append(row)
        places, own = {order[of.of(row)] for row in winners}, [order[of.of(row)] for row in group]
        ends &= {name for name, place in (("largest", max(own)), ("least", min(own))) if place in places}
    found = max(best.items(), key=lambda item: (len(item[1]), -order[item[0]]))[1]
    end = ends.pop() if len(ends) == 1 else ""
    return Effect(of, min(ratios), max(ratios), found[0], len(found), len(groups), end)


def map_inputs(sweep: Split) -> tuple[Input, Input] | None:
    """The inputs up and across the maps of a sweep: RAM cap and storage speed where they vary; None without two."""
    numbers = [each for each in sweep.inputs if each.is_number]
    first = [each for each in (RAM_CAP, STORAGE_READ) if each in numbers]
    chosen = [*first, *(each for each in numbers if each not in first)][:2]
    if len(chosen) < 2:
        return None
    return (chosen[1], chosen[0]) if chosen[0] is STORAGE_READ else (chosen[0], chosen[1])
