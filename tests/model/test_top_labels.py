"""Top-k labels of class probabilities."""

import pytest
import torch

from vitreous.model.top_labels import top_classes, top_labels


def test_top_labels_are_sorted_and_limited_to_the_classes() -> None:
    [best] = top_labels(torch.tensor([[0.2, 0.5, 0.3]]), ("a", "b", "c"), k=5)
    assert [(label.label, label.index) for label in best] == [("b", 1), ("c", 2), ("a", 0)]
    assert [label.probability for label in best] == pytest.approx([0.5, 0.3, 0.2])


def test_equal_scores_are_ordered_by_class_index() -> None:
    scores = torch.randint(0, 3, (40, 30)).float()
    expected = [sorted(range(30), key=lambda c, row=row: (-row[c], c))[:7] for row in scores.tolist()]  # type: ignore[misc]
    assert top_classes(scores, 7).tolist() == expected
