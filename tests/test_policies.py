"""Cache policies against naive oracles, and the cliffs that follow from the access pattern of a decoder."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.errors import InputError
from simulator.policies import OFFLINE_POLICIES, POLICIES, STACK_POLICIES, make_policy
from simulator.policies.lfu_decay import HALVING_LAPS

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


@given(rows=ROWS, n_slots=st.integers(0, 23), name=st.sampled_from(STACK_POLICIES))
def test_a_larger_cache_never_misses_more(rows: list, n_slots: int, name: str) -> None:
    """Row by row, what a smaller cache hits a larger one hits too, where experts are ranked whatever the capacity."""
    small, large = make_policy(name, n_slots, 3, rows), make_policy(name, n_slots + 1, 3, rows)
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


EVERY_POLICY = sorted([*POLICIES, *OFFLINE_POLICIES])
Key = tuple[int, int]
Victim = Callable[[list[Key], set[Key], int], Key]


@given(rows=ROWS, n_slots=st.integers(0, 24), name=st.sampled_from(EVERY_POLICY))
def test_every_policy_keeps_the_contract(rows: list, n_slots: int, name: str) -> None:
    """
    What misses was not there, in row order; what is evicted was; the slots are never exceeded; the row stays, or its
    last experts where it has more than the slots.
    """
    policy, cached = make_policy(name, n_slots, 3, rows), set()
    for layer, experts in rows:
        missing, evicted = policy.access_row(layer, experts)
        assert missing == [expert for expert in experts if (layer, expert) not in cached]
        cached |= {(layer, expert) for expert in experts}
        assert len(evicted) == len(set(evicted))
        assert set(evicted) <= cached
        cached -= set(evicted)
        assert len(cached) <= n_slots
        share = n_slots // 3 + (layer < n_slots % 3) if name == "lru-per-layer" else n_slots
        assert {(layer, expert) for expert in experts[max(0, len(experts) - share) :]} <= cached


@given(rows=ROWS, n_slots=st.integers(0, 24), name=st.sampled_from(sorted(POLICIES)))
def test_no_policy_beats_belady(rows: list, n_slots: int, name: str) -> None:
    """In all misses together; of policies that hold each whole row, which a layer with too few slots does not."""
    longest = max((len(experts) for _, experts in rows), default=0)
    if name == "lru-per-layer" and n_slots // 3 < longest:
        return
    totals = []
    for each in ("belady", name):
        policy = make_policy(each, n_slots, 3, rows)
        totals.append(sum(len(policy.access_row(*row)[0]) for row in rows))
    assert totals[0] <= totals[1]


def _fewest_misses(rows: list, n_slots: int) -> int:
    """The fewest misses of any cache that holds each row: all choices of what to evict are tried."""
    costs: dict[frozenset[Key], int] = {frozenset(): 0}
    for layer, experts in rows:
        row = [(layer, expert) for expert in experts]
        kept = frozenset(row[max(0, len(row) - n_slots) :])
        after: dict[frozenset[Key], int] = {}
        for cached, cost in costs.items():
            total = cost + len(set(row) - cached)
            for state in _subsets(frozenset(cached | set(row)) - kept, n_slots - len(kept)):
                after[state | kept] = min(total, after.get(state | kept, total))
        costs = after
    return min(costs.values())


def _subsets(keys: frozenset[Key], size: int) -> list[frozenset[Key]]:
    return [frozenset(chosen) for chosen in combinations(sorted(keys), min(size, len(keys)))]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 1), st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)), max_size=12
    ),
    n_slots=st.integers(0, 6),
)
def test_belady_is_the_optimum(rows: list, n_slots: int) -> None:
    """Its misses are the fewest that any choice of evictions has."""
    policy = make_policy("belady", n_slots, 2, rows)
    assert sum(len(policy.access_row(*row)[0]) for row in rows) == _fewest_misses(rows, n_slots)


def test_belady_refuses_a_row_that_was_not_foretold() -> None:
    """A replay of other rows is a mistake of the caller."""
    policy = make_policy("belady", 4, 2, [(0, [1, 2])])
    with pytest.raises(ValueError, match="row 0 is not the one"):
        policy.access_row(0, [2, 1])


def test_belady_without_a_future_is_refused_by_name() -> None:
    """A runtime cannot follow it."""
    with pytest.raises(InputError, match="belady knows the future: simulate only"):
        make_policy("belady", 4, 2)


def _assert_equal(name: str, rows: list, n_slots: int, evicted_by: Callable[[int, list[Key]], list[Key]]) -> None:
    """The policy evicts, in order, what evicted_by(row index, keys of the row) says."""
    policy = make_policy(name, n_slots, 3)
    for index, (layer, experts) in enumerate(rows):
        _, evicted = policy.access_row(layer, experts)
        assert evicted == evicted_by(index, [(layer, expert) for expert in experts])


def _kept(row: list[Key], n_slots: int) -> list[Key]:
    return row[len(row) - n_slots :] if n_slots < len(row) else row


@given(rows=ROWS, n_slots=st.integers(0, 24))
def test_fifo_evicts_by_arrival(rows: list, n_slots: int) -> None:
    """Sorted by arrival, the first ones that are not the row's."""
    arrival: dict[Key, int] = {}
    clock = iter(range(10**6))

    def evicted_by(index: int, row: list[Key]) -> list[Key]:
        arrival.update({key: next(clock) for key in row if key not in arrival})
        others = sorted(set(arrival) - set(_kept(row, n_slots)), key=arrival.__getitem__)
        gone = others[: max(0, len(arrival) - n_slots)]
        for key in gone:
            del arrival[key]
        return gone

    _assert_equal("fifo", rows, n_slots, evicted_by)


