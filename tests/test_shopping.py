"""Prices: the cheapest parts are those of all combinations tried one by one; a price list is read strictly."""

import math
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from conftest import assert_one_line, random_trace, tiny_model

from hardware_profiles.catalog import load_profile
from hardware_profiles.schema import HardwareProfile
from moeplan.errors import InputError
from simulator.inverse.caps import cap_runs
from simulator.inverse.prices import Prices, load_prices
from simulator.inverse.shopping import price_of_ram, shopping
from simulator.inverse.speeds import Speeds
from simulator.question import Question
from simulator.simulate import simulate
from traces.store import write_trace
from traces.synthetic import synthesize

KIB, GIB = 2**10, 2**30
LIST = """\
schema_version: 1
currency: EUR
ram: [{ram_cap: "260 KiB", price: 4}, {ram_cap: "300 KiB", price: 7.5}, {ram_cap: "8 MiB", price: 50}]
storage: [{read: "800 MB/s", price: 5}, {read: "3 GB/s", price: 12}]
compute: [{factor: 1.5, price: 3}]
"""


def device(ram_bytes: int, kind: str = "NVMe PCIe 4 x4") -> HardwareProfile:
    """A device that leaves so much RAM to a program, with a wide link to its storage."""
    profile = load_profile("raspberry-pi-5-nvme")
    size = math.ceil(profile.ram.os_reserved_bytes) + ram_bytes
    parts = {
        "ram": profile.ram.model_copy(update={"size": size}),
        "storage": profile.storage.model_copy(update={"kind": kind}),
    }
    return profile.model_copy(update=parts)


@pytest.fixture(scope="module")
def question() -> Question:
    """Three layers of eight experts, top-2, with hardly any cache, in all the RAM that there is."""
    trace = random_trace(5, 60, 3, 8, 2, 8)
    return Question(tiny_model(), device(220 * KIB), trace, ram_cap_bytes=220 * KIB)


@pytest.fixture
def price_list(tmp_path: Path) -> Path:
    """LIST in a file."""
    path = tmp_path / "prices.yaml"
    path.write_text(LIST, encoding="utf-8")
    return path


def simulated(question: Question) -> tuple[float, float]:
    """Value and low end from the engine."""
    speed = simulate(question, engine="fast").tokens_per_s
    return (0.0, 0.0) if speed is None else (speed.value, speed.low)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_the_cheapest_of_all_combinations_is_found(question: Question, price_list: Path, place: float) -> None:
    """Every RAM, storage and compute tried one by one: the same lowest price, central and cautious."""
    rams = [(220 * KIB, 0.0), (260 * KIB, 4.0), (300 * KIB, 7.5), (8 * 2**20, 50.0)]
    storages: list[tuple[float | None, float]] = [(None, 0.0), (8e8, 5.0), (3e9, 12.0)]
    computes = [(1.0, 0.0), (1.5, 3.0)]
    found = {}
    for (cap, ram), (read, drive), (factor, cpu) in product(rams, storages, computes):
        changed = replace(question, ram_cap_bytes=cap, storage_read_bytes_per_s=read, compute_factor=factor)
        found[ram + drive + cpu, cap, read, factor] = simulated(changed)
    values = sorted(value for value, _ in found.values())
    target = values[0] + place * (values[-1] - values[0])
    shop = shopping(Speeds(question), load_prices(price_list), target)
    for is_cautious, index in ((False, 0), (True, 1)):
        wanted = min((key[0] for key, speeds in found.items() if speeds[index] >= target), default=None)
        bought = [buy for buy in shop.purchases if buy.is_cautious == is_cautious]
        assert (bought[0].price if bought else None) == wanted
        assert [buy.price for buy in bought] == sorted(buy.price for buy in bought)
        assert all((buy.tokens_per_s.low if is_cautious else buy.tokens_per_s.value) >= target for buy in bought)


