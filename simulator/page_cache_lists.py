"""
The compiled inner loops of simulator/page_cache.py: folios on linked lists, and who goes.

A folio is what Linux reads, lists and evicts as one: a page, or an aligned run of 2^n pages, known by its first page.
Two ways to choose who goes:

    lru         the folio that was touched longest ago
    two-list    Linux without multi-generational LRU (mm/vmscan.c, mm/workingset.c): a folio enters the inactive list;
                at its old end one that was touched since the last look goes round once more, and on to the active list
                if that was the second time or several of its pages were touched; an untouched one is evicted; one that
                comes back within the active list's length enters the active list; the active list's old end goes to
                the inactive list where that is the shorter one, or where folios came back

A touch through a mapping sets a bit that the next look clears; the lists do not move by it.
"""

import numpy as np

from simulator.cache_passes.compiled import compiled

INACTIVE, ACTIVE = 0, 1
# bits of a page; ON_ACTIVE, SEEN_ONCE and MARKED are kept at a folio's first page
RESIDENT, MAPPED, TOUCHED, ON_ACTIVE, SEEN_ONCE, MARKED = 1, 2, 4, 8, 16, 32
# numbers of a cache, in one int64 array
N_RESIDENT, N_ACTIVE, CAPACITY, AGE, CAME_BACK, IS_LRU, WINDOW, START, SIZE, AHEAD, ORDER = range(11)
N_NUMBERS = 11
BATCH_PAGES = 32  # SWAP_CLUSTER_MAX: pages that one reclaim frees, and looks at in one go
FIRST_PRIORITY = 12  # DEF_PRIORITY: at first a list's length >> 12 pages are looked at, then twice as many, ...
PAGES_PER_GIB = 2**18
ACTIVE_PER_GIB = 10  # inactive_is_low: the active list may be int_sqrt(10 x GiB) times the inactive one

Lists = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def new_lists(n_pages: int) -> Lists:
    """(before, after, bits, size, head, shadow) of an empty cache; behind the pages stand the heads of both lists."""
    ring = np.arange(n_pages + 2, dtype=np.int32)
    return (
        ring,  # the next older folio's ...
        ring.copy(),  # ... and the next younger one's first page
        np.zeros(n_pages, np.uint8),
        np.zeros(n_pages, np.int32),  # pages of the folio, at its first page
        np.zeros(n_pages, np.int32),  # first page of the page's folio
        np.zeros(n_pages, np.int64),  # AGE at eviction, 0: never was in
    )


@compiled
def unlink(lists, folio):  # type: ignore[no-untyped-def]
    """Take a folio off its list."""
    before, after = lists[0], lists[1]
    after[before[folio]] = after[folio]
    before[after[folio]] = before[folio]


@compiled
def push(lists, which, folio):  # type: ignore[no-untyped-def]
    """Put a folio at the young end of a list."""
    before, after = lists[0], lists[1]
    ring = len(lists[2]) + which
    second = after[ring]
    after[ring], before[folio], after[folio], before[second] = folio, ring, second, folio


@compiled
def oldest(lists, which):  # type: ignore[no-untyped-def]
    """The folio at the old end of a list."""
    return lists[0][len(lists[2]) + which]


@compiled
def evict(lists, numbers, folio):  # type: ignore[no-untyped-def]
    """Forget a folio of the inactive list and remember when that was. Pages freed."""
    bits, size, shadow = lists[2], lists[3], lists[5]
    unlink(lists, folio)
    n_pages = size[folio]
    numbers[AGE] += n_pages
    for page in range(folio, folio + n_pages):
        bits[page] = 0
        shadow[page] = numbers[AGE]
    numbers[N_RESIDENT] -= n_pages
    return n_pages


@compiled
def touched_pages(lists, folio):  # type: ignore[no-untyped-def]
    """How many pages of a folio were touched since the last look; the look clears that."""
    bits, n_touched = lists[2], 0
    for page in range(folio, folio + lists[3][folio]):
        if bits[page] & TOUCHED:
            n_touched += 1
            bits[page] &= ~TOUCHED
    return n_touched


