import torch

from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.training.checkpoint import merged_state
from vitreous.training.optimizer_step import add_lora


def test_lora_starts_unchanged_and_merges(small: ViTConfig) -> None:
    model = build_vit(small).eval()
    images = torch.randn(2, 3, 24, 32)
    before, names = model(images), set(model.state_dict())
    add_lora(model, rank=3)
    torch.testing.assert_close(model(images), before)
    for name, weight in model.named_parameters():
        if name.endswith(".b"):
            torch.nn.init.normal_(weight, std=0.1)
    assert not torch.allclose(model(images), before, atol=1e-3)
    assert set(merged_state(model)) == names
    fresh = build_vit(small).eval()
    fresh.load_state_dict(merged_state(model))
    torch.testing.assert_close(fresh(images), model(images))


def test_only_lora_matrices_are_trained(small: ViTConfig) -> None:
    model = build_vit(small)
    model.requires_grad_(False)
    add_lora(model, rank=3)
    learned = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(learned) == 2 * 6 * small.depth  # query, key, value, output; up, down
    assert all("parametrizations.weight.0." in name for name in learned)


def test_merged_state_without_lora_is_the_state_dict(small: ViTConfig) -> None:
    model = build_vit(small)
    state = merged_state(model)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
