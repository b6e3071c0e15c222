"""The small print of a sweep: the conditions of its scenarios, gathered over all that may differ and told once each."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING

from moeplan.alike import alike, merged
from moeplan.errors import InputError
from simulator.question import Prepared, available_ram_bytes, prepare
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.scenarios import Cell, Inputs

if TYPE_CHECKING:
    from simulator.sweeps.rows import ChunkRunner

# What a condition may depend on beside the RAM cap, in the order in which less has to be read again.
AXES = ("model", "trace", "quantisation", "top_k", "layout", "context", "cache", "prefetch", "hardware", "threads")
MAX_COMBINATIONS = 64  # of those axes that are looked at; a few milliseconds each
NAMES = {"hardware": "device", "cache": "cache policy"}  # axes whose option is no word for a sentence
SHOWN = 4  # different texts of one condition
# conditions that stand in the rows where one of these axes has several values
IN_ROWS = {"ram_cap": ("ram_cap",), "storage": ("storage_read", "storage_latency")}

OF_RUNS = ("tokens", "first_token", "start", "cache")  # conditions that only a scenario that runs has

Told = list[tuple[Cell, str]]


def sweep_conditions(definition: SweepDefinition, inputs: Inputs) -> dict[str, str]:
    """
    Name to text, in the order in which a person would ask, of the combinations of inputs that can be asked, at most
    MAX_COMBINATIONS of them.
    """
    from simulator.small_print import small_print  # half a second of numba, as rows; the files are read meanwhile
    from simulator.sweeps.rows import ChunkRunner

    runner, gathered = ChunkRunner(definition, inputs), dict[str, Told]()
    for cell in islice(_cells(definition), MAX_COMBINATIONS):
        ends = _ends(runner, cell)
        prints = [small_print(each, "fast", definition.n_samples, definition.seed) for each in ends]
        for name in prints[0] if prints else ():
            if ends[0].scenario is None and name in OF_RUNS:
                continue
            text = _over_caps([each[name] for each in prints])
            gathered.setdefault(name, []).append((cell, text))
    if not gathered:  # nobody can ask any
        axes = ("model", "model"), ("device", "hardware")
        return {name: ", ".join(map(str, definition.axes[axis])) for name, axis in axes}
    in_rows = [name for name, axes in IN_ROWS.items() if any(len(definition.axes[axis]) > 1 for axis in axes)]
    return {name: _condition(told) for name, told in gathered.items() if name not in in_rows}


def _cells(definition: SweepDefinition) -> Iterator[Cell]:
    """Every combination of AXES; the other axes at their first value."""
    first = {name: values[0] for name, values in definition.axes.items()}
    for combination in product(*(definition.axes[name] for name in AXES)):
        yield first | dict(zip(AXES, combination, strict=True))


def _ends(runner: "ChunkRunner", cell: Cell) -> list[Prepared]:
    """The scenarios of the least and the largest RAM cap that run; that of the largest cap where none runs."""
    own = available_ram_bytes(runner.inputs.profiles[str(cell["hardware"])])
    caps = sorted(runner.definition.axes["ram_cap"], key=lambda cap: own if cap is None else cap)
    prepared: dict[int, Prepared | None] = {}

    def runs(place: int) -> bool:
        if place not in prepared:
            prepared[place] = _prepared(runner, cell | {"ram_cap": caps[place]})
        found = prepared[place]
        return found is not None and found.scenario is not None

    last = len(caps) - 1
    if not runs(last):
        return [found] if (found := prepared[last]) is not None else []
    least = bisect_left(range(len(caps)), True, key=runs)
    return [found for place in (least, last) if (found := prepared[place]) is not None]


def _prepared(runner: "ChunkRunner", cell: Cell) -> Prepared | None:
    try:
        return prepare(*runner.asked(cell))
    except InputError:
        return None


def _over_caps(texts: Sequence[str]) -> str:
    """The texts of several RAM caps as one: ranges where only numbers differ, else one after the other."""
    kinds = [merged([texts[place] for place in places]) for places in alike(texts).values()]
    return kinds[0] if len(kinds) == 1 else f"by RAM cap: {'; or '.join(kinds)}"


def _condition(told: Told) -> str:
    """One text for all combinations, or each text with the inputs that it holds for."""
    texts = list(dict.fromkeys(text for _, text in told))
    if len(texts) == 1:
        return texts[0]
    parts = [f"{text} ({_which([cell for cell, own in told if own == text], told)})" for text in texts[:SHOWN]]
    more = [f"{len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return "; ".join([*parts, *more])


def _which(cells: Sequence[Cell], told: Told) -> str:
    """The values that single out some combinations."""
    found = []
    for axis in AXES:
        own, every = ({_word(cell[axis]): None for cell in among} for among in (cells, [cell for cell, _ in told]))
        if len(own) < len(every):
            found.append(f"{NAMES.get(axis, axis.replace('_', ' '))} {' or '.join(own)}")
    return ", ".join(found)


def _word(value: object) -> str:
    return "own" if value is None else str(value)
