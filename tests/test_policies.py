"""Cache policies against naive oracles, and the cliffs that follow from the access pattern of a decoder."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import InputError
from simulator.policies import POLICIES, make_policy

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True)), max_size=60
)


def _oracle(rows: list[tuple[int, list[int]]], n_slots: int, per_layer: bool) -> list[tuple[list[int], set]]:
    """LRU by definition: at every row, sort all experts ever used by their last use and keep the latest n_slots."""
    last_use: dict[tuple[int, int], int] = {}
    result, clock, cached = [], 0, set()
    for layer, experts in rows:
        missing = [e for e in experts if (layer, e) not in cached]
        for expert in experts:
            last_use[layer, expert] = clock
            clock += 1
        before = cached | {(layer, e) for e in experts}
        if per_layer:
            share, extra = divmod(n_slots, 3)
            cached = set()
            for index in range(3):
                keys = sorted((k for k in last_use if k[0] == index), key=lambda k: -last_use[k])
                cached |= set(keys[: share + (index < extra)])
        else:
            cached = set(sorted(last_use, key=lambda k: -last_use[k])[:n_slots])
        result.append((missing, before - cached))
    return result


@given(rows=ROWS, n_slots=st.integers(0, 24))
def test_global_lru_is_lru(rows: list, n_slots: int) -> None:
    """Misses and evictions equal those of a sort by last use."""
    policy = make_policy("lru", n_slots, 3)
    for (layer, experts), (missing, evicted) in zip(rows, _oracle(rows, n_slots, False), strict=True):
        got_missing, got_evicted = policy.access_row(layer, experts)
        assert got_missing == missing
        assert set(got_evicted) == evicted


@given(rows=ROWS, n_slots=st.integers(0, 24))
def test_per_layer_lru_is_lru_in_every_layer(rows: list, n_slots: int) -> None:
    """The same with a share of the slots for each layer; evictions carry the layer they belong to."""
    policy = make_policy("lru-per-layer", n_slots, 3)
    for (layer, experts), (missing, evicted) in zip(rows, _oracle(rows, n_slots, True), strict=True):
        got_missing, got_evicted = policy.access_row(layer, experts)
        assert got_missing == missing
        assert set(got_evicted) == evicted


@given(rows=ROWS, n_slots=st.integers(0, 23), name=st.sampled_from(sorted(POLICIES)))
def test_a_larger_cache_never_misses_more(rows: list, n_slots: int, name: str) -> None:
    """Row by row, what a smaller LRU cache hits a larger one hits too."""
    small, large = make_policy(name, n_slots, 3), make_policy(name, n_slots + 1, 3)
    for layer, experts in rows:
        assert set(large.access_row(layer, experts)[0]) <= set(small.access_row(layer, experts)[0])


@given(seed=st.integers(0, 10**6), n_layers=st.integers(2, 5), top_k=st.integers(1, 4), slots_below=st.integers(0, 20))
def test_global_lru_has_no_hits_below_the_cliff(seed: int, n_layers: int, top_k: int, slots_below: int) -> None:
    """With at most (n_layers - 1) * top_k slots nothing survives until its layer comes round, whatever the order."""
    n_slots = max(0, (n_layers - 1) * top_k - slots_below)
    policy = make_policy("lru", n_slots, n_layers)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        for layer in range(n_layers):
            row = rng.choice(6, size=top_k, replace=False).tolist()
            assert policy.access_row(layer, row)[0] == row


@given(n_layers=st.integers(1, 5), top_k=st.integers(1, 4), seed=st.integers(0, 999))
def test_identical_rows_hit_fully_with_one_lap_of_slots(n_layers: int, top_k: int, seed: int) -> None:
    """With n_layers * top_k slots the same experts token after token are all there, in any slot order."""
    policy, rng = make_policy("lru", n_layers * top_k, n_layers), np.random.default_rng(seed)
    for token in range(4):
        for layer in range(n_layers):
            missing, _ = policy.access_row(layer, rng.permutation(top_k).tolist())
            assert (missing == []) == (token > 0)


def test_per_layer_lru_has_its_cliff_at_top_k_slots_a_layer() -> None:
    """top_k slots a layer keep a repeated row, one slot less loses a part of it."""
    for n_slots, n_missing in ((4 * 3, 0), (3 * 3, 1)):
        policy = make_policy("lru-per-layer", n_slots, 3)
        for _ in range(5):
            last = [len(policy.access_row(layer, [5, 1, 7, 2])[0]) for layer in range(3)]
        assert last == [n_missing] * 3


def test_an_unknown_policy_names_the_nearest() -> None:
    """The message helps."""
    with pytest.raises(InputError, match="did you mean 'lru-per-layer'"):
        make_policy("lru-perlayer", 4, 2)
