"""What a sweep says: the fastest that a runtime can reach, with every input that varies; all warnings and reasons."""

import pytest
from sweep_examples import GIB, PRINT, blocked, bound, caps_by_speeds, failed, row

from moeplan.alike import alike, merged
from reports.grid import as_grids
from reports.sweep_charts import charts
from reports.sweep_findings import effects, fastest, split
from reports.sweep_gathered import cannot, sweep_warnings
from reports.sweep_wording import (
    effect_rows,
    map_finding,
    sweep_headline,
    sweep_question,
    sweep_reasons,
    sweep_tone,
)
from reports.wording import number
from traces.synthetic import adapt, synthesize


def reasons(rows: list, target: float | None = None) -> str:
    """All sentences below the headline."""
    return " ".join(sweep_reasons(split(rows), target))


def test_a_bound_is_never_the_fastest() -> None:
    """Belady's row is faster, the best policy that a runtime can follow wins; how far the bound lies above is said."""
    rows = [row(10, cache_policy="lru"), row(12, cache_policy="lfu"), bound(15)]
    assert fastest(split(rows)) == rows[1]
    assert sweep_headline(split(rows)) == "12.0 tokens/s at best"
    assert reasons(rows).startswith("Fastest with cache policy lfu (80 % interval 9.60 to 14.4).")
    assert "belady is told the future: a bound that no runtime reaches, at most 25 % above" in reasons(rows)
    told = effects(split(rows))[0]
    assert (told.most, told.best) == (1.2, rows[1])


def test_bounds_alone_name_no_winner() -> None:
    """A sweep of Belady alone says that its speed is no speed to expect."""
    sweep = split([bound(10, ram_cap_bytes=GIB), bound(12, ram_cap_bytes=2 * GIB)])
    assert sweep_headline(sweep) == "Bounds alone: at most 12.0 tokens/s"
    assert sweep_tone(sweep) == "cannot_run"
    assert "Fastest" not in " ".join(sweep_reasons(sweep))
    assert split([bound(30), row(10)]).bounds[0].tokens_per_s == 30
    assert sweep_headline(split([bound(30), row(10)]), 20.0) == "No: 10.0 tokens/s at best, target 20 tokens/s"


def test_the_winner_has_every_input_that_varies() -> None:
    """Model, device, context and the rest; what gives the same speed is said as 'or more', 'or less', 'any'."""
    rows = [
        row(speed, model=model, device=device, ram_cap_bytes=cap * GIB, context=context, top_k=top_k)
        for model, factor in (("small", 2.0), ("large", 1.0))
        for device in ("slow", "quick")
        for cap in (1, 2, 4)
        for context in (128, 1024)
        for top_k in (2, 4)
        for speed in [factor * min(cap, 2) * (3 if device == "quick" else 1) * (1 if context == 128 else 0.5)]
    ]
    text = reasons(rows)
    wanted = "Fastest with model small, device quick, any top-k, context 128, RAM cap 2 GiB or more (80 % interval"
    assert text.startswith(wanted)
    assert "Slowest that runs: 0.500 tokens/s, with model large, device slow, top-k 2, context 1,024, RAM cap 1" in text
    less = [row(10, n_threads=1), row(10, n_threads=2), row(5, n_threads=4)]
    assert "with threads 2 or less" in reasons(less)


def test_inputs_that_follow_from_others_are_not_named() -> None:
    """Each device's own storage and RAM do not vary by themselves."""
    rows = [
        row(10, device="a", storage_read_bytes_per_s=4e8, ram_cap_bytes=7 * GIB),
        row(20, device="b", storage_read_bytes_per_s=2e9, ram_cap_bytes=15 * GIB),
    ]
    assert [each.name for each in split(rows).inputs] == ["device"]
    assert "Fastest with device b (80" in reasons(rows)


