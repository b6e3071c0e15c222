"""What a run answers: figures a layer and in all, with the field names of the simulator's results."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.op_record import NO_LAYER

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
TEACHER_FORCED = "teacher-forced"  # the condition `decode` where the tokens were given


@dataclass(frozen=True)
class LayerTiming:
    """
    One MoE layer, means over the decode tokens that count.

    t_attention_s and t_prefetch_s run from the known top-k: to the moment the expert FFN could start, and to the
    arrival of the last missing expert (0 without a miss); bubble_s: the wait between the two.
    hidden_frac: share of the tokens with a miss whose t_prefetch is at most t_attention, None where none missed.
    zero_gate_frac: share of the chosen experts' neurons that ReLU shut.
    """

    layer: int
    t_attention_s: float
    t_prefetch_s: float
    bubble_s: float
    expert_ffn_s: float
    hidden_frac: float | None
    no_miss_frac: float
    zero_gate_frac: float


@dataclass(frozen=True)
class RunResult:
    """
    The answer of `moeplan run`.

    tokens_per_s, hits, misses, hit_rate, bytes_read, hidden_frac and layers count the decode tokens after the warm-up;
    prompt_s: from the first prompt token to the first logits; peak_rss_bytes: highest since baseline_rss_bytes, which
    is taken after imports and before any weight is loaded.
    """

    token_ids: list[int]
    text: str
    n_prompt_tokens: int
    n_decode_tokens: int
    n_counted_tokens: int
    tokens_per_s: float | None
    prompt_s: float
    hits: int
    misses: int
    hit_rate: float | None
    bytes_read: int
    hidden_frac: float | None
    seconds_per_token: dict[str, float]
    layers: tuple[LayerTiming, ...]
    baseline_rss_bytes: int
    peak_rss_bytes: int
    ram_cap_bytes: int | None
    memory: dict[str, int]
    conditions: dict[str, str]
    warnings: tuple[str, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def layer_timings(records: "pd.DataFrame", zero_gate_frac: np.ndarray) -> tuple[LayerTiming, ...]:
    """
    The layers of some decode tokens' OpRecords, those of one token for each (token, layer, op).

    zero_gate_frac: (n_layers,) means over the same tokens.
    """
    if records.empty:
        return ()
    spans = records.assign(span_s=records["end_s"] - records["start_s"])
    table = spans.pivot_table(index=["token", "layer"], columns="op", values="span_s", observed=False, aggfunc="sum")
    table = table.drop(index=NO_LAYER, level="layer", errors="ignore").fillna(0.0)
    misses = records[records["op"] == "read"].set_index(["token", "layer"])["n_misses"].reindex(table.index)
    table["missed"] = misses.fillna(0).to_numpy() > 0
    table["hidden"] = table["missed"] & (table["read"] <= table["attention"])
    table["read"] = table["read"].where(table["missed"], 0.0)
    result = []
    for layer, rows in table.groupby(level="layer"):
        n_missed = int(rows["missed"].sum())
        result.append(
            LayerTiming(
                layer=int(layer),
                t_attention_s=float(rows["attention"].mean()),
                t_prefetch_s=float(rows["read"].mean()),
                bubble_s=float(rows["wait"].mean()),
                expert_ffn_s=float(rows["expert_ffn"].mean()),
                hidden_frac=float(rows["hidden"].sum() / n_missed) if n_missed else None,
                no_miss_frac=1 - n_missed / len(rows),
                zero_gate_frac=float(zero_gate_frac[int(layer)]),
            )
        )
    return tuple(result)


def hidden_share(records: "pd.DataFrame") -> float | None:
    """Share of the (token, layer) rows with a miss whose reads were hidden, None where none missed."""
    by_row = records.set_index(["token", "layer"])
    reads, attention = by_row[by_row["op"] == "read"], by_row[by_row["op"] == "attention"]
    reads = reads[reads["n_misses"] > 0]
    if reads.empty:
        return None
    attention = attention.reindex(reads.index)
    read_s, attention_s = reads["end_s"] - reads["start_s"], attention["end_s"] - attention["start_s"]
    return float((read_s <= attention_s).mean())


def seconds_per_token(records: "pd.DataFrame", n_tokens: int) -> dict[str, float]:
    """Mean decode seconds by op; reads run beside the others and are left out."""
    spans = (records["end_s"] - records["start_s"]).groupby(records["op"], observed=True).sum() / max(1, n_tokens)
    return {str(op): float(seconds) for op, seconds in spans.items() if op != "read"}
