"""Text of metrics for the terminal and the report: `top1: 0.9777` is "top-1 97.8%"."""

import math

# Key in metrics.json and metrics.jsonl -> name, and True for fractions, which are shown in percent.
NAMES = {
    "top1": ("top-1", True),
    "top5": ("top-5", True),
    "miou": ("mean IoU", True),
    "pixel_accuracy": ("pixel accuracy", True),
    "boundary_f": ("boundary F", True),
    "knn": ("k-NN", True),
    "linear": ("linear probe", True),
    "fewshot": ("few-shot", True),
    "ece": ("calibration error", True),
    "loss": ("loss", False),
    "lr": ("learning rate", False),
    "images_per_second": ("images/s", False),
    "seconds": ("time", False),
    "count": ("images", False),
}
# "val_top1" is the metric "top1" on the validation split.
SPLITS = {"train_": "training ", "val_": "validation ", "test_": "test "}


def label(key: str) -> str:
    """Name of a metric.

    >>> label("top1"), label("val_top1"), label("my_metric")
    ('top-1', 'validation top-1', 'my metric')
    """
    split, base = _split(key)
    return split + NAMES.get(base, (base.replace("_", " "), False))[0]


def value(key: str, number: float | str) -> str:
    """Value of a metric as text.

    >>> value("val_top1", 0.97765), value("loss", 0.12345), value("count", 1797), value("seconds", 200)
    ('97.8%', '0.123', '1,797', '3 min 20 s')
    """
    if isinstance(number, str):
        return number
    base = _split(key)[1]
    if not math.isfinite(number):
        return str(number)
    if base == "seconds":
        return duration(number)
    if NAMES.get(base, ("", False))[1]:
        return f"{number:.1%}"
    if isinstance(number, int) or abs(number) >= 100:
        return f"{number:,.0f}"
    if base == "lr" or 0 < abs(number) < 0.001:
        return f"{number:.1e}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.3f}"


def percent(fraction: float | None) -> str:
    """A fraction in percent, or a dash if it is not defined."""
    return "-" if fraction is None else f"{fraction:.1%}"


def duration(seconds: float) -> str:
    """Time in its two largest units.

    >>> duration(0.4), duration(59.7), duration(125), duration(7260), duration(200_000)
    ('0.4 s', '1 min', '2 min 5 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    units, rest = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)], round(seconds)
    largest = next(i for i, (_, length) in enumerate(units) if rest >= length)
    words = []
    for unit, length in units[largest : largest + 2]:
        count, rest = divmod(rest, length)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words)


def roughly(seconds: float) -> str:
    """Estimated time, rounded.

    >>> roughly(0.2), roughly(42), roughly(170), roughly(9000), roughly(400_000)
    ('1 s', '40 s', '3 min', '2.5 h', '4.6 d')
    """
    if seconds < 57:
        return f"{round(seconds, -1 if seconds >= 20 else 0) or 1:.0f} s"
    if seconds < 90 * 60:
        return f"{max(seconds / 60, 1):.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36 * 3600 else f"{seconds / 86_400:.1f} d"


def _split(key: str) -> tuple[str, str]:
    """Split a key into its split and its metric: ("validation ", "top1") for "val_top1"."""
    for prefix, split in SPLITS.items():
        if key.startswith(prefix):
            return split, key.removeprefix(prefix)
    return "", key
