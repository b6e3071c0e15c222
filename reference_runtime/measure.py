"""
Two figures of the runtime itself: how much of the reads it hides behind compute, and what recording costs.

    python -m reference_runtime.measure MODEL --ram-cap "740 MB" [--storage-limit "500 MB/s"] [--threads 1]

Overlap: the same teacher-forced decode tokens four times a round: all experts resident (compute alone), the reads of
the capped run without any compute (reads alone), the capped run with prefetch (both), and the capped run that reads
on demand (one after the other).  The hidden share is of the shorter of the two jobs:

    hidden_frac = (compute alone + reads alone - both) / min(compute alone, reads alone)

1 would be a perfect overlap.  A pre-attention prefetch can hide reads behind attention only, not behind the experts'
own work, so the bound that the pipeline itself sets is printed beside it.

Recording: decode tokens alternate between a clock that records and none; the cost is the ratio of the medians less 1.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from moeplan.errors import InputError
from moeplan.quantity import parse_quantity
from reference_runtime.conditions import cpu_name
from reference_runtime.op_clock import OpClock, RowReads
from reference_runtime.run import RunOutput, Task, run
from reference_runtime.runtime import open_runtime
from reference_runtime.runtime_options import RuntimeOptions, find_model
from reference_runtime.session import Session
from traces.routing_trace import RoutingTrace


@dataclass(frozen=True)
class Overlap:
    """Seconds per decode token of the four ways; attention_s: the part of compute that a prefetch can hide behind."""

    compute_s: float
    reads_s: float
    both_s: float
    one_after_other_s: float
    attention_s: float

    @property
    def hidden_frac(self) -> float:
        """Share of the shorter job that ran behind the longer one."""
        return (self.compute_s + self.reads_s - self.both_s) / min(self.compute_s, self.reads_s)

    @property
    def bound_frac(self) -> float:
        """The share that would be hidden if reads ran behind attention at no cost: min(attention, reads) of it."""
        return min(self.attention_s, self.reads_s) / min(self.compute_s, self.reads_s)


class _Switch:
    """A Watch that records every second chunk."""

    def __init__(self) -> None:
        self.clock, self.is_on = OpClock(), False

    def start(self, n_tokens: int) -> None:
        if self.is_on:
            self.clock.start(n_tokens)

    def done(self, op: str, layer: int) -> None:
        if self.is_on:
            self.clock.done(op, layer)

    def row_read(self, reads: RowReads) -> None:
        if self.is_on:
            self.clock.row_read(reads)


def distinct_tokens(vocab_size: int, n: int) -> list[int]:
    """n random token ids, distinct as far as the vocabulary has so many."""
    return np.random.default_rng(0).choice(vocab_size, n, replace=n > vocab_size).tolist()


def decode(options: RuntimeOptions, tokens: Sequence[int], n_prompt: int, n_warm_up: int) -> RunOutput:
    """A teacher-forced run on a freshly opened model."""
    with open_runtime(options, len(tokens)) as runtime:
        n_decode = len(tokens) - n_prompt
        return run(runtime, Task(tokens[:n_prompt], n_decode, forced=tokens[n_prompt:], n_warm_up=n_warm_up))


def reads_alone_s(options: RuntimeOptions, trace: RoutingTrace, n_prompt: int, n_warm_up: int) -> float:
    """Seconds per counted decode token to serve a trace's rows from cache and storage, nothing computed."""
    with open_runtime(options, trace.n_tokens) as runtime:
        began = perf_counter()
        for token, rows in enumerate(trace.expert_ids):
            if token == n_prompt + n_warm_up:
                began = perf_counter()
            for layer, row in enumerate(rows.tolist()):
                runtime.experts.request(layer, row)
                for _ in runtime.experts.waves(layer, row):
                    pass
        return (perf_counter() - began) / (trace.n_tokens - n_prompt - n_warm_up)