@pytest.mark.parametrize(
    ("rows", "question"),
    [
        ([row()], "How fast does Model 4B run on Board (8 GB) with at most 1 GiB of RAM?"),
        ([row(), row(model="other")], "How fast do 2 models run on Board (8 GB)?"),
        (
            [row(device=device, ram_cap_bytes=cap) for device in "ab" for cap in (GIB, 2 * GIB)],
            "How fast does Model 4B run on 2 devices, by RAM cap?",
        ),
        (
            caps_by_speeds((GIB, 2 * GIB), (1e9, 2e9)),
            "How fast does Model 4B run on Board (8 GB), by RAM cap and storage read?",
        ),
    ],
)
def test_the_question_is_a_sentence(rows: list, question: str) -> None:
    """One model does, two models do; what varies is named."""
    assert sweep_question(split(rows), PRINT) == question


def test_warnings_are_gathered_over_all_scenarios() -> None:
    """Each once, with the scenarios that it concerns; what differs in numbers alone is told as a range."""
    stand_in = "The routing is a stand-in for {}."
    cliff = "Below the cliff: the cache holds {} experts, a lap takes 128."
    rows = [
        row(model=model, ram_cap_bytes=cap * GIB, warnings="\n".join((stand_in.format(model), *more)))
        for model in ("one", "two")
        for cap, more in ((1, [cliff.format(12)]), (2, [cliff.format(60)]), (3, []))
    ]
    assert sweep_warnings(split(rows)) == [
        "model one (3 of 6 scenarios): The routing is a stand-in for one.",
        "RAM cap 1 GiB or 2 GiB (4 of 6 scenarios): Below the cliff: the cache holds 12 to 60 experts, "
        "a lap takes 128.",
        "model two (3 of 6 scenarios): The routing is a stand-in for two.",
    ]
    same = [row(ram_cap_bytes=cap * GIB, warnings="Mind this.") for cap in (1, 2)]
    assert sweep_warnings(split(same)) == ["Mind this."]


def test_warnings_of_several_devices_are_one_where_only_sizes_differ() -> None:
    """What such a device leaves is a size; the counts of one model are not those of another."""
    text = "The RAM cap of 64.0 GiB is more than the {} that this device leaves; the cache holds {} experts."
    rows = [row(device=f"board-{n}", warnings=text.format(f"{n}.00 GiB", 12)) for n in (4, 8)]
    assert sweep_warnings(split(rows)) == [text.format("4.00 GiB to 8.00 GiB", 12)]
    told = sweep_warnings(split([*rows, row(device="board-9", warnings=text.format("9.00 GiB", 60))]))
    assert len(told) == 2
    assert told[1].startswith("device board-9 (1 of 3 scenarios): ")


def test_a_subset_that_no_values_single_out_is_called_some() -> None:
    """Two opposite corners of a square have all values of both inputs; three have more than their values say."""
    rows = caps_by_speeds((GIB, 2 * GIB), (1e9, 2e9))
    corners = [row(**{**vars(each), "warnings": "Mind this."}) for each in (rows[0], rows[3])]
    assert sweep_warnings(split([corners[0], *rows[1:3], corners[1]])) == ["2 of 4 scenarios: Mind this."]
    wide = caps_by_speeds((GIB, 2 * GIB, 3 * GIB), (1e9, 2e9))
    told = [row(**{**vars(each), "warnings": "Mind this."}) for each in wide[:3]]
    expected = "some with RAM cap 1 GiB or 2 GiB (3 of 6 scenarios): Mind this."
    assert sweep_warnings(split([*told, *wide[3:]])) == [expected]