def test_ram_by_the_gib_is_bought_to_one_expert(question: Question) -> None:
    """The least cap that meets the target is paid for, today's own costs nothing."""
    prices = Prices(schema_version=1, currency="EUR", ram={"per_gib": 1000.0})
    caps = [cap for run in cap_runs(Speeds(question), question) for cap in run if cap > question.cap_bytes]
    target = simulated(replace(question, ram_cap_bytes=caps[len(caps) // 2]))[0] * (1 - 1e-9)
    least = next(cap for cap in caps if simulated(replace(question, ram_cap_bytes=cap))[0] >= target)
    bought = shopping(Speeds(question), prices, target).purchases[0]
    assert bought.ram_cap_bytes == least
    assert bought.price == pytest.approx((least - question.cap_bytes) / GIB * 1000)
    met = shopping(Speeds(question), prices, simulated(question)[1] * 0.9).purchases
    assert [(buy.price, buy.ram_cap_bytes) for buy in met] == [(0.0, question.cap_bytes)] * 2


def test_parts_that_lead_to_nothing_are_left_out(question: Question) -> None:
    """A slower drive, half a processor, less RAM and a part at which a cheaper one is as fast: none is ever offered."""
    useful = Prices(
        schema_version=1, currency="EUR", ram=[{"ram_cap": "300 KiB", "price": 7.5}],
        storage=[{"read": "3 GB/s", "price": 12.0}], compute=[{"factor": 1.5, "price": 3.0}],
    )  # fmt: skip
    useless = Prices(
        schema_version=1, currency="EUR",
        ram=[{"ram_cap": "300 KiB", "price": 7.5}, {"ram_cap": "100 KiB", "price": 0.5}],
        storage=[{"read": "3 GB/s", "price": price} for price in (12.0, 99.0)] + [{"read": "200 MB/s", "price": 0.1}],
        compute=[{"factor": factor, "price": price} for factor, price in ((1.5, 3.0), (0.5, 0.1), (1.0, 0.0))],
    )  # fmt: skip
    target = 1.1 * simulated(question)[0]
    found, wanted = (shopping(Speeds(question), each, target) for each in (useless, useful))
    assert found.purchases == wanted.purchases
    assert wanted.purchases
    assert "4 of the list, no better than what is there, left out" in found.grid
    for is_cautious in (False, True):
        bought = [buy for buy in found.purchases if buy.is_cautious == is_cautious and not buy.note]
        speeds = [buy.tokens_per_s.low if is_cautious else buy.tokens_per_s.value for buy in bought]
        assert all(after >= 1.05 * before for before, after in pairwise(speeds))


def test_a_part_that_the_device_cannot_have_hides_none_that_it_can(question: Question) -> None:
    """Cheap RAM beyond the device's own stands there with its doubt, and so does a dearer drive."""
    prices = Prices(
        schema_version=1, currency="EUR", ram=[{"ram_cap": "8 MiB", "price": 1.0}],
        storage=[{"read": "3 GB/s", "price": 50.0}],
    )  # fmt: skip
    target = 1.02 * simulated(question)[0]
    found = [buy for buy in shopping(Speeds(question), prices, target).purchases if not buy.is_cautious]
    assert [buy.price for buy in found] == [1.0, 50.0]
    assert found[0].note == "more RAM than the 220 KiB that this device leaves"
    assert found[1].note == ""


def test_parts_beyond_the_link_are_never_sold(question: Question) -> None:
    """Left out with a line that says so; what the link carries is still offered."""
    narrow = replace(question, profile=device(220 * KIB, "NVMe PCIe 2 x1"))
    drives = [{"read": "480 MB/s", "price": 9.0}, {"read": "800 MB/s", "price": 1.0}, {"read": "3 GB/s", "price": 2.0}]
    prices = Prices(schema_version=1, currency="EUR", storage=drives, compute=[{"factor": 99.0, "price": 1.0}])
    target = simulated(replace(narrow, storage_read_bytes_per_s=470e6))[0]
    shop = shopping(Speeds(narrow), prices, target)
    value = next(buy for buy in shop.purchases if not buy.is_cautious)
    assert (value.price, value.storage_read_bytes_per_s) == (9.0, 480e6)
    assert all(buy.storage_read_bytes_per_s <= 500e6 for buy in shop.purchases)
    link, ram = shop.left_out
    assert link == "storage 800 MB/s, storage 3.00 GB/s: more than this device's PCIe 2 x1 carries (500 MB/s)"
    assert ram == "CPU and RAM x 99: RAM of 1693 GB/s: faster than any sold today (819 GB/s)"
    assert shopping(Speeds(question), prices, target).left_out == (ram,)


@pytest.mark.parametrize("ram", [{"per_gib": 1000.0}, [{"ram_cap": "8 MiB", "price": 50.0}], ()])
def test_ram_that_the_device_leaves_is_not_sold(question: Question, ram: object) -> None:
    """However RAM is sold, a cap within what the device leaves costs nothing; one above it costs what is above."""
    roomy = replace(question, profile=device(2 * 2**20))
    prices = Prices(schema_version=1, currency="EUR", ram=ram, storage=[{"read": "3 GB/s", "price": 1.0}])
    caps = [cap for run in cap_runs(Speeds(roomy), roomy) for cap in run if cap > question.cap_bytes]
    target = simulated(replace(roomy, ram_cap_bytes=caps[len(caps) // 2]))[0] * (1 - 1e-9)
    value = next(buy for buy in shopping(Speeds(roomy), prices, target).purchases if not buy.is_cautious)
    least = next(cap for cap in caps if simulated(replace(roomy, ram_cap_bytes=cap))[0] >= target)
    assert (value.price, value.ram_cap_bytes, value.note) == (0.0, least, "")
    assert price_of_ram(prices, roomy, 2 * 2**20) == 0.0
    above = {dict: 1000 * 2 / 1024, list: 50.0, tuple: None}[type(ram)]
    assert price_of_ram(prices, roomy, 4 * 2**20) == (None if above is None else pytest.approx(above))


def test_nothing_on_the_list_may_be_enough(question: Question, price_list: Path) -> None:
    """No purchase is an answer."""
    assert shopping(Speeds(question), load_prices(price_list), 1e9).purchases == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("schema_version: 1\ncurrency: EUR\n", "must have a price of ram, storage or compute"),
        ("schema_version: 1\ncurrency: EUR\nram: {per_gib: -1}\n", "3: .*per_gib"),
        ("schema_version: 1\ncurrency: EUR\nram: {per_gb: 4}\n", "per_gib"),
        ("schema_version: 1\ncurrency: EUR\nram: 4\n", "must be {per_gib: PRICE} or a list"),
        ('schema_version: 1\ncurrency: EUR\nstorage: [{read: "800 MB", price: 4}]\n', "read"),
        ('schema_version: 1\ncurrency: EUR\nstorage: [{read: "800 MB/s", price: "4 EUR"}]\n', "must be a number"),
        ("schema_version: 1\ncurrency: EUR\ncompute: [{factor: 0, price: 4}]\n", "factor"),
        ("schema_version: 1\ncurrency: EUR\ncpu: []\n", "every key must be known"),
    ],
)
def test_a_wrong_price_list_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    """File, line and key in one line."""
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=complaint) as caught:
        load_prices(path)
    assert "\n" not in str(caught.value)


def test_the_command_reads_a_price_list(moeplan, tmp_path: Path, price_list: Path) -> None:
    """plan --prices says what to buy; a list that is not there is one line."""
    trace = synthesize(
        n_tokens=40, n_prefill=8, n_moe_layers=32, n_experts=32, top_k=4, zipf=0.8, repeat_frac=0.4, seed=1
    )
    write_trace(trace, tmp_path / "trace.parquet")
    base = ["plan", "--model", "smallthinker-4b-a0.6b", "--hardware", "raspberry-pi-5-nvme", "--engine", "fast"]
    base += ["--trace", str(tmp_path / "trace.parquet"), "--ram-cap", "1GiB"]
    price_list.write_text(LIST.replace("260 KiB", "1.4 GiB").replace("300 KiB", "2 GiB"), encoding="utf-8")
    told = moeplan(*base, "--target-tokens-per-s", "9", "--prices", str(price_list))
    assert told.status == 0
    out = " ".join(told.out.split())
    assert "Nothing to buy for 9 tokens/s: 1." in out
    assert "not for this device: storage 800 MB/s, storage 3.00 GB/s: more than this device's PCIe 2 x1" in out
    missing = moeplan(*base, "--target-tokens-per-s", "9", "--prices", str(tmp_path / "none.yaml"))
    assert_one_line(missing, "none.yaml", "must be a file")


def test_ram_that_the_question_takes_as_there_is_not_doubted_part_by_part(question: Question) -> None:
    """A cap above what the device leaves is said of the whole answer; larger RAM that is sold keeps its doubt."""
    roomy = replace(question, ram_cap_bytes=240 * KIB)
    prices = Prices(
        schema_version=1, currency="EUR", ram=[{"ram_cap": "8 MiB", "price": 1.0}],
        storage=[{"read": "3 GB/s", "price": 50.0}],
    )  # fmt: skip
    bought = shopping(Speeds(roomy), prices, 1.02 * simulated(roomy)[0]).purchases
    notes = {buy.ram_cap_bytes: buy.note for buy in bought if not buy.is_cautious}
    assert notes == {8 * 2**20: "more RAM than the 220 KiB that this device leaves", 240 * KIB: ""}
