"""What lies where in memory, in words and rows: shared by the page, the figure and the terminal."""

from dataclasses import dataclass

from reports.wording import percent, size
from simulator.result import MemoryResult, Result


@dataclass(frozen=True)
class MemoryRow:
    """One line of the storage-and-resident table; None where a part has no bytes on that side by its nature."""

    name: str
    storage_bytes: int | None
    resident_bytes: int


def is_mapped(memory: MemoryResult) -> bool:
    """Whether the operating system maps the model file: then no part of it has RAM of its own."""
    return not memory.dense_bytes


def memory_rows(memory: MemoryResult) -> tuple[MemoryRow, ...]:
    """
    What lies on storage beside what is resident, part by part; the columns add up to the totals.

    A dense model has no rows for experts and buffers; a mapped file is one row.
    """
    experts = memory.storage_bytes - memory.dense_file_bytes
    rows: tuple[MemoryRow, ...] = (
        MemoryRow("dense part", memory.dense_file_bytes, memory.dense_bytes),
        MemoryRow("experts", experts, memory.cache_bytes),
    )
    if is_mapped(memory):
        rows = (MemoryRow("mapped file", memory.storage_bytes, memory.cache_bytes),)
    rows += (
        MemoryRow("KV", None, memory.kv_bytes),
        MemoryRow("read buffers", None, memory.buffer_bytes),
        MemoryRow("activations", None, memory.activation_bytes),
    )
    streams = memory.all_experts_bytes and not is_mapped(memory)
    return tuple(row for row in rows if row.storage_bytes or row.resident_bytes or streams)


def said_first(result: Result) -> str:
    """
    What of the RAM cap goes before all else: that the device has too little RAM, with the arithmetic, or that the cap
    is more than it leaves and the model takes less; empty for a cap within what it leaves.
    """
    if result.beyond_device:
        return f"{result.beyond_device} Every figure here is for a device that has the RAM."
    return result.larger_cap


def memory_sentence(memory: MemoryResult) -> str:
    """Storage and resident bytes, always together."""
    return f"{size(memory.storage_bytes)} on storage, {size(memory.resident_bytes)} resident in RAM"


def memory_finding(memory: MemoryResult) -> str:
    """The finding over the memory figure."""
    experts = memory.all_experts_bytes
    if is_mapped(memory):
        share = memory.cache_bytes / memory.storage_bytes
        return f"{memory_sentence(memory)}: the page cache holds {percent(share)} of the mapped file"
    if not experts:
        return f"{memory_sentence(memory)}: a dense model, all of it resident"
    if memory.cache_bytes >= experts:
        return f"{memory_sentence(memory)}: all experts fit"
    return f"{memory_sentence(memory)}: the cache holds {percent(memory.cache_bytes / experts)} of the experts"
