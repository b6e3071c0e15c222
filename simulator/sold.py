"""
What can be bought today, so that no answer asks for parts that nobody sells without saying so.

Ceilings are those of a link, or what the makers state for their fastest parts of 2025 and 2026.
"""

import re

from hardware_profiles.schema import HardwareProfile
from moeplan.quantity import format_bytes, format_rate
from simulator.plan_result import StorageCeiling
from simulator.question import available_ram_bytes

# PCIe carries so many bytes per second and lane: transfers x what the line code leaves (8b/10b, from generation 3
# 128b/130b) / 8 bits; PCI-SIG, base specifications 1.0 to 5.0.
PCIE_LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
}
M2_LANES = 4  # an M.2 slot for a drive has at most these
# The fastest drive for PCIe 5 x4: Samsung 9100 PRO, 14.8 GB/s sequential read,
# https://www.newegg.com/insider/breaking-the-speed-barrier-a-complete-guide-to-pcie-5-0-ssds-in-2026
FASTEST_NVME_BYTES_PER_S = 14.8e9
# UFS 4.0 as Samsung announced it, 4.2 GB/s sequential read:
# https://neowin.net/news/samsung-debuts-all-new-ufs-40-to-enable-speeds-of-up-to-4200mbs-or-double-that-of-ufs-31
FASTEST_UFS_BYTES_PER_S = 4.2e9
FASTEST_EMMC_BYTES_PER_S = 400e6  # eMMC 5.1 in its mode HS400: 8 bits x 200 MHz x 2 (JEDEC JESD84-B51)
FASTEST_UHS_I_BYTES_PER_S = 104e6  # the bus of UHS-I cards in its mode SDR104 (SD Association, physical layer 3.01)
# The widest RAM of a machine for one person: Apple M3 Ultra, 819.2 GB/s, https://mjtsai.com/blog/2025/03/05/apple-m3-ultra/
# (Apple: over 800 GB/s).
FASTEST_RAM_BYTES_PER_S = 819.2e9


def doubt_of_storage(profile: HardwareProfile, bytes_per_s: float) -> str:
    """Why nobody can buy a storage of that speed for the device; empty where somebody can."""
    ceiling = storage_ceiling(profile.storage.kind)
    if bytes_per_s <= max(ceiling.bytes_per_s, profile.storage.sequential_read.value):
        return ""
    if bytes_per_s > FASTEST_NVME_BYTES_PER_S:
        return f"faster than any drive sold today ({format_rate(FASTEST_NVME_BYTES_PER_S)})"
    return f"more than {ceiling.text} carries ({format_rate(ceiling.bytes_per_s)})"


def storage_ceiling(kind: str) -> StorageCeiling:
    """The ceiling of a profile's `storage.kind`, such as NVMe PCIe 2 x1; of any drive where the kind is not known."""
    link = re.search(r"PCIe (?:Gen )?(\d)(?: ?x(\d+))?", kind)
    if link and int(link[1]) in PCIE_LANE_BYTES_PER_S:
        lanes = int(link[2] or M2_LANES)
        bytes_per_s = lanes * PCIE_LANE_BYTES_PER_S[int(link[1])]
        return StorageCeiling(min(FASTEST_NVME_BYTES_PER_S, bytes_per_s), f"this device's PCIe {link[1]} x{lanes}")
    for word, bytes_per_s in (
        ("UFS", FASTEST_UFS_BYTES_PER_S),
        ("eMMC", FASTEST_EMMC_BYTES_PER_S),
        ("UHS-I", FASTEST_UHS_I_BYTES_PER_S),
    ):
        if word in kind.split():
            return StorageCeiling(bytes_per_s, f"this device's {word}")
    return StorageCeiling(FASTEST_NVME_BYTES_PER_S, "any drive")


def doubt_of_cap(profile: HardwareProfile, cap_bytes: int) -> str:
    """Why a RAM cap is none for the device as bought; empty where it leaves a program so much."""
    available = available_ram_bytes(profile)
    return "" if cap_bytes <= available else f"more RAM than the {format_bytes(available)} that this device leaves"


def doubt_of_ram(profile: HardwareProfile, factor: float) -> str:
    """Why nobody can buy RAM so many times as fast as the device's; empty where somebody can."""
    wanted = profile.ram.peak_bandwidth.value * factor
    if wanted <= FASTEST_RAM_BYTES_PER_S:
        return ""
    return f"RAM of {format_rate(wanted)}: faster than any sold today ({format_rate(FASTEST_RAM_BYTES_PER_S)})"