def overlap(options: RuntimeOptions, tokens: Sequence[int], n_prompt: int, n_warm_up: int) -> Overlap:
    """One round of the four ways. Raises InputError where the cap leaves nothing to read."""
    sizes = (n_prompt, n_warm_up)
    capped = decode(replace(options, prefetch="pre-attention"), tokens, *sizes)
    if capped.result.misses == 0:
        raise InputError("--ram-cap", "must be small enough that experts are read", options.ram_cap_bytes)
    demand = decode(replace(options, prefetch="none"), tokens, *sizes)
    alone = decode(replace(options, ram_cap_bytes=None), tokens, *sizes)
    rows = capped.trace
    return Overlap(
        compute_s=_token_s(alone),
        reads_s=reads_alone_s(options, rows, *sizes),
        both_s=_token_s(capped),
        one_after_other_s=_token_s(demand),
        attention_s=alone.result.seconds_per_token["attention"],
    )


def recording_cost_frac(options: RuntimeOptions, tokens: Sequence[int], n_prompt: int) -> float:
    """What the clock adds to a decode token, all experts resident: a ratio of medians less 1."""
    switch = _Switch()
    with open_runtime(replace(options, ram_cap_bytes=None), len(tokens)) as runtime:
        runtime.experts.on_row = switch.row_read
        session = Session(runtime.model, len(tokens), watch=switch)
        session.feed(tokens[:n_prompt])
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for index, token in enumerate(tokens[n_prompt:]):
            switch.is_on = index % 2 == 1
            began = perf_counter()
            session.feed([token])
            seconds[switch.is_on].append(perf_counter() - began)
    return median(seconds[True]) / median(seconds[False]) - 1


def _token_s(output: RunOutput) -> float:
    speed = output.result.tokens_per_s
    return float("inf") if speed is None else 1 / speed


def _table(rounds: list[Overlap]) -> str:
    def middle(name: str) -> float:
        return median(getattr(one, name) for one in rounds)

    rows = {
        "compute alone (all resident)": middle("compute_s"),
        "reads alone": middle("reads_s"),
        "both, pre-attention prefetch": middle("both_s"),
        "one after the other (on demand)": middle("one_after_other_s"),
    }
    lines = [f"{name:<34}{1e3 * seconds:9.2f} ms a token" for name, seconds in rows.items()]
    shares = ", ".join(f"{one.hidden_frac:.2f}" for one in rounds)
    lines.append(f"hidden of the shorter job: {middle('hidden_frac'):.2f} (rounds {shares});")
    lines.append(f"  hiding behind attention alone can give at most {middle('bound_frac'):.2f}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file, safetensors folder or the shipped tiny-smallthinker")
    parser.add_argument("--ram-cap", required=True)
    parser.add_argument("--storage-limit")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--n-prompt", type=int, default=16)
    parser.add_argument("--n-warm-up", type=int, default=8)
    parser.add_argument("--n-tokens", type=int, default=32, help="decode tokens that count")
    parser.add_argument("--n-rounds", type=int, default=3)
    args = parser.parse_args(argv)
    try:
        limit = args.storage_limit
        options = RuntimeOptions(
            model=find_model(args.model),
            ram_cap_bytes=round(parse_quantity(args.ram_cap, "byte", "--ram-cap")),
            storage_bytes_per_s=None if limit is None else parse_quantity(limit, "byte/second", "--storage-limit"),
            store=args.store,
            n_threads=args.threads,
            chunk_tokens=max(1, args.n_prompt),
            bind_threads=True,
        )
        with open_runtime(options, 1) as runtime:
            print(f"{cpu_name()}; {runtime.model.config.name}; {runtime.n_threads} threads; {runtime.layout} layout")
            vocab_size = runtime.model.config.vocab_size
        tokens = distinct_tokens(vocab_size, args.n_prompt + args.n_warm_up + args.n_tokens)
        rounds = [overlap(options, tokens, args.n_prompt, args.n_warm_up) for _ in range(args.n_rounds)]
        print(_table(rounds))
        cost = recording_cost_frac(options, tokens, args.n_prompt)
        print(f"recording costs {cost:+.1%} of a decode token ({args.n_tokens + args.n_warm_up} tokens, alternating)")
    except InputError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
