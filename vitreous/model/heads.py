"""Classification heads (ViT paper, section 3.1: a hidden layer in pre-training, one linear layer in fine-tuning)."""

from collections import OrderedDict

import torch
from torch import nn

from vitreous.model.init import small_, xavier_
from vitreous.model.options import HeadConfig, LinearHead, MlpHead, TanhHead


def build_head(head: HeadConfig, width: int, num_classes: int, norm_eps: float = 1e-6) -> nn.Module:
    """Build a head. With 0 classes, a `TanhHead` returns its pre-logits, and any other head returns its input."""
    if num_classes == 0 and not isinstance(head, TanhHead):
        return nn.Identity()
    match head:
        case LinearHead():
            return _classifier(width, num_classes)
        case TanhHead(width=hidden):
            layers = OrderedDict(pre_logits=xavier_(nn.Linear(width, hidden)), activation=nn.Tanh())
            if num_classes == 0:
                return nn.Sequential(layers)
        case MlpHead(width=hidden):
            norm = nn.LayerNorm(width, norm_eps)
            layers = OrderedDict(norm=norm, hidden=xavier_(nn.Linear(width, hidden)), activation=nn.GELU())
    return nn.Sequential(OrderedDict(**layers, classifier=_classifier(hidden, num_classes)))


def _classifier(width: int, num_classes: int) -> nn.Linear:
    linear = nn.Linear(width, num_classes)
    small_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


@torch.no_grad()
def copy_rows(old: nn.Module, new: nn.Module, larger: nn.Module, rows: dict[int, int]) -> None:
    """Copy the weights of the head `old` to `new`. Of tensors with one row per class, copy only `rows` ({new: old}).

    `larger` is a head like `new` with one more class. Tensors with one row per class have different shapes in the two.
    """
    there, here = list(rows), list(rows.values())
    values, sizes = old.state_dict(), larger.state_dict()
    for name, value in new.state_dict().items():
        if sizes[name].shape != value.shape:
            value[there] = values[name][here].to(value.dtype)
        else:
            value.copy_(values[name])
