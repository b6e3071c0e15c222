"""Small grids on disk whose "measured" runs are simulated ones, as they are or with one thing changed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from conftest import random_trace, tiny_model
from pydantic import BaseModel

from hardware_profiles.catalog import profile_path
from hardware_profiles.schema import HardwareProfile
from hardware_profiles.schema_base import Provenance
from simulator.validation.compare import TOKEN_OPS
from simulator.validation.grid_cells import MeasuredRun, read_grid
from simulator.validation.predict import predict
from traces.routing_trace import DECODE
from traces.store import write_trace

N_PROMPT, N_WARM_UP, N_COUNTED = 8, 6, 16
CAP_BYTES = 350_000  # some of the 24 experts of the model fit, not all
PLACEHOLDER_SPEED = 1.0
SPOTS = {"small_token_t1": 0.010, "burst_64KiB": 0.0004}  # seconds when the profile was made
SPOT_SPREAD = 0.02

Change = Callable[[pd.DataFrame], pd.DataFrame]


def unchanged(records: pd.DataFrame) -> pd.DataFrame:
    """A machine that does what the simulator says."""
    return records


def slower(op: str, factor: float) -> Change:
    """A machine on which one operation takes longer; only spans are compared, so nothing else has to move."""

    def change(records: pd.DataFrame) -> pd.DataFrame:
        span_s = records["end_s"] - records["start_s"]
        end_s = records["end_s"].where(records["op"] != op, records["start_s"] + factor * span_s)
        return records.assign(end_s=end_s)

    return change


def start_grid(folder: Path, device: str = "intel-n100") -> None:
    """The profile of a device on one thread with spot checks, and the model's spec."""
    text = profile_path(device).read_text(encoding="utf-8").replace("  threads: 4", "  threads: 1")
    text += "spot_checks:\n"
    for name, seconds in SPOTS.items():
        text += f"  - {{name: {name}, time: {seconds * 1e6:g} us, spread: {SPOT_SPREAD}}}\n"
    (folder / "models").mkdir(parents=True, exist_ok=True)
    (folder / "profile.yaml").write_text(text, encoding="utf-8")
    spec = yaml.safe_dump(tiny_model().model_dump(mode="json"))
    (folder / "models" / "tiny.yaml").write_text(spec, encoding="utf-8")


def add_run(
    grid: Path, cell: str = "a", repeat: int = 1, change: Change = unchanged, *, starts_at: int = 0, seed: int = 0,
    **conditions: object,
) -> MeasuredRun:  # fmt: skip
    """
    One run whose records are the simulated ones after a change, and whose speed is what they add up to.

    starts_at: positions in a saved KV state; the trace then holds decode tokens alone.
    """
    folder = grid / "cells" / f"{cell}-r{repeat}"
    folder.mkdir(parents=True)
    trace = random_trace(seed, N_PROMPT + N_WARM_UP + N_COUNTED, 3, 8, 2, n_prefill=N_PROMPT)
    if starts_at:
        trace = trace.select(trace.phase == DECODE)
        trace = replace(trace, position=np.arange(starts_at, starts_at + trace.n_tokens, dtype=np.int32))
    write_trace(trace, folder / "trace.parquet")
    cell_file = {
        "schema_version": 1, "cell": cell, "repeat": repeat, "order": len(list((grid / "cells").iterdir())) - 1,
        "model": "tiny", "model_path": "no/such/tiny.gguf", "model_class": "tiny", "ram_cap_bytes": CAP_BYTES,
        "storage_limit_bytes_per_s": None, "prefetch": "pre-attention", "context": starts_at or N_PROMPT, "threads": 1,
        "n_prompt": starts_at or N_PROMPT, "n_warm_up": N_WARM_UP, "n_counted": N_COUNTED, "routing": "own",
        "started_at": f"2030-01-02T03:04:{repeat:02d}", "seconds": 1.0,
    }  # fmt: skip
    write_json(folder / "cell.json", cell_file | conditions)
    write_json(folder / "run.json", run_file(PLACEHOLDER_SPEED, 1.0, 0))
    pd.DataFrame().to_parquet(folder / "ops.parquet")
    run = next(run for run in read_grid(grid).runs if run.folder == folder)
    prediction = predict(run, run.spec(grid), read_grid(grid).profile, n_samples=0)
    records = change(prediction.records)
    records.to_parquet(folder / "ops.parquet")
    counted = records[(records["token"] >= run.first_counted) & records["op"].isin(TOKEN_OPS)]
    speed = N_COUNTED / float((counted["end_s"] - counted["start_s"]).sum())
    prompt_s = prediction.prompt_s.value if prediction.prompt_s else 0.0
    write_json(folder / "run.json", run_file(speed, prompt_s, prediction.n_slots))
    return next(run for run in read_grid(grid).runs if run.folder == folder)


def spots(compute: float = 1.0, read: float = 1.0, *, apart: float = 1.0) -> dict[str, dict[str, float]]:
    """Spot checks around a run, so many times the probe's; apart: after over before."""
    both = {"small_token_t1": compute, "burst_64KiB": read}
    ends = {"before": apart**-0.5, "after": apart**0.5}
    return {end: {name: SPOTS[name] * factor * own for name, factor in both.items()} for end, own in ends.items()}


def run_file(tokens_per_s: float, prompt_s: float, slots: int) -> dict:
    """run.json as far as it is read, and a field that is not."""
    return {
        "tokens_per_s": tokens_per_s, "prompt_s": prompt_s, "n_counted_tokens": N_COUNTED,
        "layers": [{"layer": layer, "zero_gate_frac": 0.5} for layer in range(3)], "memory": {"slots": slots},
        "conditions": {"cache": "lru", "layout": "bundle", "prefill_chunk": "512", "cpu": "Some CPU @ 3 GHz"},
        "text": "",
    }  # fmt: skip


def write_json(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")


def without_spreads(profile: HardwareProfile) -> HardwareProfile:
    """A profile whose every figure is certain."""

    def copied(part: BaseModel) -> BaseModel:
        update: dict[str, object] = {}
        for name in type(part).model_fields:
            item = getattr(part, name)
            if isinstance(item, Provenance):
                update[name] = item.model_copy(update={"uncertainty": 0.0})
            elif isinstance(item, BaseModel):
                update[name] = copied(item)
        return part.model_copy(update=update)

    return copied(profile)  # type: ignore[return-value]
