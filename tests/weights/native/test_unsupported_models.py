"""Models that a checkpoint cannot restore are rejected on saving."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrize

import vitreous
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu, NoPosition
from vitreous.model.position import PositionEmbedding
from vitreous.model.vit import ViT
from vitreous.weights import native


class Squared(nn.Module):
    """Squared ReLU MLP with the same tensors as a GELU MLP."""

    def __init__(self, mlp: nn.Module):
        super().__init__()
        self.up, self.activation, self.dropout, self.down = mlp.up, mlp.activation, mlp.dropout, mlp.down

    def forward(self, tokens: Tensor) -> Tensor:
        return self.down(self.up(tokens).relu().square())


class Sloped(PositionEmbedding):
    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.ones(3))


def other_mlp(model: ViT) -> None:
    model.encoder.blocks[1].mlp = Squared(model.encoder.blocks[1].mlp)


def new_position(model: ViT) -> None:
    model.position = Sloped()


def one_block_less(model: ViT) -> None:
    del model.encoder.blocks[-1]


def wider_head(model: ViT) -> None:
    model.head = nn.Linear(model.config.width, model.config.num_classes + 1)


def other_gelu(model: ViT) -> None:
    model.encoder.blocks[0].mlp.activation = nn.GELU("tanh")


def other_eps(model: ViT) -> None:
    model.encoder.blocks[2].attention_norm.eps = 0.1


def lora(model: ViT) -> None:
    parametrize.register_parametrization(model.encoder.blocks[0].attention.q, "weight", nn.Identity())


def extra_buffer_in_a_module(model: ViT) -> None:
    model.norm.register_buffer("seen", torch.zeros(()))


SWAPS: list[tuple[Callable[[ViT], None], str]] = [
    (
        other_mlp,
        r"^encoder\.blocks\.1\.mlp is [\w.]*Squared\(\) in the model but GeluMlp\(\) in its config",
    ),
    (new_position, r"^position is [\w.]*Sloped\(\) in the model but PositionEmbedding\(\) in its config"),
    (one_block_less, r"^encoder\.blocks\.2 is missing in the model but Block"),
    (wider_head, r"^head is Linear\(.*out_features=6, .*out_features=5,"),
    (other_gelu, r"^encoder\.blocks\.0\.mlp\.activation is GELU\(approximate='tanh'\) .* GELU\(approximate='none'\)"),
    (other_eps, r"^encoder\.blocks\.2\.attention_norm is LayerNorm\(.*eps=0\.1.*eps=1e-06"),
    (
        lora,
        r"^encoder\.blocks\.0\.attention\.q is torch\.nn\.utils\.parametrize\.Parametrized.*Merge .*LoRA",
    ),
    (extra_buffer_in_a_module, r"^norm\.seen is \[\] in the model but missing in its config"),
]


@pytest.mark.parametrize("format", ["vitreous", "timm"])
@pytest.mark.parametrize(("swap", "message"), SWAPS, ids=[swap.__name__ for swap, _ in SWAPS])
def test_replaced_modules_are_rejected(swap: Callable[[ViT], None], message: str, format: str, tmp_path: Path) -> None:
    config = ViTConfig(width=64, depth=3, num_heads=1, mlp_width=64, num_classes=5, mlp=Gelu("erf"))
    model = build_vit(config if swap is not new_position else ViTConfig(**vars(config) | {"position": NoPosition()}))
    swap(model)
    with pytest.raises(ValueError, match=message):
        vitreous.save(model, tmp_path / "model", format=format)
    assert not list(tmp_path.iterdir())


def test_harmless_changes_are_accepted(small: ViTConfig, tmp_path: Path) -> None:
    model = build_vit(small)
    model.loss = nn.CrossEntropyLoss()
    model.embedding_dropout.p = 0.5
    for i, block in enumerate(model.encoder.blocks):
        model.encoder.blocks[i] = checkpoint_wrapper(block)
    vitreous.save(model, tmp_path / "model")
    images = torch.rand(1, 3, *small.image_size)
    torch.testing.assert_close(vitreous.load(tmp_path / "model")(images), model.eval()(images))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")  # torch.compile hides the type
def test_compiled_model_is_saved_like_the_model(small: ViTConfig, tmp_path: Path) -> None:
    model = build_vit(small).eval()
    vitreous.save(torch.compile(model), tmp_path / "model")  # compilation starts with the first call
    images = torch.rand(1, 3, *small.image_size)
    assert torch.equal(vitreous.load(tmp_path / "model")(images), model(images))


@pytest.mark.parametrize("kind", ["buffer", "attribute"])
def test_module_with_unsaved_tensors_is_rejected(
    kind: str, small: ViTConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vitreous.save(build_vit(small), tmp_path / "model")
    build = native.build_blank

    def with_more(config: ViTConfig) -> ViT:
        model = build(config)
        table = torch.ones(3, device="meta")
        if kind == "buffer":
            model.position.register_buffer("angles", table, persistent=False)
        else:
            model.position.angles = table
        return model

    monkeypatch.setattr(native, "build_blank", with_more)
    with pytest.raises(ValueError, match=r"^position\.angles is created by \w+ but not saved"):
        vitreous.load(tmp_path / "model")
