import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.data.open import make_splits, stratified
from vitreous.data.sources.base import UNSPLIT, ArraySource, FoundData, Subset, label_problems, split_name


def source(*labels: int, classes: tuple[str, ...] = ("cat", "dog", "owl"), name: str = "x") -> ArraySource:
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    return ArraySource(images, np.array(labels, np.int64), classes, name)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(0, 2**31), st.randoms())
def test_every_class_is_split_by_the_same_fraction(counts: list[int], fraction: float, seed: int, order) -> None:  # type: ignore[no-untyped-def]
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    order.shuffle(labels)
    array = np.array(labels)
    keep, hold = stratified(array, [str(i) for i in range(len(counts))], fraction, seed, "x")
    assert sorted([*keep, *hold]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        held_out = int((array[hold] == label).sum())
        assert 1 <= held_out <= count - 1
        assert abs(held_out - count * fraction) <= 0.5 or held_out in (1, count - 1)


def test_split_depends_only_on_the_seed() -> None:
    labels = np.arange(1000) % 5
    holds = [stratified(labels, "abcde", 0.2, seed, "x")[1].tolist() for seed in (0, 0, 1)]
    assert holds[0] == holds[1]
    overlap = len(set(holds[0]) & set(holds[2]))
    assert 10 < overlap < 90  # 40 of 200 would be expected by chance


def test_error_names_the_class_that_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"pets: .*at least 2 images.* 'dog'"):
        stratified(np.array([0, 0, 1, 2, 2]), ("cat", "dog", "owl"), 0.2, 0, "pets")
    with pytest.raises(ValueError, match=r"'cat', 'owl'"):
        stratified(np.array([0, 1, 1, 2]), ("cat", "dog", "owl"), 0.2, 0, "pets")
    with pytest.raises(ValueError, match="val_fraction is 1"):
        stratified(np.array([0, 0]), ("cat",), 1, 0, "pets")


def test_given_splits_are_kept() -> None:
    train, val, test = source(0, 1), source(1, 0), source(1)
    data = make_splits(FoundData("x", {"train": train, "val": val, "test": test}), 0.2, 0)
    assert (data.train, data.val, data.test) == (train, val, test)
    assert data.note == "train 2, val 2, test 1"


def test_test_split_is_used_as_val_with_a_note() -> None:
    train, test = source(0, 1), source(1, 0)
    data = make_splits(FoundData("x", {"train": train, "test": test}), 0.2, 0)
    assert data.val is test
    assert data.test is None
    assert "test split is used as val" in data.note


def test_images_without_a_split_are_used_for_training() -> None:
    whole, test = source(0, 1), source(1, 0)
    data = make_splits(FoundData("x", {"test": test, UNSPLIT: whole}), 0.2, 0)
    assert (data.train, data.val) == (whole, test)


@pytest.mark.parametrize("part", [UNSPLIT, "train"])
def test_single_split_is_divided(part: str) -> None:
    whole = source(*[0, 1] * 10)
    inner = Subset(whole, np.arange(10, 20))  # a subset of a subset refers to the original source
    data = make_splits(FoundData("x", {part: inner}), 0.2, 3)
    assert "20% of each class, drawn with seed 3" in data.note
    assert isinstance(data.val, Subset)
    assert data.val.source is whole
    names = [s.name(i) for s in (data.train, data.val) for i in range(len(s))]
    assert sorted(names) == [f"x[{i}]" for i in range(10, 20)]
    images = [int(s.image(i).item()) for s in (data.train, data.val) for i in range(len(s))]  # type: ignore[union-attr]
    assert [f"x[{i}]" for i in images] == names


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({UNSPLIT: source(1, 1)}, "only one class, 'dog'"),
        ({"val": source(0, 1)}, "no train split, only val"),
        (
            {"train": source(0, 1), "val": source(0, 2)},
            "val has 'owl', which train lacks; train has 'dog', which val lacks",
        ),
        ({"train": source(0, 1), "val": source(0)}, "train has 'dog', which val lacks"),
        ({"train": source(0, 1), "val": source(0, 1), "test": source(2)}, "test has 'owl', which train lacks"),
    ],
)
def test_label_problems_are_reported(parts: dict, message: str) -> None:  # type: ignore[type-arg]
    found = FoundData("x", parts, same_classes=True)
    assert any(message in problem for problem in label_problems(found))
    with pytest.raises(ValueError, match=f"^x: .*{message}"):
        make_splits(found, 0.2, 0)


def test_val_can_lack_a_rare_class() -> None:
    assert not label_problems(FoundData("x", {"train": source(0, 1), "val": source(0)}))


def test_split_names_can_end_in_a_year() -> None:
    words = ["train2017", "Train_2017", "val-2017", "test2017", "validation1", "train", " TEST "]
    assert [split_name(word) for word in words] == ["train", "train", "val", "test", "val", "train", "test"]
    for word in (
        "training_set",
        "valley",
        "test tube",
        "2017",
        "",
        "2017train",
        "train 2017",
        "train2017b",
        "train_",
        "val__1",
    ):
        assert split_name(word) is None
