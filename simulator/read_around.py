"""
The compiled inner loops of simulator/page_cache.py: touching pages, faults, and the windows that they read.

After do_fault_around, do_sync_mmap_readahead, page_cache_async_ra and page_cache_ra_order of Linux 6.18 (mm/memory.c,
mm/filemap.c, mm/readahead.c).
"""

import numpy as np

from simulator.cache_passes.compiled import compiled
from simulator.page_cache_lists import (
    AHEAD,
    INACTIVE,
    IS_LRU,
    MAPPED,
    MARKED,
    ORDER,
    RESIDENT,
    SIZE,
    START,
    TOUCHED,
    WINDOW,
    bring_in,
    push,
    unlink,
)

AROUND_PAGES = 16  # fault_around_bytes: a fault maps what is resident of an aligned 64 KiB
# what touching counts
MISSES, MINOR_FAULTS, WINDOWS, REQUESTS, PAGES_READ = range(5)
N_COUNTS = 5


@compiled
def is_free(bits, first, n_pages):  # type: ignore[no-untyped-def]
    """Whether none of the pages is resident."""
    for page in range(first, first + n_pages):  # noqa: SIM110  numba compiles no generator
        if bits[page] & RESIDENT:
            return False
    return True


@compiled
def read_window(lists, numbers, counts):  # type: ignore[no-untyped-def]
    """
    Read what is missing of the window in `numbers`, in folios of its order until a page of it is resident, then page
    by page; the page AHEAD of its end, or the folio that holds it, gets the mark.
    """
    bits = lists[2]
    start, stop = numbers[START], min(numbers[START] + numbers[SIZE], len(bits))
    mark, index, order, in_run = numbers[START] + numbers[SIZE] - numbers[AHEAD], start, numbers[ORDER], False
    counts[WINDOWS] += 1
    while index < stop:
        n_pages = 1 << order
        while n_pages > 1 and (index % n_pages or index + n_pages > stop):
            n_pages >>= 1
        if not is_free(bits, index, n_pages):
            order, in_run = 0, False
            if n_pages == 1:
                index += 1
            continue
        bring_in(lists, numbers, index, n_pages)
        if index <= mark < index + n_pages:
            bits[index] |= MARKED
        counts[PAGES_READ] += n_pages
        counts[REQUESTS] += not in_run
        in_run = True
        index += n_pages


@compiled
def read_around(lists, numbers, counts, page):  # type: ignore[no-untyped-def]
    """A missing page was touched: read the window around it."""
    window = numbers[WINDOW]
    counts[MISSES] += 1
    numbers[START] = max(0, page - window // 2)
    numbers[SIZE], numbers[AHEAD], numbers[ORDER] = window, window // 4, 0
    read_window(lists, numbers, counts)


@compiled
def next_size(size, window):  # type: ignore[no-untyped-def]
    """get_next_ra_size: the window after one of this size."""
    if size < window // 16:
        return 4 * size
    return 2 * size if size <= window // 2 else window


@compiled
def read_ahead(lists, numbers, counts, page):  # type: ignore[no-untyped-def]
    """A mark was touched: read the next window, whose end is aligned to ever larger folios."""
    bits, window, folio = lists[2], numbers[WINDOW], lists[4][page]
    n_pages = lists[3][folio]
    bits[folio] &= ~MARKED
    expected = numbers[START] + numbers[SIZE] - numbers[AHEAD]
    if page == expected // n_pages * n_pages:
        numbers[START] += numbers[SIZE]
        numbers[SIZE] = max(numbers[SIZE], next_size(numbers[SIZE], window))
    else:  # the window in numbers is another one's by now
        start = page + 1
        while start < len(bits) and bits[start] & RESIDENT and start - page <= window:
            start += 1
        if start - page > window or start >= len(bits):
            return
        numbers[START], numbers[SIZE] = start, window
    numbers[ORDER] += 2
    align = 1
    while align * 2 <= min(window, 1 << numbers[ORDER]) and window % (align * 2) == 0:
        align *= 2
    end = numbers[START] + numbers[SIZE]
    if end // align * align > numbers[START]:
        numbers[SIZE] -= end % align
    while 1 << numbers[ORDER] > numbers[SIZE]:
        numbers[ORDER] -= 1
    numbers[AHEAD] = numbers[SIZE]
    if numbers[START] < len(bits):
        read_window(lists, numbers, counts)


@compiled
def map_around(lists, page):  # type: ignore[no-untyped-def]
    """Map the page and what is resident and not marked around it; mapping counts as touching."""
    bits, head = lists[2], lists[4]
    first = page // AROUND_PAGES * AROUND_PAGES
    for other in range(first, min(first + AROUND_PAGES, len(bits))):
        if bits[other] & RESIDENT and not bits[other] & MAPPED and not bits[head[other]] & MARKED:
            bits[other] |= MAPPED | TOUCHED


@compiled
def touch_runs(lists, numbers, runs, counts):  # type: ignore[no-untyped-def]
    """Touch every page of the runs, (n, 2) first page and the one after the last, in order."""
    bits, head = lists[2], lists[4]
    for first, stop in runs:
        for page in range(first, stop):
            if not bits[page] & MAPPED:
                if not bits[page] & RESIDENT:
                    read_around(lists, numbers, counts, page)
                else:
                    counts[MINOR_FAULTS] += 1
                if bits[page] & RESIDENT and bits[head[page]] & MARKED:
                    read_ahead(lists, numbers, counts, page)
                if bits[page] & RESIDENT:
                    map_around(lists, page)
            bits[page] |= TOUCHED
            if numbers[IS_LRU] and bits[page] & RESIDENT:
                unlink(lists, head[page])
                push(lists, INACTIVE, head[page])


def new_counts() -> np.ndarray:
    """Zero of everything that touching counts."""
    return np.zeros(N_COUNTS, np.int64)
