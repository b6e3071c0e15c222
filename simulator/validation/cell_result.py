"""
One cell of a validation grid: predicted beside measured, run by run and over its repeats.

An error is predicted / measured - 1 of tokens/s, so above zero the prediction is too fast.  Times are in seconds per
decode token unless a name says otherwise.
"""

from dataclasses import asdict, dataclass, field

import numpy as np

from simulator.result import Interval
from simulator.validation.cap_text import cap_text

N_BINS = 120  # see hindsight.py


@dataclass(frozen=True)
class Conditions:
    """
    What a cell was run under; None: no RAM cap (all experts resident), no storage limit.

    context: keys in the KV cache when decode begins.
    """

    model: str
    model_class: str
    ram_cap_bytes: int | None
    storage_limit_bytes_per_s: float | None
    prefetch: str
    context: int
    threads: int
    routing: str

    @property
    def cap_text(self) -> str:
        """The RAM cap in the unit in which it is a short number, as it was asked for: '1.9 GB', '24 MiB', 'none'."""
        return "none" if self.ram_cap_bytes is None else cap_text(self.ram_cap_bytes)


@dataclass(frozen=True)
class Pair:
    """A predicted figure beside the measured one."""

    predicted: float
    measured: float

    @property
    def difference(self) -> float:
        """Predicted less measured."""
        return self.predicted - self.measured


@dataclass(frozen=True)
class CountPair:
    """Predicted and measured counts of the counted decode tokens: experts found, experts read, bytes requested."""

    predicted: tuple[int, int, int]
    measured: tuple[int, int, int]

    @property
    def counts_equal(self) -> bool:
        """Whether hits and misses are the same."""
        return self.predicted[:2] == self.measured[:2]

    @property
    def bytes_equal(self) -> bool:
        """Whether the bytes are the same."""
        return self.predicted[2] == self.measured[2]


