"""From one vector to a score for each class (section 3.1: a hidden layer in pre-training, one layer in fine-tuning)."""

from collections import OrderedDict

from torch import nn

from vitreous.model.init import small_, xavier_
from vitreous.model.options import Head, LinearHead, MlpHead, TanhHead


def build_head(head: Head, width: int, num_classes: int, norm_eps: float) -> nn.Module:
    """`head` for so many classes. For none, the pooled features pass through, or their pre-logits in a `TanhHead`."""
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
