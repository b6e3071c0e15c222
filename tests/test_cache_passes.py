"""The compiled cache passes equal the policies row by row, for any rows, capacities and scopes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from simulator.cache_passes.miss_counts import PASSES, miss_counts
from simulator.cache_passes.rows import MAX_KEYS, Rows, rows_of, rows_of_steps, rows_of_trace
from simulator.cache_passes.stack_distances import NEVER, PIECE, Ring, sorted_distances, stack_distances
from simulator.policies import OFFLINE_POLICIES, POLICIES, make_policy
from simulator.policies.lfu_decay import HALVING_LAPS
from simulator.scenario import steps_of
from tests.conftest import make_trace, random_trace

Pairs = list[tuple[int, list[int]]]


def random_pairs(seed: int, n_rows: int, n_layers: int, n_experts: int, longest: int, skew: float) -> Pairs:
    """Rows of layers in any order with 0 to longest experts, popular ones more often."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, n_experts + 1) ** -skew
    weights /= weights.sum()
    layers, lengths = rng.integers(0, n_layers, n_rows), rng.integers(0, longest + 1, n_rows)
    draw = lambda n: rng.choice(n_experts, size=n, replace=False, p=weights).tolist()  # noqa: E731
    return [(int(layer), draw(n)) for layer, n in zip(layers, lengths, strict=True)]


def misses_of_policy(name: str, pairs: Pairs, n_slots: int, n_layers: int) -> list[int]:
    """What the policy's own code misses in every row."""
    policy = make_policy(name, n_slots, n_layers, pairs)
    return [len(policy.access_row(layer, experts)[0]) for layer, experts in pairs]


@pytest.mark.parametrize("policy", PASSES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_rows=st.integers(0, 250),
    shape=st.sampled_from([(1, 1), (1, 9), (3, 8), (4, 70)]),
    whole=st.booleans(),
    skew=st.sampled_from([0.0, 1.2]),
    capacities=st.lists(st.integers(0, 300), max_size=5),
    n_threads=st.integers(1, 2),
)
def test_a_pass_misses_what_the_policy_misses(
    policy: str,
    seed: int,
    n_rows: int,
    shape: tuple[int, int],
    whole: bool,
    skew: float,
    capacities: list[int],
    n_threads: int,
) -> None:
    """
    Row by row, at every capacity: zero, below a row, above all experts, repeated, in any order; rows of no experts, of
    a few and of whole layers (a prompt's union).
    """
    n_layers, n_experts = shape
    pairs = random_pairs(seed, n_rows, n_layers, n_experts, n_experts if whole else min(3, n_experts), skew)
    counts = miss_counts(rows_of(pairs, n_layers, n_experts), policy, capacities, n_threads=n_threads)
    assert counts.shape == (n_rows, len(capacities))
    for column, n_slots in enumerate(capacities):
        assert counts[:, column].tolist() == misses_of_policy(policy, pairs, n_slots, n_layers)


def test_every_policy_has_a_pass() -> None:
    """And no pass is of an unknown policy."""
    assert sorted(PASSES) == sorted([*POLICIES, *OFFLINE_POLICIES])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n_rows=st.integers(0, 80), longest=st.sampled_from([2, 12]), per_layer=st.booleans())
def test_distances_are_counted_by_hand(seed: int, n_rows: int, longest: int, per_layer: bool) -> None:
    """The number of distinct keys (of the layer) between the row and the key's last use, by sets; NEVER at first."""
    pairs = random_pairs(seed, n_rows, 3, 12, longest, 0.5)
    rows = rows_of(pairs, 3, 12)
    found, ordered = stack_distances(rows, per_layer=per_layer), sorted_distances(rows, per_layer=per_layer)
    history: list[tuple[int, int]] = []
    at = 0
    for layer, experts in pairs:
        expected = []
        for expert in experts:
            since = history[len(history) - history[::-1].index((layer, expert)) :] if (layer, expert) in history else []
            distance = len({key for key in since if not per_layer or key[0] == layer})
            expected.append(distance if (layer, expert) in history else NEVER)
        assert found[at : at + len(experts)].tolist() == expected
        assert ordered[at : at + len(experts)].tolist() == sorted(expected)
        history += [(layer, expert) for expert in experts]
        at += len(experts)


