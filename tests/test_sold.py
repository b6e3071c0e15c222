"""Ceilings of what can be bought: a link, the fastest part of its kind, and what is said beyond them."""

import pytest

from hardware_profiles.catalog import load_profile, profile_names
from simulator.sold import doubt_of_ram, doubt_of_storage, storage_ceiling


@pytest.mark.parametrize(
    ("kind", "bytes_per_s", "text"),
    [
        ("NVMe PCIe 2 x1", 500e6, "this device's PCIe 2 x1"),
        ("NVMe PCIe 3 x1", 8e9 * 128 / 130 / 8, "this device's PCIe 3 x1"),
        ("NVMe PCIe 3", 4 * 8e9 * 128 / 130 / 8, "this device's PCIe 3 x4"),
        ("NVMe on PCIe Gen 4 x4", 4 * 16e9 * 128 / 130 / 8, "this device's PCIe 4 x4"),
        ("NVMe PCIe 5 x4", 14.8e9, "this device's PCIe 5 x4"),
        ("NVMe PCIe 5 x16", 14.8e9, "this device's PCIe 5 x16"),
        ("UFS 4.0", 4.2e9, "this device's UFS"),
        ("eMMC", 400e6, "this device's eMMC"),
        ("microSD UHS-I", 104e6, "this device's UHS-I"),
        ("Apple NVMe", 14.8e9, "any drive"),
        ("probed file system", 14.8e9, "any drive"),
    ],
)
def test_the_ceiling_follows_the_kind_of_storage(kind: str, bytes_per_s: float, text: str) -> None:
    """A PCIe link by generation and lanes, never above the fastest drive; an unknown kind has the fastest drive's."""
    ceiling = storage_ceiling(kind)
    assert ceiling.bytes_per_s == pytest.approx(bytes_per_s)
    assert ceiling.text == text


def test_every_shipped_device_stays_below_its_own_ceiling() -> None:
    """What a device has it can have."""
    for name in profile_names():
        profile = load_profile(name)
        assert profile.storage.sequential_read.value <= storage_ceiling(profile.storage.kind).bytes_per_s, name
        assert doubt_of_storage(profile, profile.storage.sequential_read.value) == ""


def test_beyond_the_ceiling_there_is_a_doubt() -> None:
    """The link's up to the fastest drive, then that nobody sells it; RAM the same."""
    profile = load_profile("raspberry-pi-5-nvme")
    assert doubt_of_storage(profile, 499e6) == ""
    assert doubt_of_storage(profile, 800e6) == "more than this device's PCIe 2 x1 carries (500 MB/s)"
    assert doubt_of_storage(profile, 15e9) == "faster than any drive sold today (14.8 GB/s)"
    assert doubt_of_ram(profile, 4.0) == ""
    assert doubt_of_ram(profile, 64.0).endswith("faster than any sold today (819 GB/s)")
    quick = profile.storage.model_copy(
        update={"sequential_read": profile.storage.sequential_read.model_copy(update={"value": 16e9})}
    )
    assert doubt_of_storage(profile.model_copy(update={"storage": quick}), 15.5e9) == ""