@compiled
def activate(lists, numbers, folio):  # type: ignore[no-untyped-def]
    """Put a folio that is on no list on the active one."""
    lists[2][folio] |= ON_ACTIVE
    push(lists, ACTIVE, folio)
    numbers[N_ACTIVE] += lists[3][folio]
    numbers[AGE] += lists[3][folio]


@compiled
def look_at_inactive(lists, numbers, n_most):  # type: ignore[no-untyped-def]
    """Look at so many pages at the old end: evict, once more round, or on to active. Pages freed."""
    bits, n_seen, n_freed = lists[2], 0, 0
    while n_seen < n_most and numbers[N_RESIDENT] > numbers[N_ACTIVE]:
        folio = oldest(lists, INACTIVE)
        n_seen += lists[3][folio]
        n_touched = touched_pages(lists, folio)
        if not n_touched:
            n_freed += evict(lists, numbers, folio)
            continue
        unlink(lists, folio)
        if n_touched > 1 or bits[folio] & SEEN_ONCE:
            bits[folio] &= ~SEEN_ONCE
            activate(lists, numbers, folio)
        else:
            bits[folio] |= SEEN_ONCE
            push(lists, INACTIVE, folio)
    return n_freed


@compiled
def look_at_active(lists, numbers, n_most):  # type: ignore[no-untyped-def]
    """Move so many pages from the active list's old end to the inactive list."""
    n_seen = 0
    while n_seen < n_most and numbers[N_ACTIVE] > 0:
        folio = oldest(lists, ACTIVE)
        n_seen += lists[3][folio]
        touched_pages(lists, folio)
        unlink(lists, folio)
        lists[2][folio] &= ~ON_ACTIVE
        push(lists, INACTIVE, folio)
        numbers[N_ACTIVE] -= lists[3][folio]


@compiled
def inactive_is_low(numbers):  # type: ignore[no-untyped-def]
    """Whether the active list is longer than it may be."""
    gib = numbers[N_RESIDENT] // PAGES_PER_GIB
    ratio = int(np.sqrt(ACTIVE_PER_GIB * gib)) if gib else 1
    return (numbers[N_RESIDENT] - numbers[N_ACTIVE]) * ratio < numbers[N_ACTIVE]


@compiled
def reclaim(lists, numbers):  # type: ignore[no-untyped-def]
    """Free a folio (lru) or a batch of them (two-list)."""
    if numbers[IS_LRU]:
        evict(lists, numbers, oldest(lists, INACTIVE))
        return
    n_freed, priority = 0, FIRST_PRIORITY
    while n_freed < BATCH_PAGES and numbers[N_RESIDENT] > 0:
        may_deactivate = numbers[CAME_BACK] > 0 or inactive_is_low(numbers)
        n_inactive = (numbers[N_RESIDENT] - numbers[N_ACTIVE]) >> priority
        n_active = numbers[N_ACTIVE] >> priority if may_deactivate else 0
        while (n_inactive > 0 or n_active > 0) and n_freed < BATCH_PAGES:
            if n_inactive > 0:
                n_freed += look_at_inactive(lists, numbers, min(BATCH_PAGES, n_inactive))
                n_inactive -= BATCH_PAGES
            if n_active > 0:
                look_at_active(lists, numbers, min(BATCH_PAGES, n_active))
                n_active -= BATCH_PAGES
        priority = max(0, priority - 1)
    numbers[CAME_BACK] = 0


@compiled
def bring_in(lists, numbers, folio, n_pages):  # type: ignore[no-untyped-def]
    """Make a run of missing pages resident, as one folio."""
    _, _, bits, size, head, shadow = lists
    while numbers[N_RESIDENT] + n_pages > numbers[CAPACITY] and numbers[N_RESIDENT] > 0:
        reclaim(lists, numbers)
    size[folio] = n_pages
    for page in range(folio, folio + n_pages):
        bits[page] = RESIDENT
        head[page] = folio
    numbers[N_RESIDENT] += n_pages
    away = numbers[AGE] - shadow[folio]
    if shadow[folio] and away <= numbers[N_ACTIVE] and not numbers[IS_LRU]:
        activate(lists, numbers, folio)
        numbers[CAME_BACK] += 1
    else:
        push(lists, INACTIVE, folio)