@pytest.mark.parametrize("per_layer", [False, True])
def test_sorted_distances_give_every_capacity(per_layer: bool) -> None:
    """Misses at n slots are the distances of n and more."""
    pairs = random_pairs(5, 400, 4, 16, 4, 0.8)
    rows = rows_of(pairs, 4, 16)
    distances = sorted_distances(rows, per_layer=per_layer)
    row_of = np.repeat(np.arange(rows.n_rows), rows.n_used)
    name, n_layers = ("lru-per-layer", 4) if per_layer else ("lru", 1)
    for n_slots in range(0, 66, 5 if not per_layer else 4):
        counts = np.bincount(row_of[distances >= n_slots // n_layers], minlength=rows.n_rows)
        np.testing.assert_array_equal(counts, miss_counts(rows, name, [n_slots])[:, 0])


def test_a_ring_that_fills_up_many_times_stays_exact() -> None:
    """After several laps of the ring's slots, with rows longer than a piece; 300 experts need uint16 counts."""
    n_layers, n_experts = 20, 300
    pairs = random_pairs(1, 1200, n_layers, n_experts, n_experts, 0.4)
    rows = rows_of(pairs, n_layers, n_experts)
    assert rows.longest > 2**8 > PIECE
    assert len(rows.keys) > 4 * 512 * len(Ring(rows.n_keys).ranks)
    capacities = [0, 100, 2000, 4500, 6000]
    counts = miss_counts(rows, "lru", capacities)
    assert counts.dtype == np.uint16
    for column, n_slots in enumerate(capacities):
        assert counts[:, column].tolist() == misses_of_policy("lru", pairs, n_slots, n_layers)
        np.testing.assert_array_equal(counts[:, column], miss_counts(rows, "lru", [n_slots])[:, 0])


def test_counts_are_halved_as_the_policy_does() -> None:
    """LFU with decay over several halvings."""
    pairs = random_pairs(2, HALVING_LAPS * 2 * 5, 2, 12, 3, 0.8)
    counts = miss_counts(rows_of(pairs, 2, 12), "lfu-decay", [5, 9, 17])
    for column, n_slots in enumerate([5, 9, 17]):
        assert counts[:, column].tolist() == misses_of_policy("lfu-decay", pairs, n_slots, 2)
    assert (counts != miss_counts(rows_of(pairs, 2, 12), "lfu", [5, 9, 17])).any()


@pytest.mark.parametrize("policy", PASSES)
def test_more_capacities_than_fit_at_once(policy: str) -> None:
    """300 capacities go in groups, and each is what it is alone."""
    pairs = random_pairs(3, 60, 8, 40, 4, 0.6)
    rows = rows_of(pairs, 8, 40)
    counts = miss_counts(rows, policy, range(300))
    for n_slots in (0, 1, 37, 64, 255, 299):
        np.testing.assert_array_equal(counts[:, n_slots], miss_counts(rows, policy, [n_slots])[:, 0])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n_prefill=st.integers(0, 20), chunk_tokens=st.integers(1, 9))
def test_rows_of_a_trace_are_those_of_its_steps(seed: int, n_prefill: int, chunk_tokens: int) -> None:
    """Prompts in chunks and decode tokens, over requests, in the order in which a scenario has them."""
    one = random_trace(seed, 20, 3, 8, 2)
    phase = np.concatenate([np.arange(20) >= n_prefill, np.arange(20) >= 20 - n_prefill]).astype(np.uint8)
    trace = make_trace(
        np.concatenate([one.expert_ids, one.expert_ids[::-1]]),
        8,
        phase=phase,
        request_id=np.repeat(np.int32([4, 2]), 20),
        position=np.tile(np.arange(20, dtype=np.int32), 2),
    )
    found = rows_of_trace(trace, chunk_tokens)
    expected = rows_of_steps(steps_of(trace, context=None, chunk_tokens=chunk_tokens), 3, 8)
    np.testing.assert_array_equal(found.keys, expected.keys)
    np.testing.assert_array_equal(found.offsets, expected.offsets)


def test_what_does_not_fit_is_refused() -> None:
    """Too many keys, an unknown policy, a negative capacity: one line each; rows that are none: a mistake of ours."""
    with pytest.raises(InputError, match=f"at most {MAX_KEYS}"):
        rows_of([], 129, 256)
    rows = rows_of([(0, [1])], 1, 4)
    with pytest.raises(InputError, match="did you mean 'lfu'"):
        miss_counts(rows, "lfuu", [1])
    with pytest.raises(InputError, match="0 or more"):
        miss_counts(rows, "lru", [-1])
    with pytest.raises(ValueError, match="below 4"):
        Rows(np.array([4], np.uint16), np.array([0, 1], np.uint32), 1, 4)


def test_the_second_start_compiles_nothing(tmp_path: Path) -> None:
    """What one process compiled the next one finds on disk, and changes nothing there."""
    code = (
        "from simulator.cache_passes.miss_counts import miss_counts;"
        "from simulator.cache_passes.rows import rows_of;"
        "rows = rows_of([(0, [1, 2]), (1, [0])] * 9, 2, 4);"
        "print([int(miss_counts(rows, 'lru', c).sum()) for c in ([2], [2, 3])])"
    )
    states = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent.parent,
            env={"NUMBA_CACHE_DIR": str(tmp_path), "PATH": ""},
        )
        states.append((done.stdout, sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.rglob("*.nb*"))))
    assert states[0] == states[1]
    assert len(states[0][1]) > 4
