import torch
import torch.nn.functional as F
from torch import nn

from vitreous.model.heads import build_head
from vitreous.model.options import LinearHead, MlpHead, TanhHead

POOLED = torch.randn(4, 8)


def test_linear_head() -> None:
    head = build_head(LinearHead(), 8, 3, 1e-6)
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(head(POOLED), POOLED @ head.weight.T + head.bias)


def test_tanh_head() -> None:
    head = build_head(TanhHead(5), 8, 3, 1e-6)
    assert isinstance(head, nn.Sequential)
    hidden = torch.tanh(head.pre_logits(POOLED))
    torch.testing.assert_close(head(POOLED), head.classifier(hidden))
    assert hidden.shape == (4, 5)


def test_mlp_head() -> None:
    head = build_head(MlpHead(5), 8, 3, 1e-6)
    assert isinstance(head, nn.Sequential)
    expected = head.classifier(F.gelu(head.hidden(F.layer_norm(POOLED, (8,), eps=1e-6))))
    torch.testing.assert_close(head(POOLED), expected)


def test_head_without_classes_returns_the_pooled_features() -> None:
    assert torch.equal(build_head(MlpHead(5), 8, 0, 1e-6)(POOLED), POOLED)


def test_head_without_classes_keeps_pre_logits() -> None:
    head = build_head(TanhHead(5), 8, 0, 1e-6)
    torch.testing.assert_close(head(POOLED), torch.tanh(head.pre_logits(POOLED)))
