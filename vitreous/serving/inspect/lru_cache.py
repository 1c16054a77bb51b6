"""What is kept in memory between two requests, and no more of it than a stated amount."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Shelf(Generic[V]):
    """What was used last stays. The rest goes, longest unused first, when there are too many things or bytes.

    >>> shelf = Shelf[str](count=2, size=100)
    >>> for name in "abc":
    ...     shelf.put(name, name.upper(), size=10)
    >>> shelf.get("a"), shelf.get("c")
    (None, 'C')
    """

    def __init__(self, count: int, size: int):
        self.count, self.size = count, size
        self.used = 0  # bytes
        self._things: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()  # requests look here from one thread, and what they ask for is made in another

    def __len__(self) -> int:
        return len(self._things)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key not in self._things:
                return None
            self._things.move_to_end(key)
            return self._things[key][0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Something larger than the whole shelf is not kept, and takes no other's place."""
        with self._lock:
            self._remove(key)
            if size > self.size:
                return
            self._things[key] = (value, size)
            self.used += size
            while len(self._things) > self.count or self.used > self.size:
                self.used -= self._things.popitem(last=False)[1][1]

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        _, size = self._things.pop(key, (None, 0))
        self.used -= size
