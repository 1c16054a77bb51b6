"""A cache with a limit on the number and on the bytes of its values."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class LruCache(Generic[V]):
    """Drops the least recently used values when there are too many values or bytes.

    >>> cache = LruCache[str](count=2, size=100)
    >>> for name in "abc":
    ...     cache.put(name, name.upper(), size=10)
    >>> cache.get("a"), cache.get("c")
    (None, 'C')
    """

    def __init__(self, count: int, size: int):
        self.count, self.size = count, size
        self.used = 0  # bytes
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()  # read in the event loop, filled in a worker thread

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Add a value, unless it is larger than the whole cache."""
        with self._lock:
            self._remove(key)
            if size > self.size:
                return
            self._values[key] = (value, size)
            self.used += size
            while len(self._values) > self.count or self.used > self.size:
                self.used -= self._values.popitem(last=False)[1][1]

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        _, size = self._values.pop(key, (None, 0))
        self.used -= size
