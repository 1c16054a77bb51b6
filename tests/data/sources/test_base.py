import pytest

from vitreous.data.sources.base import cell_text, class_labels, order_labels


def test_integer_labels_are_indices_and_text_labels_are_names() -> None:
    names = ("1", "2", "3")
    assert class_labels([0, 1, 2], names) == ["1", "2", "3"]
    assert class_labels(["1", "2", "0"], names) == ["1", "2", "1"]
    assert class_labels([None, float("nan"), "", -1], names) == ["", "", "", ""]
    assert class_labels([2.0, True], None) == ["2", "True"]


@pytest.mark.parametrize("value", [3, "owl", 1.5])
def test_label_without_a_name_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"label .* is not one of the 2 classes 'cat', 'dog'"):
        class_labels([0, value], ("cat", "dog"))


def test_cell_text() -> None:
    assert [cell_text(value) for value in (" a ", 3, 3.0, 3.5, None, float("nan"))] == ["a", "3", "3", "3.5", "", ""]
    with pytest.raises(ValueError, match="must contain a single path or label"):
        cell_text(["a", "b"])


def test_labels_are_ordered_numerically() -> None:
    assert order_labels(["2", "10", "-1"]) == ("-1", "2", "10")
    assert order_labels(["2", "10", "x"]) == ("10", "2", "x")
