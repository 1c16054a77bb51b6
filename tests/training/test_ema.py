import torch
from torch import nn

from vitreous.training.optimizer_step import Ema


def test_average_is_the_decayed_mean() -> None:
    model = nn.Linear(1, 1, bias=False)
    ema = Ema(model, decay=0.5)
    values, average = [1.0, 4.0, -2.0, 8.0], model.weight.item()
    for step, value in enumerate(values):
        nn.init.constant_(model.weight, value)
        ema.update(step)
        decay = min(0.5, (step + 1) / (step + 10))
        average = decay * average + (1 - decay) * value
    torch.testing.assert_close(ema.averages["weight"], torch.tensor([[average]]))


def test_average_is_applied_and_removed() -> None:
    model = nn.Linear(3, 2)
    ema = Ema(model, decay=0.9)
    nn.init.constant_(model.weight, 7.0)
    own = model.weight.detach().clone()
    with ema.applied():
        assert torch.equal(model.weight, ema.averages["weight"])
        assert not torch.equal(model.weight, own)
    assert torch.equal(model.weight, own)