def test_reasons_that_are_alike_are_one_line() -> None:
    """Grouped with a count and the scenarios; numbers as a range, quoted words as a list."""
    short = "the RAM cap is {} MiB: {} MiB are missing"
    rows = [blocked(short.format(128 * n, 300 - 128 * n), ram_cap_bytes=n * 2**27) for n in (1, 2)]
    rows += [row(ram_cap_bytes=GIB)]
    policies = ("fifo", "clock", "sieve", "lfu", "lfu-decay", "s3-fifo", "lru-per-layer")
    rows += [failed(f"cache policy '{name}' cannot run: too many keys", cache_policy=name) for name in policies]
    assert cannot(split(rows)) == [
        "2 of 10 scenarios cannot run (RAM cap 128 MiB or 256 MiB): the RAM cap is 128 MiB to 256 MiB: "
        "44 MiB to 172 MiB are missing",
        "7 of 10 scenarios cannot be asked (cache policy fifo, clock, sieve and 4 more): cache policy 'fifo', 'clock', "
        "'sieve', 'lfu', 'lfu-decay', 's3-fifo', 'lru-per-layer' cannot run: too many keys",
    ]


def test_a_sweep_in_which_nothing_runs_says_why() -> None:
    """The headline, and every reason with its count; no table of differences, no picture."""
    rows = [blocked(f"the RAM cap is {n} MiB: too little", ram_cap_bytes=n * 2**20) for n in (100, 200)]
    sweep = split(rows)
    assert sweep_headline(sweep) == "Nothing here can run"
    assert cannot(sweep) == ["all 2 scenarios cannot run: the RAM cap is 100 MiB to 200 MiB: too little"]
    assert (effect_rows(sweep), charts(sweep)) == ([], [])
    wrong = split([failed("--top-k: must be 4, got 2"), failed("--top-k: must be 4, got 3")])
    assert sweep_headline(wrong) == "Nothing here can be asked"
    assert cannot(wrong) == ["all 2 scenarios cannot be asked: --top-k: must be 4, got 2 to 3"]


def test_more_ram_than_the_device_has_is_no_winner() -> None:
    """Such rows keep their speed as a what-if; they are counted, told why, and the fastest is one that runs there."""
    rows = [row(10, ram_cap_bytes=4 * GIB), row(30, ram_cap_bytes=16 * GIB, reason="Board has 8.00 GiB of RAM.")]
    assert fastest(split(rows)) == rows[0]
    assert "Of 2 scenarios 1 need more RAM" in reasons(rows)
    (line,) = cannot(split(rows))
    assert line.startswith("1 of 2 scenarios cannot run on the device as bought")
    assert line.endswith("(RAM cap 16 GiB): Board has 8.00 GiB of RAM.")
    assert sweep_headline(split(rows[1:])) == "Not with the RAM there is; with more: 30.0 tokens/s"
    assert sweep_headline(split(rows), 20.0).startswith("No: 10.0")


def test_where_the_target_is_met() -> None:
    """How many scenarios reach it, with the least RAM that does, and how many do so safely."""
    rows = caps_by_speeds((GIB, 2 * GIB, 4 * GIB), (1e9, 4e9))  # 1, 2; 2, 4; 4, 8 tokens/s
    sweep = split(rows)
    assert sweep_headline(sweep, 4.0) == "Yes: 3 of 6 scenarios reach 4 tokens/s"
    first = sweep_reasons(sweep, 4.0)[0]
    assert first.startswith("With the least RAM: RAM cap 2 GiB, storage read 4 GB/s, 4.00 tokens/s.")
    assert first.endswith("Of those that reach it, 1 with the low end of the 80 % interval too.")
    assert sweep_headline(sweep, 8.0) == "Likely: 1 of 6 scenarios reaches 8 tokens/s"
    assert [sweep_tone(sweep, target) for target in (4.0, 8.0, 9.0)] == ["yes", "likely", "no"]


