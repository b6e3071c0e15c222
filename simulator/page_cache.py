"""
PageCache: which pages of a mapped file are in RAM, and what a fault reads, as Linux does it.

Three effects that a reader must keep apart:

    residence    a memory limit leaves the file so many pages; who goes is LRU or Linux's two lists
    faults       without read-ahead every missing page is a fault and a request of 4 KiB of its own
    read-ahead   a fault reads a window around the page (half before it, half after); touching the mark at its third
                 quarter, and at the begin of every later one, reads the next window.  What is missing of a window is
                 read in one request for each run of missing pages; what is not needed of it pushes out what is.

Source: do_sync_mmap_readahead, do_async_mmap_readahead and page_cache_async_ra of Linux 6.18 (mm/filemap.c,
mm/readahead.c).  Left out: that a file with a hundred faults more than hits loses its
read-ahead, that reclaim is not exact.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator import page_cache_lists as lists
from simulator import read_around

PAGE_BYTES = 4096  # x86-64, and ARM64 as phones and boards run it

Eviction = Literal["lru", "two-list"]


@dataclass(frozen=True)
class Touched:
    """
    What touching pages cost.

    n_touched: pages that were touched; n_misses: those that were not resident; n_minor_faults: touches that only had to
    map; n_windows: reads issued, by a miss or by a mark; n_requests: runs of missing pages in them; n_pages_read: pages
    that came from storage, needed or not.
    """

    n_touched: int
    n_misses: int
    n_minor_faults: int
    n_windows: int
    n_requests: int
    n_pages_read: int

    @property
    def bytes_read(self) -> int:
        """Bytes from storage."""
        return self.n_pages_read * PAGE_BYTES


class PageCache:
    """A file of n_pages of which at most capacity_pages stay; a fault reads around it window_pages, 1: itself only."""

    def __init__(self, n_pages: int, capacity_pages: int, window_pages: int, eviction: Eviction = "two-list") -> None:
        """Empty."""
        self._lists = lists.new_lists(n_pages)
        self._numbers = np.zeros(lists.N_NUMBERS, np.int64)
        self._numbers[lists.CAPACITY] = max(1, capacity_pages)
        self._numbers[lists.IS_LRU] = eviction == "lru"
        self.set_window(window_pages)

    def set_window(self, window_pages: int) -> None:
        """From now on a fault reads so many pages around its own, 1: itself only; folios in RAM stay what they are."""
        self._numbers[lists.WINDOW] = max(1, window_pages)

    @property
    def n_resident(self) -> int:
        """Pages in RAM."""
        return int(self._numbers[lists.N_RESIDENT])

    def folios(self) -> list[tuple[int, int]]:
        """(first page, pages) of every folio in RAM."""
        _, _, bits, size, head, _ = self._lists
        pages = np.flatnonzero(bits & lists.RESIDENT)
        return [(int(first), int(size[first])) for first in pages[head[pages] == pages]]

    @property
    def page_bits(self) -> np.ndarray:
        """uint8 (n_pages,): the bits of simulator/page_cache_lists.py, not to be written."""
        return self._lists[2]

    def touch(self, runs: np.ndarray) -> Touched:
        """Touch runs of pages in order: int64 (n, 2), the first page and the one after the last."""
        counts = read_around.new_counts()
        read_around.touch_runs(self._lists, self._numbers, runs, counts)
        return Touched(int((runs[:, 1] - runs[:, 0]).sum()), *map(int, counts))
