"""Made-up results with the shape of real ones, for the tests of the reports."""

from dataclasses import replace

from simulator.plan_result import Change, PlanResult
from simulator.result import CacheResult, Interval, LayerResult, MemoryResult, Result, SweepRow

GIB = 2**30
EXPERT_BYTES = 1_990_656
SPEEDS = (0.1e9, 0.419e9, 0.8e9, 1.5e9, 3.5e9, 7e9)
CAPS = (GIB // 2, GIB, 3 * GIB // 2, 2 * GIB, 3 * GIB)
SMALL_PRINT = {
    "model": "SmallThinker-4B-A0.6B; experts q4_0, attention q4_0, KV cache f16",
    "device": "Raspberry Pi 5, NVMe on PCIe Gen 2 x1",
    "threads": "4",
    "context": "1,024 tokens at the first decode token",
    "tokens": "512 decode tokens, 64 prompt tokens, one stream",
    "start": "warm: the first quarter of the trace is not counted",
    "expert_layout": "gate, up and down in one piece, one read an expert, O_DIRECT",
    "cache": "lru",
    "prefetch": "pre-attention",
    "routing": "recorded from tiny-smallthinker, a stand-in for smallthinker-4b-a0.6b",
}
MEMORY = MemoryResult(
    storage_bytes=2_275_000_000,
    resident_bytes=1_073_000_000,
    dense_bytes=236_500_000,
    kv_bytes=50_331_648,
    cache_bytes=384 * EXPERT_BYTES,
    buffer_bytes=8 * EXPERT_BYTES,
    activation_bytes=1_073_000_000 - 236_500_000 - 50_331_648 - 392 * EXPERT_BYTES,
    ram_cap_bytes=GIB,
    all_experts_bytes=1024 * EXPERT_BYTES,
    dense_file_bytes=2_275_000_000 - 1024 * EXPERT_BYTES,
)


def layers(n: int = 32) -> tuple[LayerResult, ...]:
    """Layers that miss more the deeper they lie."""
    result = []
    for i in range(n):
        wave = (i * 7 % 5) / 5
        t_attention_s = (0.52 + 0.03 * wave) * 1e-3
        t_prefetch_s = (0.35 + 0.085 * i + 0.5 * wave) * 1e-3
        bubble_s = max(0.0, t_prefetch_s - t_attention_s) + 0.15e-3
        miss_frac = min(0.95, 0.4 + 0.015 * i)
        result.append(LayerResult(i, t_attention_s, t_prefetch_s, bubble_s, max(0.0, 0.75 - 0.03 * i), 1 - miss_frac))
    return tuple(result)


def streaming_result() -> Result:
    """SmallThinker-4B at 1 GiB on a slow NVMe: waits for experts."""
    wait_s = sum(layer.bubble_s for layer in layers())
    return Result(
        verdict="streams",
        small_print=SMALL_PRINT,
        memory=MEMORY,
        tokens_per_s=Interval(9.42, 7.61, 11.4),
        ttft_s=Interval(6.31, 5.2, 7.7),
        first_decode_tokens_per_s=4.13,
        bound_by="storage_bandwidth",
        cache=CacheResult(
            "lru",
            384 * EXPERT_BYTES,
            384,
            40_212,
            25_324,
            0.6136,
            25_324 * EXPERT_BYTES,
            0,
            25_324 * EXPERT_BYTES / 512,
        ),
        layers=layers(),
        seconds_per_token={
            "embedding": 4e-6,
            "router": 0.4e-3,
            "attention": sum(layer.t_attention_s for layer in layers()),
            "wait": wait_s,
            "dense_ffn": 0.0,
            "expert_ffn": 21.5e-3,
            "lm_head": 12.1e-3,
        },
        energy_j_per_token=0.87,
        storage_read_bytes_per_s=0.419e9,
        warnings=(
            "The cache is 3.0 laps of the model (128 experts a lap); below one lap a global LRU gets no hits.",
            "The routing is a stand-in: it was recorded from tiny-smallthinker, not from this model.",
            "storage.random_4k_read of the profile is assumed (uncertainty 50 %).",
        ),
    )


def resident_result() -> Result:
    """All experts fit: no read after the start, hidden_frac is None everywhere."""
    memory = replace(
        MEMORY, cache_bytes=MEMORY.all_experts_bytes, buffer_bytes=0, activation_bytes=2_000_000, ram_cap_bytes=4 * GIB
    )
    parts = memory.dense_bytes + memory.kv_bytes + memory.cache_bytes + memory.activation_bytes
    quiet = tuple(
        replace(layer, t_prefetch_s=0.0, bubble_s=0.0, hidden_frac=None, no_miss_frac=1.0) for layer in layers()
    )
    base = streaming_result()
    return replace(
        base,
        verdict="resident",
        memory=replace(memory, resident_bytes=parts),
        tokens_per_s=Interval(19.6, 17.4, 22.1),
        bound_by="ram_bandwidth",
        cache=CacheResult("lru", memory.cache_bytes, 1024, 65_536, 0, 1.0, 0, 0, 0.0),
        layers=quiet,
        seconds_per_token={**base.seconds_per_token, "wait": 0.0},
        energy_j_per_token=None,
        warnings=(),
    )


def floor_result() -> Result:
    """A RAM cap below the dense part."""
    memory = replace(MEMORY, cache_bytes=0, ram_cap_bytes=200 * 2**20, resident_bytes=305_000_000)
    return Result(
        verdict="cannot_run",
        small_print=SMALL_PRINT,
        memory=memory,
        reason="ram_floor",
        arithmetic="dense 225.5 MiB + KV 48.0 MiB + buffers 15.2 MiB + activations 2.0 MiB = 290.9 MiB resident\n"
        "> 200 MiB, the RAM cap: 90.9 MiB are missing",
        warnings=("No expert is cached at this cap.",),
    )


def capacity_result() -> Result:
    """A file larger than the free storage."""
    text = "the file has 2.119 GiB (2,275,000,000 bytes) on storage > 2.00 GB free (2,000,000,000 bytes)"
    return replace(floor_result(), reason="storage_capacity", arithmetic=text, memory=MEMORY, warnings=())


def dense_result() -> Result:
    """A dense model: no experts, no layers to check, no cache."""
    memory = MemoryResult(
        1_200_000_000, 1_260_000_000, 1_200_000_000, 50_000_000, 0, 0, 10_000_000, 4 * GIB, 0, 1_200_000_000
    )
    return replace(
        resident_result(),
        memory=memory,
        cache=None,
        layers=(),
        seconds_per_token={"embedding": 4e-6, "attention": 9e-3, "dense_ffn": 32e-3, "lm_head": 8e-3},
    )


def grid(caps: tuple[int, ...] = CAPS, cache_policy: str = "lru", factor: float = 1.0) -> tuple[SweepRow, ...]:
    """A sweep with every verdict in it; the cell (1 GiB, 419 MB/s) is streaming_result's."""
    rows = []
    for cap in caps:
        for speed in SPEEDS:
            miss = max(0.0, 1 - cap / (2.4 * GIB))
            wait_s = miss * 0.0358e9 / speed / factor
            value = 1 / (0.0509 + wait_s)
            if (cap, speed) == (GIB, 0.419e9) and factor == 1:
                value = 9.42
            verdict = "cannot_run" if cap < GIB else "resident" if not miss else "streams"
            if verdict == "cannot_run":
                rows.append(
                    SweepRow(cap, speed, cache_policy, "pre-attention", verdict, 0, 0, 0, 0, 0, 0, 0, "", "ram_floor")
                )
                continue
            rows.append(
                SweepRow(
                    cap,
                    speed,
                    cache_policy,
                    "pre-attention",
                    verdict,
                    value,
                    0.82 * value,
                    1.2 * value,
                    1 - miss * 0.7,
                    0.35,
                    wait_s,
                    miss * 128 * EXPERT_BYTES,
                    "storage_bandwidth",
                )
            )
    return tuple(rows)


CHANGES = (
    Change(
        "storage, sequential read",
        "419 MB/s",
        "1.23 GB/s",
        2.94,
        True,
        Interval(15.0, 12.2, 18.3),
        "PCIe Gen 3 x1 gives at most 0.81 GB/s",
    ),
    Change("RAM cap", "1 GiB", "1.75 GiB", 1.75, True, Interval(15.3, 12.9, 18.0)),
    Change(
        "bits per weight of the experts",
        "4.5",
        "2.6",
        1.73,
        True,
        Interval(15.1, 12.4, 18.2),
        "quality at this size is not part of the prediction",
    ),
    Change("LM-head predictor", "off", "on", 1.0, False, Interval(10.4, 8.5, 12.6)),
    Change("context", "1,024", "0", 1.0, False, None),
)


def streaming_plan() -> PlanResult:
    """Misses its target of 15 tokens/s."""
    return PlanResult(15.0, "no", streaming_result(), CHANGES, grid())


def resident_plan() -> PlanResult:
    """Reaches its target for sure."""
    return PlanResult(15.0, "yes", resident_result(), (), grid())


def likely_plan() -> PlanResult:
    """The value reaches the target, the low end of the interval does not."""
    return PlanResult(9.0, "likely", streaming_result(), (), grid())


def floor_plan() -> PlanResult:
    """Cannot run at its cap, but could at others."""
    return PlanResult(15.0, "cannot_run", floor_result(), CHANGES[1:2], grid())


def sweep() -> tuple[SweepRow, ...]:
    """Two policies over the same caps and speeds."""
    return grid() + grid(cache_policy="lru-layer", factor=1.4)
