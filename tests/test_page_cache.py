"""The page cache of a mapped file: who goes against a naive LRU, windows against what a kernel was seen to read."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import page_cache_lists as lists
from simulator.page_cache import PAGE_BYTES, PageCache, Touched

FIRST = 100_000  # a page that is a multiple of 32

# (window, first touched page, touched pages) -> what lies in RAM, relative to the first touched page; seen with mincore
# after touching cold pages of a mapped file one by one on Linux 6.18 (ext4), read-ahead of 128 KiB, and of twice that
SEEN = [
    (32, 0, 1, (-16, 16)),
    (32, 0, 8, (-16, 16)),
    (32, 0, 9, (-16, 48)),
    (32, 0, 17, (-16, 80)),
    (32, 0, 64, (-16, 96)),
    (32, 0, 97, (-16, 160)),
    (32, 0, 162, (-16, 224)),
    (32, 3, 162, (-16, 221)),
    (32, 11, 54, (-16, 85)),
    (64, 0, 1, (-32, 32)),
    (64, 0, 16, (-32, 32)),
    (64, 0, 17, (-32, 96)),
    (64, 0, 33, (-32, 160)),
    (64, 0, 97, (-32, 224)),
    (64, 0, 162, (-32, 288)),
    (64, 3, 162, (-32, 285)),
    (64, 11, 54, (-32, 149)),
    (2048, 0, 162, (-1024, 1024)),
]


def runs(*pages: tuple[int, int]) -> np.ndarray:
    """Runs as touch wants them."""
    return np.array(pages, np.int64).reshape(-1, 2)


def resident(cache: PageCache) -> np.ndarray:
    """The pages in RAM, ascending."""
    return np.flatnonzero(cache.page_bits & lists.RESIDENT)


class NaiveLru:
    """The page that was touched longest ago goes."""

    def __init__(self, capacity: int) -> None:
        self._pages: OrderedDict[int, None] = OrderedDict()
        self._capacity = capacity

    def misses(self, first: int, stop: int) -> int:
        """Touch pages, count those that were missing."""
        n_misses = 0
        for page in range(first, stop):
            n_misses += page not in self._pages
            self._pages[page] = None
            self._pages.move_to_end(page)
            if len(self._pages) > self._capacity:
                self._pages.popitem(last=False)
        return n_misses


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 40),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 13)), min_size=1, max_size=40),
)
def test_lru_without_read_ahead_is_a_naive_lru(capacity: int, touches: list[tuple[int, int]]) -> None:
    """Misses and pages read of every touch are those of the naive one; nothing but missing pages is read."""
    cache, naive = PageCache(64, capacity, 1, "lru"), NaiveLru(capacity)
    for first, n_pages in touches:
        touched = cache.touch(runs((first, first + n_pages)))
        assert touched.n_misses == naive.misses(first, first + n_pages)
        assert touched.n_pages_read == touched.n_requests == touched.n_windows == touched.n_misses
        assert touched.bytes_read == touched.n_misses * PAGE_BYTES
        assert cache.n_resident <= capacity


@pytest.mark.parametrize(("window", "offset", "n_pages", "seen"), SEEN)
def test_windows_are_those_that_a_kernel_reads(window: int, offset: int, n_pages: int, seen: tuple[int, int]) -> None:
    """Touching cold pages in order leaves exactly the pages in RAM that Linux left, after one miss."""
    cache, first = PageCache(2 * FIRST, 2 * FIRST, window), FIRST + offset
    touched = cache.touch(runs((first, first + n_pages)))
    assert (resident(cache) == np.arange(first + seen[0], first + seen[1])).all()
    assert touched.n_pages_read == seen[1] - seen[0]
    assert touched.n_misses == 1


@pytest.mark.parametrize("eviction", ["lru", "two-list"])
@pytest.mark.parametrize("window", [1, 64])
def test_a_file_that_fits_is_read_once(window: int, eviction: str) -> None:
    """Every page comes once, whatever the order; a second lap reads nothing and faults nowhere."""
    cache = PageCache(5000, 5000, window, eviction)  # type: ignore[arg-type]
    order = np.random.default_rng(0).permutation(50) * 100
    first = [cache.touch(runs((start, start + 100))) for start in order]
    assert sum(touched.n_pages_read for touched in first) == cache.n_resident == 5000
    assert cache.touch(runs((0, 5000))) == Touched(5000, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("eviction", ["lru", "two-list"])
def test_never_more_pages_than_the_capacity(eviction: str) -> None:
    """Whatever is touched, with windows or without, at most the capacity is resident, and the counts add up."""
    rng = np.random.default_rng(1)
    for window in (1, 32, 256):
        cache = PageCache(20_000, 3000, window, eviction)  # type: ignore[arg-type]
        for _ in range(200):
            start = int(rng.integers(0, 19_000))
            touched = cache.touch(runs((start, start + int(rng.integers(1, 900)))))
            assert cache.n_resident <= 3000
            assert touched.n_misses + touched.n_minor_faults <= touched.n_touched
            assert touched.n_requests <= touched.n_pages_read
        assert cache.n_resident == np.count_nonzero(cache.page_bits & lists.RESIDENT)


def test_two_lists_keep_what_comes_again_through_a_scan() -> None:
    """
    A hot set that was touched twice while it was resident is on the active list and survives scans that are longer than
    the cache has room for; an LRU, whose reuse distance is then above the capacity, loses all of it every time.
    """
    hot = (0, 400)
    misses = {}
    for eviction in ("lru", "two-list"):
        cache, counts, place = PageCache(60_000, 1000, 1, eviction), [], 1000  # type: ignore[arg-type]
        for lap in range(60):
            counts.append(cache.touch(runs(hot)).n_misses)
            n_scan = 300 if lap < 20 else 700
            cache.touch(runs((place, place + n_scan)))
            place += n_scan
        misses[eviction] = counts
    assert misses["lru"][1:20] == [0] * 19
    assert misses["lru"][21:] == [400] * 39
    assert np.mean(misses["two-list"][21:]) < 40


@pytest.mark.parametrize("eviction", ["lru", "two-list"])
def test_a_folio_comes_and_goes_as_one(eviction: str) -> None:
    """
    Whatever was loaded with large windows and then read page by page: resident pages are whole folios, each an aligned
    power of two of pages, none in two of them; and the first ones left really were larger than a page.
    """
    cache = PageCache(40_000, 20_000, 4096, eviction)  # type: ignore[arg-type]
    cache.touch(runs((0, 40_000)))
    largest = []
    cache.set_window(1)
    rng = np.random.default_rng(4)
    for _ in range(20):
        folios = cache.folios()
        pages = np.concatenate([np.arange(first, first + n_pages) for first, n_pages in folios])
        assert (np.sort(pages) == resident(cache)).all()
        assert all(n_pages & (n_pages - 1) == 0 and first % n_pages == 0 for first, n_pages in folios)
        largest.append(max(n_pages for _, n_pages in folios))
        touched = [cache.touch(runs((place, place + 30))) for place in rng.integers(0, 39_000, 30).tolist()]
        assert all(one.n_pages_read == one.n_misses for one in touched)
    assert largest[0] >= 16


def test_more_memory_never_reads_more_under_lru() -> None:
    """LRU without read-ahead is a stack algorithm."""
    rng = np.random.default_rng(2)
    touches = [(int(start), int(start) + 30) for start in rng.integers(0, 970, 300)]
    read = []
    for capacity in (50, 100, 200, 400, 800, 1000):
        cache = PageCache(1000, capacity, 1, "lru")
        read.append(sum(cache.touch(runs(run)).n_pages_read for run in touches))
    assert read == sorted(read, reverse=True)
    assert read[-1] == len({page for start, stop in touches for page in range(start, stop)})


def test_what_is_read_ahead_in_vain_pushes_out_what_is_needed() -> None:
    """At one memory limit, scattered touches read more bytes the larger the window is, and miss less only at first."""
    rng = np.random.default_rng(3)
    places = rng.integers(0, 1000, 2000) * 100  # 1000 places of 20 pages, far apart
    read = []
    for window in (1, 64, 2048):
        cache = PageCache(100_100, 10_000, window)
        touched = [cache.touch(runs((place, place + 20))) for place in places.tolist()]
        read.append(sum(one.n_pages_read for one in touched[1000:]))
    assert read[0] < 0.5 * read[1] < 0.05 * read[2]
