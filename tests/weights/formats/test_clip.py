"""OpenAI's CLIP and OpenCLIP, compared with an independent implementation of OpenAI's vision tower."""

import json
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from optional_imports import import_timm
from parity import check_close, check_identical, noisy
from vitreous.model.options import CLIP, AttentionPool, ClassToken, Gelu, GlobalAverage, Preprocessing
from vitreous.weights import BadCheckpoint, UnsupportedByFormat, provenance_of

NATIVE, OTHER = (32, 32), (48, 40)
WIDTH, EMBEDDING = 64, 12


class Quick(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Layer(nn.Module):
    def __init__(self, activation: nn.Module, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, heads, batch_first=True)
        layers = OrderedDict(c_fc=nn.Linear(WIDTH, 96), gelu=activation, c_proj=nn.Linear(96, WIDTH))
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Tower(nn.Module):
    """CLIP's vision tower, whose positions OpenCLIP resamples for other image sizes."""

    def __init__(self, activation: nn.Module, heads: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, 8, 8, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(WIDTH))
        self.positional_embedding = nn.Parameter(torch.empty(17, WIDTH))
        self.proj = nn.Parameter(torch.empty(WIDTH, EMBEDDING))
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = nn.Sequential()
        self.transformer.resblocks = nn.Sequential(*(Layer(activation, heads) for _ in range(2)))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images)
        grid = self.positional_embedding[1:].T.reshape(1, WIDTH, 4, 4)
        if patches.shape[2:] != (4, 4):
            grid = F.interpolate(grid, patches.shape[2:], mode="bicubic", antialias=True)
        tokens = torch.cat([self.class_embedding.expand(len(images), 1, -1), patches.flatten(2).mT], dim=1)
        tokens = tokens + torch.cat([self.positional_embedding[:1], grid.flatten(2)[0].T])
        return self.ln_post(self.transformer(self.ln_pre(tokens))[:, 0]) @ self.proj


