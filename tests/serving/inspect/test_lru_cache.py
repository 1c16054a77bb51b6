import random

from vitreous.serving.inspect.lru_cache import Shelf


def test_the_longest_unused_goes_first() -> None:
    shelf = Shelf[int](count=3, size=100)
    for key in range(3):
        shelf.put(key, key, 10)
    assert shelf.get(0) == 0  # used again
    shelf.put(3, 3, 10)
    assert [shelf.get(key) for key in range(4)] == [0, None, 2, 3]


def test_bytes_count_too() -> None:
    shelf = Shelf[str](count=10, size=100)
    shelf.put("a", "A", 60)
    shelf.put("b", "B", 40)
    shelf.put("c", "C", 1)
    assert (shelf.get("a"), shelf.get("b"), shelf.get("c"), shelf.used) == (None, "B", "C", 41)
    shelf.put("b", "B2", 99)
    assert (shelf.get("b"), shelf.get("c"), shelf.used) == ("B2", "C", 100)


def test_what_is_larger_than_the_shelf_pushes_nothing_out() -> None:
    shelf = Shelf[str](count=10, size=100)
    shelf.put("a", "A", 60)
    shelf.put("b", "B", 101)
    assert (shelf.get("a"), shelf.get("b")) == ("A", None)
    shelf.put("a", "too large now", 101)
    assert (shelf.get("a"), shelf.used, len(shelf)) == (None, 0, 0)


def test_it_never_holds_more_than_it_says() -> None:
    shelf, generator, sizes = Shelf[int](count=7, size=50), random.Random(0), dict[int, int]()
    for _ in range(2000):
        key = generator.randrange(20)
        if generator.random() < 0.5:
            sizes[key] = generator.randrange(60)
            shelf.put(key, key, sizes[key])
        held = [key for key in list(sizes) if key in shelf._things]
        assert len(shelf) == len(held) <= 7
        assert shelf.used == sum(sizes[key] for key in held) <= 50
