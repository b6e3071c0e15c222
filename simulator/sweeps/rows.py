"""The rows of a chunk: from the values of its axes to questions on the right model, device and trace."""

import threading
from dataclasses import dataclass, replace
from functools import lru_cache

from moeplan.errors import InputError
from simulator.closed_form.draws import Draws
from simulator.closed_form.replay import LeanReplay, lean_replay
from simulator.model.spec import ModelSpec, with_quantisation, with_top_k
from simulator.question import Question, check_storage_read
from simulator.result import SweepRow
from simulator.sweeps.definition import SweepDefinition
from simulator.sweeps.scenarios import Cell, Chunk, Inputs
from simulator.sweeps.timing import cell_rows, failed_row
from traces.routing_trace import RoutingTrace
from traces.synthetic import adapt


@dataclass(frozen=True)
class IndexedRow:
    """A row and its number in the whole sweep."""

    scenario: int
    row: SweepRow


def _refusal(question: Question) -> InputError | None:
    """Why nobody can ask for such a storage."""
    try:
        check_storage_read(question)
    except InputError as error:
        return error
    return None


class ChunkRunner:
    """Runs chunks of one sweep, in any number of threads; keeps what the next chunk will want too."""

    def __init__(self, definition: SweepDefinition, inputs: Inputs) -> None:
        self.definition, self.inputs = definition, inputs
        self._lock = threading.Lock()
        self._adapted = lru_cache(maxsize=1)(self._adapt)
        self._replay = lru_cache(maxsize=1)(self._make_replay)
        self._draws = lru_cache(maxsize=1)(self._make_draws)

    def rows(self, chunk: Chunk) -> list[IndexedRow]:
        """The rows of a chunk in the order of their numbers."""
        cells = list(chunk.cells(self.definition))
        try:
            base, replay = self.asked(cells[0][1])
        except InputError as error:  # no scenario of the chunk can be asked
            return [IndexedRow(index, failed_row(cell, error)) for index, cell in cells]
        questions = [self._on(base, cell) for _, cell in cells]
        refused = {place: why for place, asked in enumerate(questions) if (why := _refusal(asked)) is not None}
        kept = [place for place in range(len(cells)) if place not in refused]
        draws = self._draws_of(cells[0][1], base)
        found = cell_rows([questions[place] for place in kept], [cells[place][1] for place in kept], replay, draws)
        rows = dict(zip(kept, found, strict=True))
        rows |= {place: failed_row(cells[place][1], why, questions[place]) for place, why in refused.items()}
        return [IndexedRow(index, rows[place]) for place, (index, _) in enumerate(cells)]

    def asked(self, cell: Cell) -> tuple[Question, LeanReplay]:
        """The question of one cell and what it replays. Raises InputError where nobody can ask it."""
        with self._lock:  # one replay for all threads
            base = self._base(cell)
            return self._on(base, cell), self._replay(cell["trace"], base.model, base.context)

    def _draws_of(self, cell: Cell, base: Question) -> Draws:
        with self._lock:
            return self._draws(cell["trace"], base.model, base.context)

    def _on(self, base: Question, cell: Cell) -> Question:
        """The question of one cell, on the model and trace of another one of its chunk."""
        return replace(
            base,
            profile=self.inputs.profiles[str(cell["hardware"])],
            ram_cap_bytes=cell["ram_cap"],
            prefetch_policy=cell["prefetch"],
            n_threads=cell["threads"],
            ram_bytes_per_s=cell["ram_bandwidth"],
            gemv_flop_per_s=cell["flops"],
            storage_latency_s=cell["storage_latency"],
            storage_read_bytes_per_s=cell["storage_read"],
        )

    def _base(self, cell: Cell) -> Question:
        model = self.inputs.models[str(cell["model"])]
        if cell["quantisation"] is not None:
            model = with_quantisation(model, str(cell["quantisation"]))
        if cell["top_k"] is not None:
            model = with_top_k(model, int(cell["top_k"]))
        return Question(
            model=model,
            profile=self.inputs.profiles[str(cell["hardware"])],
            trace=self._adapted(cell["trace"], model),
            cache_policy=str(cell["cache"]),
            layout=str(cell["layout"]),
            context=cell["context"],
            start=self.definition.start,
            lm_head_predictor=self.definition.lm_head_predictor,
        )

    def _adapt(self, name: str | None, model: ModelSpec) -> RoutingTrace | None:
        """The trace for a model: as it is, cut where the sweep asks for a smaller top-k, adapted where it says so."""
        trace = self.inputs.traces[name]
        if trace is None or model.experts is None:
            return trace
        shape = (model.n_moe_layers, model.experts.n_experts)
        fits, top_k = shape == (trace.n_moe_layers, trace.header.n_experts), model.experts.top_k
        if fits and top_k == trace.top_k:
            return trace
        asks_top_k = self.definition.axes["top_k"] != (None,)
        if self.definition.adapt_trace or (fits and asks_top_k and top_k < trace.top_k):
            return adapt(trace, layer_ids=model.moe_layer_ids, n_experts=shape[1], top_k=top_k)
        return trace

    def _make_replay(self, name: str | None, model: ModelSpec, context: int | None) -> LeanReplay:
        trace = self._adapted(name, model)
        profile = next(iter(self.inputs.profiles.values()))
        return lean_replay(Question(model, profile, trace, context=context))

    def _make_draws(self, name: str | None, model: ModelSpec, context: int | None) -> Draws:
        return Draws(self.definition.n_samples, self.definition.seed, with_bounds=True)
