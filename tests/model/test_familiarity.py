"""The familiarity score, compared with the definition of the Mahalanobis distance."""

import pytest
import torch
from torch import Tensor

from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.familiarity import Familiarity


def clusters(count: int, width: int = 6, classes: int = 4) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % classes
    mixing = torch.randn(width, width, generator=torch.Generator().manual_seed(1))
    means = 2 * torch.randn(classes, width, generator=torch.Generator().manual_seed(2))
    return torch.randn(count, width) @ mixing + means[labels], labels


def test_score_is_the_mahalanobis_distance_to_the_nearest_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.model.familiarity.SHRINKAGE", 0.0)
    features, labels = clusters(200)
    queries, rows = torch.randn(10, 6).double(), features.double()
    means = torch.stack([rows[labels == k].mean(0) for k in range(4)])
    precision = torch.linalg.inv((rows - means[labels]).T @ (rows - means[labels]) / 200)
    distances = torch.stack([((queries - mean) @ precision * (queries - mean)).sum(1) for mean in means])
    scores = Familiarity.fit(features, labels).scores(queries)
    torch.testing.assert_close(scores.double(), -distances.amin(0), rtol=1e-3, atol=1e-3)


def test_images_of_a_class_are_more_familiar_than_others() -> None:
    features, labels = clusters(400)
    found = Familiarity.fit(features[:200], labels[:200])
    between = features[200:] @ torch.linalg.qr(torch.randn(6, 6))[0]  # the same norms, in other directions
    assert found.scores(features[200:]).median() > found.scores(between).quantile(0.75)


@pytest.mark.parametrize("labels", [[0, 1, 2], [5, 5, 5], [0, 0, 9]])
def test_few_images_and_missing_classes_give_finite_scores(labels: list[int]) -> None:
    found = Familiarity.fit(torch.randn(3, 8), torch.tensor(labels))
    assert found.scores(torch.randn(4, 8)).isfinite().all()
    equal = Familiarity.fit(torch.ones(3, 8), torch.tensor(labels))
    assert equal.scores(torch.ones(2, 8)).isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("family", ["vit", "distilled", "bit"])
def test_logits_and_pooled_features_come_from_one_pass(small: ViTConfig, family: str) -> None:
    config = small if family == "vit" else ViTConfig(**{**vars(small), "distillation_token": True})
    model = build(ResNetConfig(stages=(1,), width=32, num_classes=5) if family == "bit" else config).eval()
    images = torch.randn(2, 3, 24, 32)
    logits, pooled = model.logits_and_pooled(images)
    torch.testing.assert_close(logits, model(images))
    torch.testing.assert_close(pooled, model.pooled(images))