@given(rows=ROWS, n_slots=st.integers(0, 24))
def test_clock_moves_a_hand_round_a_circle(rows: list, n_slots: int) -> None:
    """The circle stands still in a list and an index moves; new experts come in where the hand is, before it."""
    circle: list[list] = []  # [key, used]
    hand = 0

    def evicted_by(index: int, row: list[Key]) -> list[Key]:
        nonlocal hand
        places = {entry[0]: entry for entry in circle}
        for key in row:
            if key in places:
                places[key][1] = True
        for key in row:
            if key not in places:
                circle.insert(hand, [key, False])
                hand += 1
        gone = []
        while len(circle) > n_slots:
            hand %= len(circle)
            key, used = circle[hand]
            if key not in _kept(row, n_slots) and not used:
                gone.append(circle.pop(hand)[0])
                continue
            circle[hand][1] = used and key in _kept(row, n_slots)
            hand += 1
        return gone

    _assert_equal("clock", rows, n_slots, evicted_by)


@given(rows=ROWS, n_slots=st.integers(0, 24))
def test_sieve_moves_a_hand_along_a_queue(rows: list, n_slots: int) -> None:
    """The same with arrivals: the hand is an arrival number; the next victim is looked for from there on, and round."""
    arrival: dict[Key, int] = {}
    used: set[Key] = set()
    clock = iter(range(10**6))
    hand = 0  # arrival of the expert that the hand is at; the oldest where it is past all of them

    def evicted_by(index: int, row: list[Key]) -> list[Key]:
        nonlocal hand
        used.update(key for key in row if key in arrival)
        arrival.update({key: next(clock) for key in row if key not in arrival})
        gone: list[Key] = []
        while len(arrival) > n_slots:
            key = min((k for k in arrival if arrival[k] >= hand), key=arrival.__getitem__)
            is_newest = arrival[key] == max(arrival.values())
            hand = 0 if is_newest else arrival[key] + 1
            if key in _kept(row, n_slots):
                continue
            if key in used:
                used.remove(key)
                continue
            del arrival[key]
            gone.append(key)
        return gone

    _assert_equal("sieve", rows, n_slots, evicted_by)


@given(rows=ROWS, n_slots=st.integers(0, 24))
def test_s3_fifo_is_two_queues_and_a_memory(rows: list, n_slots: int) -> None:
    """By its definition on plain lists: (queue, arrival there, uses) of each expert and the list of what was let go."""
    state: dict[Key, list] = {}  # [is main, arrival in its queue, uses]
    let_go: list[Key] = []
    clock = iter(range(10**6))
    n_small = max(1, n_slots // 10)

    def evicted_by(index: int, row: list[Key]) -> list[Key]:
        hits = [key for key in row if key in state]
        for key in hits:
            state[key][2] = min(3, state[key][2] + 1)
        n_remembered = n_slots - n_small
        remembered = set(let_go[max(0, len(let_go) - n_remembered) :]) if n_remembered > 0 else set()
        for key in row:
            if key not in hits:
                state[key] = [key in remembered, next(clock), 0]
                let_go[:] = [None if k == key else k for k in let_go]  # type: ignore[misc]
        gone: list[Key] = []
        while len(state) > n_slots:
            small, main = ([k for k in state if state[k][0] is is_main] for is_main in (False, True))
            queues = (small, main) if len(small) > n_small or not main else (main, small)
            free = [[k for k in queue if k not in _kept(row, n_slots)] for queue in queues]
            key = min(free[0] or free[1], key=lambda k: state[k][1])
            is_main, _, uses = state[key]
            if is_main and uses:
                state[key] = [True, next(clock), uses - 1]
            elif not is_main and uses >= 2:
                state[key] = [True, next(clock), 0]
            else:
                del state[key]
                gone.append(key)
                let_go.extend([] if is_main else [key])
        return gone

    _assert_equal("s3-fifo", rows, n_slots, evicted_by)


@settings(deadline=None)
@given(rows=ROWS, n_slots=st.integers(0, 24), repeats=st.integers(1, 8), name=st.sampled_from(["lfu", "lfu-decay"]))
def test_lfu_evicts_by_counts(rows: list, n_slots: int, repeats: int, name: str) -> None:
    """Sorted by uses (halved after every 64 laps with decay), lap of the last use, layer and expert."""
    rows = rows * repeats
    uses: dict[Key, int] = {}
    lap: dict[Key, int] = {}
    cached: set[Key] = set()

    def evicted_by(index: int, row: list[Key]) -> list[Key]:
        if name == "lfu-decay" and index and index % (HALVING_LAPS * 3) == 0:
            uses.update({key: count // 2 for key, count in uses.items()})
        for key in row:
            uses[key], lap[key] = uses.get(key, 0) + 256, index // 3
        cached.update(row)
        others = sorted(cached - set(_kept(row, n_slots)), key=lambda key: (uses[key], lap[key], key))
        gone = others[: max(0, len(cached) - n_slots)]
        cached.difference_update(gone)
        return gone

    _assert_equal(name, rows, n_slots, evicted_by)