@dataclass(frozen=True)
class Verdicts:
    """
    t_attention >= t_prefetch on (token, layer) pairs with a miss: how often both sides say what.

    hidden_hidden: measured hidden, predicted hidden; hidden_waits: measured hidden, predicted to wait; and so on.
    """

    hidden_hidden: int = 0
    hidden_waits: int = 0
    waits_hidden: int = 0
    waits_waits: int = 0

    @classmethod
    def of(cls, hidden: np.ndarray, says_hidden: np.ndarray) -> "Verdicts":
        """Of pairs (n,) bool: what was measured, and what was said of them."""
        sides = ((hidden, says_hidden), (hidden, ~says_hidden), (~hidden, says_hidden), (~hidden, ~says_hidden))
        return cls(*(int((measured & said).sum()) for measured, said in sides))

    def __add__(self, other: "Verdicts") -> "Verdicts":
        return Verdicts(*(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The four counts in the order of the fields."""
        return self.hidden_hidden, self.hidden_waits, self.waits_hidden, self.waits_waits

    @property
    def n_pairs(self) -> int:
        """Pairs in all."""
        return sum(self.counts)

    @property
    def agreement_frac(self) -> float | None:
        """Share of the pairs with the same verdict on both sides, None without pairs."""
        return (self.hidden_hidden + self.waits_waits) / self.n_pairs if self.n_pairs else None

    @property
    def balanced_frac(self) -> float | None:
        """Mean of the shares found among the measured hidden and the measured waiting pairs, None without both."""
        n_hidden, n_waits = self.hidden_hidden + self.hidden_waits, self.waits_hidden + self.waits_waits
        if not n_hidden or not n_waits:
            return None
        return (self.hidden_hidden / n_hidden + self.waits_waits / n_waits) / 2

    @property
    def predicted_hidden_frac(self) -> float | None:
        """Share of the pairs that are said to be hidden, None without pairs."""
        return (self.hidden_hidden + self.waits_hidden) / self.n_pairs if self.n_pairs else None

    @property
    def measured_hidden_frac(self) -> float | None:
        """Share of the pairs that were measured hidden, None without pairs."""
        return (self.hidden_hidden + self.hidden_waits) / self.n_pairs if self.n_pairs else None

    @property
    def has_one_class(self) -> bool:
        """Whether there are pairs and all were measured alike, so that no accuracy means anything."""
        return self.n_pairs > 0 and self.balanced_frac is None

    @property
    def majority_frac(self) -> float | None:
        """Agreement of always saying what is measured more often; its balanced accuracy is 0.5."""
        n_hidden = self.hidden_hidden + self.hidden_waits
        return max(n_hidden, self.n_pairs - n_hidden) / self.n_pairs if self.n_pairs else None

    def as_json(self) -> dict[str, float | None]:
        """Counts and shares."""
        shares = {name: getattr(self, name) for name in ("agreement_frac", "balanced_frac", "majority_frac")}
        return {"n_pairs": self.n_pairs, **asdict(self), **shares}


@dataclass(frozen=True)
class Hindsight:
    """What a rule with hindsight tells of some pairs, see hindsight.py; None: no pair, or all were measured alike."""

    n_pairs: int
    balanced_frac: float | None
    agreement_frac: float | None


@dataclass(frozen=True, eq=False)
class Boundary:
    """
    How near the pairs with a miss of a run lie to t_attention = t_prefetch, from its measured rows alone; pairs are
    those that have enough alike.

    distance: median |ln(t_prefetch / t_attention)|, None without a pair; noise: standard deviation of that logarithm
    among rows that are alike; pairs (2, 2, N_BINS): counts by clear or not, hidden or not, and what rows of their kind
    typically are; see hindsight.py.
    """

    distance: float | None = None
    noise: float = 0.0
    pairs: np.ndarray = field(default_factory=lambda: np.zeros((2, 2, N_BINS), dtype=np.int64))


@dataclass(frozen=True)
class LayerComparison:
    """One MoE layer, means over the counted decode tokens; hidden_*: share of those with a miss, None without one."""

    layer: int
    t_attention_s: Pair
    t_prefetch_s: Pair
    bubble_s: Pair
    predicted_hidden_frac: float | None
    measured_hidden_frac: float | None


@dataclass(frozen=True)
class RunComparison:
    """
    One run of a cell.

    speed: decode tokens/s, predicted with the ends of its 80 % interval, wide_speed: with those of a machine that
    drifts; order: position in the planned order; slots: experts that the cache holds; ops: seconds a token by op, the
    ops tile the token's time; reads_s: t_prefetch of all layers, which runs beside them; miss_wait_s: the part of the
    wait in layers with a miss, the rest is the cost of asking the cache; attention_alone_s, attention_reading_s: mean
    of one layer without and with a miss, None where there is none; verdicts: of all pairs with a miss, alike_verdicts:
    of those that have enough alike in the run, clear_verdicts: of those of them that are clear, see hindsight.py;
    read_ratio: measured median of t_prefetch / t_attention where there is a miss; prompt_s: prompt to first logits,
    None where the run had no prompt; naive_tokens_per_s: see baselines.py; noise_frac: standard error of
    measured_tokens_per_s from the run's own tokens, margin: of a clear verdict, both see run_noise.py;
    held_out_tokens_per_s: predicted without the model's own shape, None where that cannot be, held_out_kept: the ops
    that kept rows of it all the same, both see held_out.py.
    """

    repeat: int
    order: int
    started_at: str
    n_counted: int
    speed: Interval
    wide_speed: Interval
    measured_tokens_per_s: float
    naive_tokens_per_s: float
    slots: Pair
    counts: CountPair
    read_s: float
    ops: dict[str, Pair]
    reads_s: Pair
    miss_wait_s: Pair
    attention_alone_s: Pair | None
    attention_reading_s: Pair | None
    layers: tuple[LayerComparison, ...]
    verdicts: Verdicts
    alike_verdicts: Verdicts
    clear_verdicts: Verdicts
    read_ratio: float | None
    n_prompt: int
    prompt_s: Interval | None
    measured_prompt_s: float | None
    gate_sparsity: float | None
    steal_frac: float | None = None
    noise_frac: float = 0.0
    margin: float = 0.0
    held_out_tokens_per_s: float | None = None
    held_out_kept: tuple[str, ...] = ()
    boundary: Boundary = field(default_factory=Boundary)

    @property
    def error_frac(self) -> float:
        """Predicted / measured - 1 of tokens/s."""
        return self.speed.value / self.measured_tokens_per_s - 1


@dataclass(frozen=True)
class CellComparison:
    """
    A cell over its repeats: medians of the speeds, means of times, sums of verdicts.

    error_frac: of the medians; errors of single runs that cancel in it stand beside it, as run_errors and, by op, as
    off_s, the mean over the runs of |predicted - measured| seconds a token, which picks worst_op.
    noise_frac: (max - min) / median of the measured tokens/s over the runs, None with a single run; run_noise_frac:
    median standard error within a run; in_interval: whether the measured median lies in the predicted interval,
    in_interval_with_noise: whether in the wide one, widened further by the runs' own noise; held_out_error_frac: error
    without the model's own shape, None where that cannot be; cell_class: see tables.py; wait_frac: measured share of
    the time that waits for missing experts; reason: what is most off, in words.
    """

    cell: str
    conditions: Conditions
    cell_class: str
    predicted: Interval
    measured_tokens_per_s: float
    error_frac: float
    noise_frac: float | None
    run_noise_frac: float
    in_interval: bool
    in_interval_with_noise: bool
    held_out_error_frac: float | None
    naive_tokens_per_s: float
    naive_error_frac: float
    wait_frac: float
    miss_rate: float
    bytes_per_token: float
    read_s_per_token: float
    read_ratio: float | None
    ops: dict[str, Pair]
    off_s: dict[str, float]
    reads_s: Pair
    worst_op: str
    reason: str
    layers: tuple[LayerComparison, ...]
    verdicts: Verdicts
    alike_verdicts: Verdicts
    clear_verdicts: Verdicts
    runs: tuple[RunComparison, ...]

    @property
    def run_errors(self) -> tuple[float, ...]:
        """Predicted / measured - 1 of each run."""
        return tuple(run.error_frac for run in self.runs)

    @property
    def held_out_kept(self) -> tuple[str, ...]:
        """The ops that kept the model's own rows in the prediction without its shape."""
        return self.runs[0].held_out_kept

    @property
    def counts_equal(self) -> bool:
        """Whether hits and misses are the same in every run."""
        return all(run.counts.counts_equal for run in self.runs)

    @property
    def bytes_equal(self) -> bool:
        """Whether the bytes are the same in every run."""
        return all(run.counts.bytes_equal for run in self.runs)
