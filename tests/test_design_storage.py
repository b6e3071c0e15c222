"""What a design asks of RAM and storage: the RAM with which nothing is read, and the storage that can be had."""

from dataclasses import replace

import pytest

from hardware_profiles.catalog import load_profile
from simulator.inverse.design import Routing, design
from simulator.inverse.routing import Locality
from simulator.inverse.shapes import Wish
from simulator.model.catalog import load_model_spec
from simulator.question import Question

LIKE = load_model_spec("smallthinker-4b-a0.6b")
SOME = Locality(0.5, 0.2, "a test")
GIB = 2**30


@pytest.fixture
def question() -> Question:
    """The Raspberry Pi with 700 MiB and a drive of 2 GB/s on a link of 500 MB/s."""
    profile = load_profile("raspberry-pi-5-nvme")
    return Question(LIKE, profile, ram_cap_bytes=700 * 2**20, storage_read_bytes_per_s=2e9)


def test_reads_begin_below_the_largest_need_of_a_design(question: Question) -> None:
    """With exactly that RAM every design fits, with a byte less the one that needs most reads."""
    wish = Wish(LIKE, 4e9, top_k=(2,), ffn_size=(64, 768))
    rich = design(wish, replace(question, ram_cap_bytes=4 * GIB), Routing(None, SOME)).designs
    need = max(found.all_in_ram_bytes for found in rich)
    assert need > max(found.storage_bytes for found in rich)
    for cap, n_reading in ((need, 0), (need - 1, 1)):
        found = design(wish, replace(question, ram_cap_bytes=cap), Routing(None, SOME)).designs
        assert sum(one.verdict == "streams" for one in found) == n_reading


def test_storage_is_sought_up_to_what_the_ram_sustains_and_doubted_beyond_the_link(question: Question) -> None:
    """None where it would take a rate between the RAM's sustained and peak one; beyond the link, the reason."""
    wish, slow = Wish(LIKE, 4e9, top_k=(2,), ffn_size=(64, 768)), replace(question, storage_read_bytes_per_s=None)
    large, small = design(wish, slow, Routing(None, SOME)).designs
    assert (large.holds_from_bytes_per_s, large.holds_from_doubt) == (None, "")
    assert "more than this device's PCIe 2 x1 carries" in small.holds_from_doubt


def test_a_storage_that_was_asked_for_beyond_the_link_is_warned_of(question: Question) -> None:
    """The fixture asks for 2 GB/s on a link of 500 MB/s; the device's own storage is no what-if."""
    wish = Wish(LIKE, 4e9, top_k=(2,), ffn_size=(768,))
    for asked, n_told in ((question, 1), (replace(question, storage_read_bytes_per_s=None), 0)):
        warnings = design(wish, asked, Routing(None, SOME)).warnings
        assert sum("PCIe 2 x1 carries" in text for text in warnings) == n_told
