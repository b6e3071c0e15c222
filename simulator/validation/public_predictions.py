"""Every published row predicted, and held against what was measured; a summary for each class of rows."""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from moeplan.errors import InputError
from simulator.engine_fast import FastEngine
from simulator.interval import (
    INTERVAL_FRAC,
    N_SAMPLES,  # spread evenly over the strata
)
from simulator.question import Question, draw_gate_sparsity, prepare, question_rates
from simulator.result import Bound, Interval
from simulator.simulate import simulate, tokens_per_s
from simulator.validation.public_questions import row_questions
from simulator.validation.public_rows import CLASSES, PublicRow, RowClass

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PublicPrediction:
    """
    A row beside its prediction; None where the row is not predicted (its not_predicted says why).

    error_frac: predicted / measured - 1; covers: the 80 % interval holds the measured value; assumed: fact -> what
    was assumed for it; hit_rate, read_mib_per_token: of the simulated cache, None where nothing streams.
    """

    row: PublicRow
    tokens_per_s: Interval | None = None
    error_frac: float | None = None
    covers: bool | None = None
    bound_by: Bound | None = None
    hit_rate: float | None = None
    read_mib_per_token: float | None = None
    assumed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ClassSummary:
    """The predicted rows of a class; errors are of tokens/s, None where no row was predicted."""

    row_class: str
    n_rows: int
    n_predicted: int
    median_abs_error_frac: float | None
    median_error_frac: float | None
    coverage_frac: float | None


@dataclass(frozen=True)
class PublicValidation:
    """All rows and a summary for each class, and for the rows in RAM together."""

    predictions: tuple[PublicPrediction, ...]
    summaries: tuple[ClassSummary, ...]
    seed: int
    n_samples: int
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def as_csv(self) -> str:
        """One line a row, with a header."""
        return _as_csv(self.predictions)


def validate_public(
    rows: Iterable[PublicRow],
    *,
    seed: int = 0,
    n_samples: int = N_SAMPLES,
    on_row: Callable[[PublicRow], object] = lambda _: None,
) -> PublicValidation:
    """Predict every row. The same seed gives the same answer. Raises InputError where a row's names are not known."""
    predictions = []
    for row in rows:
        predictions.append(predict_row(row, seed=seed, n_samples=n_samples))
        on_row(row)
    return PublicValidation(tuple(predictions), summaries(predictions), seed, n_samples)


def predict_row(row: PublicRow, *, seed: int = 0, n_samples: int = N_SAMPLES) -> PublicPrediction:
    """One row: the central value by `simulate`, the interval from draws over profile, model and assumed facts."""
    if row.not_predicted:
        return PublicPrediction(row)
    questions = row_questions(row)
    result = simulate(questions.central, engine="fast", n_samples=0)
    if result.tokens_per_s is None:
        raise InputError(row.id, "must be a row that can run, or say why it is not predicted", result.arithmetic)
    value = result.tokens_per_s.value
    drawn = _draws(questions.strata, seed, n_samples)
    low, high = (float(x) for x in np.quantile(drawn, [(1 - INTERVAL_FRAC) / 2, (1 + INTERVAL_FRAC) / 2]))
    interval = Interval(value, min(low, value), max(high, value))
    cache = result.cache if result.verdict == "streams" else None
    return PublicPrediction(
        row=row,
        tokens_per_s=interval,
        error_frac=value / row.tokens_per_s - 1,
        covers=interval.low <= row.tokens_per_s <= interval.high,
        bound_by=result.bound_by,
        hit_rate=None if cache is None else cache.hit_rate,
        read_mib_per_token=None if cache is None else cache.bytes_read_per_token / 2**20,
        assumed=tuple((item.fact, item.text) for item in questions.assumptions),
    )


def _draws(strata: tuple[Question, ...], seed: int, n_samples: int) -> list[float]:
    """n_samples speeds, each stratum in turn with a draw of the profile's figures and of the model's gate sparsity."""
    rng, speeds = np.random.default_rng(seed), []
    engines = []
    for question in strata:
        scenario = prepare(question).scenario
        assert scenario is not None
        engines.append(FastEngine(scenario))
    for index in range(n_samples):
        question, engine = strata[index % len(strata)], engines[index % len(strata)]
        timeline = engine.timeline(question_rates(question, rng), draw_gate_sparsity(question, rng))
        speeds.append(tokens_per_s(timeline, engine.scenario.is_counted))
    return speeds


def summaries(predictions: Iterable[PublicPrediction]) -> tuple[ClassSummary, ...]:
    """One summary for each class, and one for all rows in RAM."""
    found = tuple(predictions)
    groups: list[tuple[str, tuple[RowClass, ...]]] = [(known, (known,)) for known in CLASSES]
    groups.append(("all in-RAM CPU", ("in-RAM CPU dense", "in-RAM CPU MoE")))
    return tuple(_summary(name, [p for p in found if p.row.row_class in members]) for name, members in groups)


def _summary(name: str, members: list[PublicPrediction]) -> ClassSummary:
    errors = [p.error_frac for p in members if p.error_frac is not None]
    covers = [p.covers for p in members if p.covers is not None]
    if not errors:
        return ClassSummary(name, len(members), 0, None, None, None)
    absolute = median(abs(error) for error in errors)
    return ClassSummary(name, len(members), len(errors), absolute, median(errors), sum(covers) / len(covers))


CSV_HEADER = (
    "id", "class", "model", "quantisation", "device", "profile", "engine", "measured_tokens_per_s",
    "predicted_tokens_per_s", "low_tokens_per_s", "high_tokens_per_s", "error_frac", "interval_covers", "bound_by",
    "hit_rate", "read_mib_per_token", "assumed", "not_predicted", "source_url",
)  # fmt: skip


def _as_csv(predictions: Iterable[PublicPrediction]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for prediction in predictions:
        row, speed = prediction.row, prediction.tokens_per_s
        ends = (speed.value, speed.low, speed.high) if speed else ()
        numbers = [f"{x:.4g}" for x in ends] or [""] * 3
        described = (row.id, row.row_class, row.model, row.quantisation, row.device, row.profile, row.engine)
        outcome = (prediction.error_frac, prediction.covers, prediction.bound_by)
        cache = (prediction.hit_rate, prediction.read_mib_per_token)
        assumed = "; ".join(f"{fact}: {text}" for fact, text in prediction.assumed)
        cells = [*described, row.tokens_per_s, *numbers, *(_cell(x) for x in (*outcome, *cache))]
        writer.writerow([*cells, assumed, row.not_predicted, row.source_url])
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
