import random

from vitreous.serving.inspect.service import LruCache


def test_the_least_recently_used_value_is_dropped_first() -> None:
    cache = LruCache[int](count=3, size=100)
    for key in range(3):
        cache.put(key, key, 10)
    assert cache.get(0) == 0  # used again
    cache.put(3, 3, 10)
    assert [cache.get(key) for key in range(4)] == [0, None, 2, 3]


def test_bytes_are_limited() -> None:
    cache = LruCache[str](count=10, size=100)
    cache.put("a", "A", 60)
    cache.put("b", "B", 40)
    cache.put("c", "C", 1)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.used) == (None, "B", "C", 41)
    cache.put("b", "B2", 99)
    assert (cache.get("b"), cache.get("c"), cache.used) == ("B2", "C", 100)


def test_a_value_larger_than_the_cache_is_not_added() -> None:
    cache = LruCache[str](count=10, size=100)
    cache.put("a", "A", 60)
    cache.put("b", "B", 101)
    assert (cache.get("a"), cache.get("b")) == ("A", None)
    cache.put("a", "too large now", 101)
    assert (cache.get("a"), cache.used, len(cache)) == (None, 0, 0)


def test_the_limits_hold_after_any_sequence_of_calls() -> None:
    cache, generator, sizes = LruCache[int](count=7, size=50), random.Random(0), dict[int, int]()
    for _ in range(2000):
        key = generator.randrange(20)
        if generator.random() < 0.5:
            sizes[key] = generator.randrange(60)
            cache.put(key, key, sizes[key])
        cached = [key for key in list(sizes) if key in cache._values]
        assert len(cache) == len(cached) <= 7
        assert cache.used == sum(sizes[key] for key in cached) <= 50
