"""S3-FIFO: a small queue that filters, a main queue, and a memory of what the small one let go (SOSP '23)."""

from collections.abc import Container, Iterable, Sequence

Key = tuple[int, int]  # layer, expert
MOST_USES = 3  # uses since it came in are counted up to here, in two bits
USES_TO_STAY = 2  # uses in the small queue that bring an expert into the main one
SMALL_PART = 10  # the small queue has a tenth of the slots; all three numbers are the paper's


class S3FIFO:
    """
    New experts enter the small queue, those that it let go lately the main queue.

    While the small queue is over its tenth (or the main one empty) its oldest goes: to the main queue if it was used
    twice or more, else out, and is remembered.  Otherwise the main queue's oldest goes out, or round once more for
    each of its uses.  The row's own experts keep their place and are passed over; where a queue has no others, the
    other queue gives.  As many are remembered as the main queue has slots.

    Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
    """

    def __init__(self, n_slots: int, n_layers: int) -> None:
        self.n_slots, self.n_small = n_slots, max(1, n_slots // SMALL_PART)
        self._small: dict[Key, None] = {}  # oldest first
        self._main: dict[Key, None] = {}
        self._uses: dict[Key, int] = {}  # of all cached experts
        self._let_go: dict[Key, int] = {}  # the number of its eviction from the small queue
        self._n_let_go = 0

    def access_row(self, layer: int, experts: Sequence[int]) -> tuple[list[int], list[Key]]:
        """See CachePolicy."""
        missing = []
        for expert in experts:
            if (layer, expert) in self._uses:
                self._uses[layer, expert] = min(MOST_USES, self._uses[layer, expert] + 1)
            else:
                missing.append(expert)
        for expert in missing:
            self._insert((layer, expert))
        kept = {(layer, expert) for expert in experts[max(0, len(experts) - self.n_slots) :]}
        evicted = []
        while len(self._uses) > self.n_slots:
            evicted.append(self._evict(kept))
        return missing, evicted

    def _insert(self, key: Key) -> None:
        number = self._let_go.pop(key, None)
        is_remembered = number is not None and self._n_let_go - number < self.n_slots - self.n_small
        (self._main if is_remembered else self._small)[key] = None
        self._uses[key] = 0

    def _evict(self, kept: Container[Key]) -> Key:
        """Let queues give their oldest until one leaves the cache."""
        while True:
            is_small = len(self._small) > self.n_small or not self._main
            key = _oldest(self._small if is_small else self._main, kept)
            if key is None:
                is_small = not is_small
                key = _oldest(self._small if is_small else self._main, kept)
            assert key is not None
            del (self._small if is_small else self._main)[key]
            uses = self._uses[key]
            if uses >= (USES_TO_STAY if is_small else 1):
                self._uses[key] = 0 if is_small else uses - 1
                self._main[key] = None
                continue
            del self._uses[key]
            if is_small:
                self._n_let_go += 1
                self._let_go[key] = self._n_let_go
            return key


def _oldest(queue: Iterable[Key], kept: Container[Key]) -> Key | None:
    return next((key for key in queue if key not in kept), None)
