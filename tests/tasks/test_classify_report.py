import re
from pathlib import Path

import pytest
import torch

from vitreous.tasks import classify as sections
from vitreous.tasks.classification_metrics import Evaluation


def evaluation(n: int, classes: int, sharpness: float = 1, names: tuple[str, ...] | None = None) -> Evaluation:
    labels = torch.arange(n) % classes
    logits = torch.randn(n, classes)
    logits[torch.arange(n), labels] += 2
    return Evaluation.of(logits * sharpness, labels, names)


def shares(html: str) -> list[float]:
    """The F1 column."""
    return [float(text) for text in re.findall(r"<span>([\d.]+)%</span>", html)]


def test_few_classes_keep_their_order() -> None:
    answered = evaluation(100, 10, names=tuple("jihgfedcba"))
    html = "".join(sections.per_class(answered))
    assert re.findall(r"<bdi>(.)</bdi>", html) == list("jihgfedcba")
    assert shares(html) == [round(100 * (row.f1 or 0), 1) for row in answered.per_class()]
    assert "number" not in html


def test_of_many_classes_the_worst_come_first() -> None:
    html = "".join(sections.per_class(evaluation(4000, 1200)))
    assert shares(html) == sorted(shares(html))
    assert len(shares(html)) == 1000
    assert "970 more classes" in html
    assert "200 more classes are not listed" in html


def test_classes_without_images_come_last() -> None:
    labels = torch.arange(100) % 25
    html = "".join(sections.per_class(Evaluation.of(torch.eye(30)[labels], labels)))
    assert re.findall(r"<bdi>(\d+)</bdi>", html)[-5:] == ["25", "26", "27", "28", "29"]


def test_numbers_are_given_where_plots_show_them_instead_of_names() -> None:
    assert "number" in "".join(sections.per_class(evaluation(10, 2, names=("猫", "dog"))))
    assert "number" in "".join(sections.per_class(evaluation(80, 40, names=tuple(f"n{i}" for i in range(40)))))


def test_the_most_confused_pairs_are_listed() -> None:
    labels, answers = torch.tensor([0] * 8 + [1] * 4 + [2] * 2), [0] * 5 + [2] * 3 + [1] * 3 + [0] + [2] * 2
    html = "".join(sections.confusion(Evaluation.of(torch.eye(3)[answers], labels, ("ant", "bee", "<cat>")), None))
    words = re.sub("<[^>]*>", " ", html).split()
    assert words[-8:] == ["ant", "&lt;cat&gt;", "3", "37.5%", "bee", "ant", "1", "25.0%"]


@pytest.mark.parametrize(
    ("sharpness", "words"),
    [(0.2, "is underconfident"), (30, "is overconfident"), (0, "neither overconfident")],
)
def test_calibration_is_described_in_words(sharpness: float, words: str) -> None:
    answered = evaluation(400, 4, sharpness)
    html = "".join(sections.calibration(answered, None))
    assert words in html
    assert f"{100 * answered.metrics()['ece']:.1f} percentage points" in html


def test_plots_are_shown_if_they_exist(tmp_path: Path) -> None:
    (tmp_path / "x.svg").write_text("<svg/>")
    for section in (sections.confusion, sections.calibration):
        assert "<img" in "".join(section(evaluation(20, 4), tmp_path / "x.svg"))
        assert "<img" not in "".join(section(evaluation(20, 4), None))