class Model(nn.Module):
    """A vision tower and some tensors of a text tower, one of which has the name of a tensor in the vision tower."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual
        self.positional_embedding = nn.Parameter(torch.zeros(5, 16))
        self.transformer = nn.Sequential(OrderedDict(resblocks=nn.Sequential(nn.LayerNorm(16))))
        self.token_embedding, self.logit_scale = nn.Embedding(9, 16), nn.Parameter(torch.ones([]))

    def forward(self, images: Tensor) -> Tensor:
        return self.visual(images)


def openai_file(model: nn.Module, path: Path) -> Path:
    numbers = {"input_resolution": torch.tensor(32), "context_length": torch.tensor(5), "vocab_size": torch.tensor(9)}
    torch.save(model.state_dict() | numbers, path)
    return path


def test_outputs_equal_openai_in_both_directions(tmp_path: Path) -> None:
    model = noisy(Model(Tower(Quick())))
    with pytest.warns(vitreous.PartWarning, match=r"clip\.pt also contains a text tower, which is not loaded"):
        ours = vitreous.load(openai_file(model, tmp_path / "clip.pt"))
    check_close(ours, model, NATIVE, OTHER)
    assert (ours.config.mlp, ours.config.norm_eps, ours.config.projection) == (Gelu("quick"), 1e-5, EMBEDDING)
    assert ours.config.preprocessing == CLIP
    left_out = provenance_of(ours)["left_out"]
    assert "token_embedding.weight" in left_out

    vitreous.save(ours, tmp_path / "folder", format="clip")
    check_identical(vitreous.load(tmp_path / "folder"), ours)
    again = vitreous.load(tmp_path / "folder" / "open_clip_model.safetensors").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.state_dict().items())
    with pytest.raises(UnsupportedByFormat, match=r"GELU is computed with quick .* Save to a folder"):
        vitreous.save(ours, tmp_path / "clip.safetensors", format="clip")
    vitreous.save(ours, tmp_path / "clip.pth", format="clip", lossy=True)
    filled = Model(Tower(Quick())).eval()
    missing = filled.load_state_dict(torch.load(tmp_path / "clip.pth"), strict=False)
    assert not missing.unexpected_keys
    assert not any(name.startswith("visual.") for name in missing.missing_keys)
    check_close(filled, model, NATIVE)


def test_torchscript_archive_is_read(tmp_path: Path) -> None:
    """OpenAI publishes CLIP as TorchScript programs in half precision."""
    model = noisy(Model(Tower(Quick())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        torch.jit.trace(model, torch.zeros(1, 3, *NATIVE), check_trace=False).half().save(tmp_path / "ViT-B-32.pt")
    loaded = vitreous.load(tmp_path / "ViT-B-32.pt", overrides={"mlp": Gelu("quick")})
    check_close(loaded.float(), model.half().float(), NATIVE)


CONFIG: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": WIDTH, "layers": 2, "head_width": 16}


def open_clip_folder(model: nn.Module, path: Path, vision: dict[str, Any], **fields: Any) -> Path:
    path.mkdir()
    torch.save(model.state_dict(), path / "open_clip_pytorch_model.bin")
    document = {"model_cfg": {"embed_dim": EMBEDDING, "vision_cfg": vision}, **fields}
    (path / "open_clip_config.json").write_text(json.dumps(document))
    return path


def test_open_clip_config_is_read(tmp_path: Path) -> None:
    model = noisy(Model(Tower(nn.GELU(), heads=4)))
    shown = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bilinear", "resize_mode": "squash"}
    loaded = vitreous.load(open_clip_folder(model, tmp_path / "a", CONFIG, preprocess_cfg=shown))
    check_close(loaded, model, NATIVE, OTHER)
    assert loaded.config.num_heads == 4
    assert loaded.config.preprocessing == Preprocessing((0.5,), (0.25,), "squash", 1.0, "bilinear")
    averaged = CONFIG | {"pool_type": "avg", "final_ln_after_pool": True, "act_kwargs": {"approximate": "tanh"}}
    config = vitreous.load(open_clip_folder(model, tmp_path / "b", averaged)).config
    assert (config.pool, config.mlp) == (GlobalAverage("after"), Gelu("tanh"))
    with pytest.raises(BadCheckpoint, match="pool_type must be 'tok' or 'avg', got 'none'"):
        vitreous.load(open_clip_folder(model, tmp_path / "c", CONFIG | {"pool_type": "none"}))


def test_bare_file_of_open_clip_is_read_with_a_warning(tmp_path: Path) -> None:
    model = noisy(Model(Tower(nn.GELU())))
    torch.save(model.state_dict(), tmp_path / "clip.pt")
    with pytest.warns(vitreous.AssumptionWarning, match=r"num_heads=1, mlp=Gelu\(approximation='erf'\)"):
        check_close(vitreous.load(tmp_path / "clip.pt"), model, NATIVE)
    torch.save(model.visual.state_dict(), tmp_path / "tower.pt")
    check_close(vitreous.load(tmp_path / "tower.pt"), model, NATIVE)


@pytest.mark.parametrize("projected", [True, False])
def test_timm_trunk_is_read(projected: bool, tmp_path: Path) -> None:
    architecture, arguments = "vit_tiny_patch16_siglip_224", {"img_size": 32, "depth": 1, "class_token": False}
    trunk = noisy(import_timm().create_model("vit_tiny_patch16_224", num_classes=0, global_pool="map", **arguments))
    head = nn.Sequential(OrderedDict(proj=nn.Linear(192, EMBEDDING, bias=False)) if projected else OrderedDict())
    model = nn.Module()
    model.visual = nn.Sequential(OrderedDict(trunk=trunk, head=noisy(head)))
    model.text = nn.Linear(2, 2)
    vision = {"timm_model_name": architecture, "timm_pool": "map", "image_size": 32}
    loaded = vitreous.load(open_clip_folder(model, tmp_path / "m", vision))
    assert (loaded.config.projection, loaded.config.pool) == (EMBEDDING if projected else None, AttentionPool())
    check_close(loaded, model.visual, NATIVE)


def test_projections_of_two_layers_are_rejected(tmp_path: Path) -> None:
    trunk = import_timm().create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1)
    state = {f"visual.trunk.{name}": tensor for name, tensor in trunk.state_dict().items()}
    torch.save(state | {"visual.head.mlp.fc1.weight": torch.zeros(2, 192)}, tmp_path / "m.pt")
    with pytest.raises(BadCheckpoint, match=r"unsupported projection .*head.mlp.fc1.weight"):
        vitreous.load(tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("visual.layer1.0.conv3.weight", "CLIP with a ResNet"),
        ("visual.attn_pool.ln_k.weight", "CoCa"),
    ],
)
def test_other_towers_are_rejected_by_name(name: str, message: str, tmp_path: Path) -> None:
    tensors = Model(Tower(Quick())).state_dict() if "attn_pool" in name else {}
    torch.save(tensors | {name: torch.zeros(2)}, tmp_path / "m.pt")
    with pytest.raises(BadCheckpoint, match=f"unsupported model: .*{message}"):
        vitreous.load(tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("CLIP-B/32", {"num_classes": 3}, "a classifier is not supported by CLIP"),
        ("CLIP-B/32", {"projection": None}, "CLIP requires a projection"),
        ("SigLIP-B/16", {}, "CLIP requires a class token"),
        ("ViT-Ti/16", {"num_classes": 0}, "CLIP requires patch_bias=False"),
    ],
)
def test_models_without_a_counterpart_are_rejected(
    preset: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = vitreous.create(preset, image_size=32, overrides={"depth": 1, "width": 48, "mlp_width": 8} | changes)
    assert isinstance(model.config.pool, ClassToken | AttentionPool)
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(model, tmp_path / "x", format="open_clip")


OTHER_FORMATS = {"google": ".npz", "big_vision": ".npz", "torchvision": ".pth", "dinov2": ".pth", "mae": ".pth"}
OTHER_FORMATS |= {"lucidrains": ".pth", "paddle": ".pdparams", "paddlevit": ".pdparams"}


@pytest.mark.parametrize("format", OTHER_FORMATS)
def test_other_formats_reject_the_parts_of_clip(format: str, tmp_path: Path) -> None:
    model = vitreous.create("CLIP-B/32", image_size=32, overrides={"depth": 1, "width": 48, "mlp_width": 8})
    with pytest.raises(UnsupportedByFormat) as error:
        vitreous.save(model, tmp_path / f"x{OTHER_FORMATS[format]}", format=format, lossy=True)
    for part in ("pre_norm", "requires patch_bias", "projection"):
        assert part in str(error.value)