def test_what_each_input_changes() -> None:
    """The fastest value over the slowest with all others equal, the largest change first, 'makes no difference'."""
    rows = caps_by_speeds((GIB, 3 * GIB), (1e9, 4e9)) + caps_by_speeds((GIB, 3 * GIB), (1e9, 4e9), layout="split")
    told = [(each.name, each.tried, each.ratio, each.best) for each in effect_rows(split(rows))]
    assert told == [
        ("RAM cap", "1 GiB and 3 GiB", "x 3", "3 GiB, in all 4 cases"),
        ("storage read", "1 GB/s and 4 GB/s", "x 2", "4 GB/s, in all 4 cases"),
        ("expert layout", "bundle and split", "x 1", "makes no difference"),
    ]
    own = [row(s, device=d, ram_cap_bytes=c * GIB) for d, c, s in (("a", 1, 1), ("a", 7, 2), ("b", 1, 1), ("b", 15, 3))]
    caps = next(each for each in effect_rows(split(own)) if each.name == "RAM cap")
    assert caps.best == "the largest, in both cases"


def test_a_map_of_one_colour_says_that_nothing_differs() -> None:
    """All equal, one idle axis, and neither; the inputs that differ from map to map stand in its title."""

    def title(rows: list) -> str:
        return map_finding(as_grids(rows)[0])

    caps, speeds = (GIB, 2 * GIB), (1e9, 4e9)
    flat = [row(7, ram_cap_bytes=cap, storage_read_bytes_per_s=speed) for cap in caps for speed in speeds]
    assert title(flat) == "7.00 tokens/s everywhere; RAM cap and storage read make no difference"
    steep = [row(cap / GIB, ram_cap_bytes=cap, storage_read_bytes_per_s=speed) for cap in caps for speed in speeds]
    assert title(steep) == "1.00 to 2.00 tokens/s; storage read makes no difference"
    rows = [*caps_by_speeds(caps, speeds, device="a", context=8), *caps_by_speeds(caps, speeds, device="b", context=9)]
    rows += caps_by_speeds(caps, speeds, device="b", context=8)
    assert title(rows) == "device a, context 8: 1.00 to 4.00 tokens/s"
    assert title([blocked("no", ram_cap_bytes=cap) for cap in caps]) == "Nothing here can run"


def test_each_map_has_the_values_of_its_own_rows() -> None:
    """Two devices with their own storage beside a common speed: no column of a map is half blank."""
    rows = [
        row(speed / 1e9, device=device, storage_read_bytes_per_s=speed, ram_cap_bytes=cap)
        for device, own, most in (("a", 4e8, 7), ("b", 2e9, 15))
        for speed in (own, 1e9)
        for cap in (GIB, most * GIB)
    ]
    for grid in as_grids(rows):
        assert len(grid.cells) == len(grid.row_values) * len(grid.column_values) == 4


def test_numbers_in_names_are_no_numbers() -> None:
    """Only numbers that stand alone are told as a range; units may differ, words must not."""
    assert merged(["512 MiB of board-3", "1.50 GiB of board-3"]) == "512 MiB to 1.50 GiB of board-3"
    assert len(alike(["rk3588 has 4", "rk3576 has 4"])) == 2
    assert len(alike(["it's 1 of the device's", "it's 2 of the device's"])) == 1
    assert merged(["must be 1,024, got 'a'", "must be 8, got 'b'", "must be 8, got 'a'"]) == (
        "must be 8 to 1,024, got 'a', 'b'"
    )


def test_the_fastest_has_its_speed_where_the_headline_has_another_number() -> None:
    """Beside a target that is reached the headline counts scenarios."""
    rows = [row(10, ram_cap_bytes=GIB), row(26.1, ram_cap_bytes=2 * GIB)]
    assert "Fastest: 26.1 tokens/s (80 % interval 20.9 to 31.3) with RAM cap 2 GiB." in reasons(rows, 20.0)
    assert "Fastest with RAM cap 2 GiB (80 % interval" in reasons(rows)
    assert "Fastest with RAM cap 2 GiB (80 % interval" in reasons(rows, 30.0)


