import torch

from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.label_errors import FOLDS, find_label_errors, folds, out_of_sample


def clusters(count: int = 200, classes: int = 4, spread: float = 0.4, seed: int = 0) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 16, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(count) % classes
    return FeatureSet(centres[labels] + spread * torch.randn(count, 16, generator=generator), labels)


def test_wrong_labels_are_ranked_first_with_the_true_class_as_suggestion() -> None:
    clean = clusters()
    wrong = torch.tensor([3, 50, 77, 120, 199])
    labels = clean.labels.clone()
    labels[wrong] = (labels[wrong] + 1) % 4
    found = find_label_errors(FeatureSet(clean.features, labels), 4)
    assert set(found.confidence.argsort()[:5].tolist()) == set(wrong.tolist())
    likely = found.ranked().tolist()
    assert likely
    assert set(likely) <= set(wrong.tolist())
    assert found.confidence[likely].tolist() == sorted(found.confidence[likely].tolist())
    assert torch.equal(found.suggested[wrong], clean.labels[wrong])
    assert (found.confidence[wrong] < 0.2).all()


def test_separable_classes_have_no_label_errors() -> None:
    found = find_label_errors(clusters(spread=0.1), 4)
    assert found.accuracy == 1
    assert not found.likely.any()


def test_probabilities_are_out_of_sample() -> None:
    """With more features than images, a classifier fits any labels, but predicts random ones no better than chance."""
    generator = torch.Generator().manual_seed(0)
    noise = FeatureSet(torch.randn(100, 400, generator=generator), torch.randint(2, (100,), generator=generator))
    agreement = (out_of_sample(noise, 2).argmax(dim=1) == noise.labels).float().mean()
    assert 0.3 < agreement < 0.7


def test_only_image_of_a_class_is_never_an_error() -> None:
    images = clusters()
    lonely = FeatureSet(images.features, images.labels.clone())
    lonely.labels[0] = 4
    found = find_label_errors(lonely, 6)  # class 5 has no images
    assert not found.likely[0]
    assert found.probabilities.isfinite().all()


def test_every_class_is_divided_evenly_into_folds() -> None:
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 3)
    fold = folds(labels, seed=1)
    assert torch.equal(fold, folds(labels, seed=1))
    assert not torch.equal(fold, folds(labels, seed=2))
    for label, count in ((0, 10), (1, 2)):
        assert torch.bincount(fold[labels == label], minlength=FOLDS).tolist() == [count] * FOLDS
    assert len(set(fold[labels == 2].tolist())) == 3
