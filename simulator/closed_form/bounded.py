"""What is kept of results that can be found again: those used last, up to so many bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Bounded(Generic[Value]):
    """Drops what was used longest ago when it outgrows its bytes; the last value put in always stays."""

    def __init__(self, most_bytes: int, n_bytes: Callable[[Value], int]) -> None:
        """n_bytes: of a value, the same whenever it is asked for."""
        self._most_bytes, self._n_bytes, self.used_bytes = most_bytes, n_bytes, 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """The value, None where it was never put in or was dropped."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        """Keep the value of a key that is not there."""
        self._values[key] = value
        self.used_bytes += self._n_bytes(value)
        while self.used_bytes > self._most_bytes and len(self._values) > 1:
            _, dropped = self._values.popitem(last=False)
            self.used_bytes -= self._n_bytes(dropped)

    def __len__(self) -> int:
        return len(self._values)