def test_of_several_that_need_as_little_the_fastest_is_named() -> None:
    """What a device's own storage delivers is no need of the question."""
    rows = [
        row(26.1, device="slow", ram_cap_bytes=4 * GIB, storage_read_bytes_per_s=4e8),
        row(32.1, device="quick", ram_cap_bytes=4 * GIB, storage_read_bytes_per_s=2e9),
        row(5, device="quick", ram_cap_bytes=GIB, storage_read_bytes_per_s=2e9),
    ]
    first = sweep_reasons(split(rows), 20.0)[0]
    assert first.startswith("With the least RAM: device quick, RAM cap 4 GiB, 32.1 tokens/s.")
    storages = [row(speed, storage_read_bytes_per_s=speed * 1e8) for speed in (10, 20, 30)]
    assert sweep_reasons(split(storages), 15.0)[0].startswith("With the slowest storage: storage read 2 GB/s, 20.0")


def test_a_bound_is_not_among_the_scenarios_that_could_reach_a_target() -> None:
    """Two of two, not two of four; one whose low end misses it is likely, not sure."""
    rows = [each for cap in (1, 2) for each in (row(10 * cap, ram_cap_bytes=cap * GIB), bound(50, ram_cap_bytes=cap))]
    assert sweep_headline(split(rows), 5.0) == "Yes: all 2 scenarios reach 5 tokens/s"
    assert sweep_headline(split(rows), 18.0) == "Likely: 1 of 2 scenarios reaches 18 tokens/s"
    assert sweep_tone(split(rows), 18.0) == "likely"


def test_models_that_were_refused_do_not_vanish() -> None:
    """They are in the question and in the count, and the reason stands below the headline."""
    rows = [row(10 * cap, ram_cap_bytes=cap * GIB) for cap in (1, 2)]
    rows += [failed("--trace: must fit", model="other", ram_cap_bytes=cap * GIB) for cap in (1, 2)]
    sweep = split(rows)
    assert sweep_question(sweep, PRINT) == "How fast do 2 models run on Board (8 GB), by RAM cap?"
    assert sweep_headline(sweep, 15.0) == "Yes: 1 of 4 scenarios reaches 15 tokens/s"
    assert "2 of 4 scenarios could not be asked (model other): --trace: must fit." in reasons(rows, 15.0)
    rows += [failed("--threads: must be 4", model="third", n_threads=3)]
    assert "could not be asked (model other and third" not in reasons(rows)
    assert "for 2 reasons that stand below." in reasons(rows)


def test_what_is_the_same_in_everything_is_one_row_and_numbers_ascend() -> None:
    """`own` beside the value that it is; the device's own RAM stands where its size belongs."""
    rows = [row(cap, ram_cap_bytes=int(cap * GIB)) for cap in (1, 2, 4, 8, 7.2)]
    sweep = split([*rows, rows[0]])
    assert [each.ram_cap_bytes / GIB for each in sweep.told] == pytest.approx([1, 2, 4, 7.2, 8])
    blank = failed("no", model="other", ram_cap_bytes=0)
    assert effect_rows(split([*rows, blank]))[0].tried == "1 GiB to 8 GiB"


def test_adapted_traces_of_several_top_ks_are_one_warning() -> None:
    """The numbers stand alone, so they are told as a range."""
    made = synthesize(
        n_tokens=8, n_prefill=2, n_moe_layers=4, n_experts=8, top_k=2, zipf=0.5, repeat_frac=0.5, seed=0
    )  # fmt: skip
    rows = []
    for k in (1, 2, 3, 4):
        text = adapt(made, layer_ids=tuple(range(6)), n_experts=16, top_k=k).header.conditions["adapted"]
        rows.append(row(10, top_k=k, warnings=f"The trace was adapted: {text}."))
    (told,) = sweep_warnings(split(rows))
    assert "2 a token, to 6 x 16, 1 to 4 a token:" in told


def test_three_digits_and_never_four() -> None:
    """What rounds up to one is written as one."""
    assert [number(value) for value in (0.9994, 0.9996, 9.996, 0.0104)] == ["0.999", "1.00", "10.0", "0.010"]
