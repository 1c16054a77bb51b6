import pytest

from vitreous.common.text import duration, roughly
from vitreous.report.html import label, value


def test_fractions_are_percent_for_every_split() -> None:
    for part in ("", "val_", "train_", "test_"):
        assert value(f"{part}top1", 0.5) == "50.0%"
        assert label(f"{part}top1").endswith("top-1")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.000"),
        (0.00012, "1.2e-04"),
        (2.30259, "2.303"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (7, "7"),
        (-0.5, "-0.500"),
    ],
)
def test_numbers_keep_their_significant_digits(number: float, text: str) -> None:
    assert value("loss", number) == text


def test_text_and_nan_are_shown_unchanged() -> None:
    assert value("loss", float("nan")) == "nan"
    assert value("top1", float("inf")) == "inf"
    assert value("note", "best so far") == "best so far"


@pytest.mark.parametrize("seconds", [0, 0.01, 9.94, 9.96, 59.4, 59.6, 60, 3599, 3600, 86_399, 86_400, 10**7])
def test_duration_and_estimate_are_close_to_the_time(seconds: float) -> None:
    units = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    for words in (duration(seconds), roughly(seconds)):
        pieces = words.split()
        shown = sum(float(count) * units[unit] for count, unit in zip(pieces[::2], pieces[1::2], strict=True))
        assert shown == pytest.approx(seconds, rel=0.11, abs=1)
