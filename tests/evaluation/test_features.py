import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.common.checks import BadValue
from vitreous.data.loader import BatchSlice, EvalLoader, Reader
from vitreous.data.open import open_data
from vitreous.data.sources.base import ArraySource, Source
from vitreous.data.split import pick
from vitreous.evaluation import feature_cache
from vitreous.evaluation.feature_cache import cached_features, digest
from vitreous.evaluation.features import FeatureSet, extract
from vitreous.inference import Predictor
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import IMAGENET, GlobalAverage
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT

CPU = torch.device("cpu")
TOKEN = ViTConfig(image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=64, num_classes=5)
CONFIGS: dict[str, ViTConfig | ResNetConfig] = {
    "class token": TOKEN,
    "mean": dataclasses.replace(TOKEN, pool=GlobalAverage("after"), preprocessing=IMAGENET),
    "no head": dataclasses.replace(TOKEN, num_classes=0, registers=2),
    "bit": ResNetConfig(image_size=(32, 48), stages=(1, 1), width=32, num_classes=7, preprocessing=IMAGENET),
}


def random_model(config: ViTConfig | ResNetConfig = TOKEN) -> ViT | ResNet:
    model = build(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def source(count: int = 7) -> ArraySource:
    rng = np.random.default_rng(0)
    return ArraySource(rng.integers(0, 256, (count, 20, 30, 3), np.uint8), np.arange(count) % 3, ("a", "b", "c"), "x")


@pytest.fixture
def folder(tmp_path: Path) -> Source:
    """Six pictures in two classes; one of them is none."""
    for index in range(6):
        path = tmp_path / "data" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 24), (40 * index, 10, 200)).save(path)
    (tmp_path / "data" / "b" / "3.png").write_bytes(b"no picture at all")
    return open_data(str(tmp_path / "data"), val_fraction=0.5).train.source  # type: ignore[attr-defined]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_features_are_what_embed_gives(name: str, flip: bool) -> None:
    model, pictures = random_model(CONFIGS[name]).train(), source()
    found = extract(model, pictures, CPU, batch_size=3, workers=0, flip=flip)
    assert model.training  # left as it was
    expected = Predictor(model, device="cpu", flip=flip).embed(list(pictures.images))
    torch.testing.assert_close(found.features, expected, rtol=1e-4, atol=1e-5)
    assert found.labels.tolist() == pictures.labels.tolist()
    assert (len(found), found.problems) == (7, ())


def test_the_class_token_beside_the_mean_of_the_patches() -> None:
    model, pictures = random_model().eval(), source()
    assert isinstance(model, ViT)
    [batch] = EvalLoader(Reader(pictures, TOKEN.image_size, 3, TOKEN.preprocessing), BatchSlice(7), 0)
    with torch.no_grad():
        tokens = model.features(normalise(batch.images.float() / 255, TOKEN.preprocessing))
    expected = torch.cat([tokens.prefix[:, 0], tokens.patches.mean(1)], dim=1)
    found = extract(model, pictures, CPU, kind="class+mean", workers=0)
    torch.testing.assert_close(found.features, expected)


@pytest.mark.parametrize(
    ("name", "message"), [("bit", "ResNet, which has no class token"), ("mean", "model that pools by GlobalAverage")]
)
def test_a_model_without_a_taught_class_token_says_so(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"features is 'class.mean', but must be 'pooled' for a {message}"):
        extract(random_model(CONFIGS[name]), source(), CPU, kind="class+mean", workers=0)


@pytest.mark.usefixtures("unchecked")
def test_a_kind_that_does_not_exist_is_answered_with_one_that_does() -> None:
    wrong: Any = "poled"
    with pytest.raises(ValueError, match="did you mean 'pooled'"):
        extract(random_model(), source(), CPU, kind=wrong, workers=0)


def test_bfloat16_is_kept_in_half_the_memory() -> None:
    model, pictures = random_model(), source()
    exact, half = (extract(model, pictures, CPU, precision, workers=0) for precision in (torch.float32, torch.bfloat16))
    assert (exact.features.dtype, half.features.dtype) == (torch.float32, torch.float16)
    assert torch.nn.functional.cosine_similarity(exact.features, half.features.float()).min() > 0.99


def test_numbers_that_are_none_are_counted() -> None:
    model = random_model()
    assert isinstance(model.norm.weight, torch.Tensor)
    torch.nn.init.constant_(model.norm.weight, torch.nan)
    with pytest.raises(ValueError, match=r"the features of 7 of 7 pictures are infinite or not a number$"):
        extract(model, source(), CPU, workers=0)
    torch.nn.init.constant_(model.norm.weight, 1e6)
    with pytest.raises(ValueError, match="too large for bfloat16: try --precision fp32"):
        extract(model, source(), CPU, torch.bfloat16, workers=0)


def test_unreadable_pictures_are_named_and_left_out(folder: Source, tmp_path: Path) -> None:
    model = random_model()
    found, _ = cached_features(tmp_path / "cache", model, folder, CPU, workers=0)
    assert (len(found), len(found.features)) == (5, 5)
    assert [problem.split(":")[0] for problem in found.problems] == [os.path.join("b", "3.png")]
    readable = [index for index in range(6) if folder.name(index) != os.path.join("b", "3.png")]
    alone = extract(model, pick(folder, np.array(readable)), CPU, workers=0)
    torch.testing.assert_close(alone.features, found.features)
    assert torch.equal(alone.labels, found.labels)
    again, cached = cached_features(tmp_path / "cache", model, folder, CPU, workers=0)
    assert cached
    assert again.problems == found.problems
    with pytest.raises(ValueError, match="none of the 1 pictures could be read"):
        extract(model, pick(folder, np.setdiff1d(np.arange(6), readable)), CPU, workers=0)


# ---- The cache -------------------------------------------------------------------------------------------------------


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pictures, cache = random_model(), source(), tmp_path / "not" / "yet"
    first, cached = cached_features(cache, model, pictures, CPU, workers=0)
    assert not cached

    def never(*_: object, **__: object) -> FeatureSet:
        raise AssertionError("computed again")

    monkeypatch.setattr(feature_cache, "extract", never)
    second, cached = cached_features(cache, model, pictures, CPU, workers=0)
    assert cached
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.labels, second.labels)
    with pytest.raises(AssertionError, match="computed again"):
        cached_features(None, model, pictures, CPU, workers=0)


@pytest.mark.parametrize("keep", [0, 40, -10])
def test_a_damaged_file_is_made_again(tmp_path: Path, keep: int) -> None:
    model, pictures = random_model(), source()
    first, _ = cached_features(tmp_path, model, pictures, CPU, workers=0)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])
    second, cached = cached_features(tmp_path, model, pictures, CPU, workers=0)
    assert not cached
    assert torch.equal(first.features, second.features)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [whole]


def test_whatever_features_depend_on_is_in_the_digest(folder: Source) -> None:
    model, pictures = random_model(), source()
    other_config = build(dataclasses.replace(TOKEN, preprocessing=IMAGENET))
    other_config.load_state_dict(model.state_dict())
    other_weights = build(TOKEN)
    other_weights.load_state_dict(model.state_dict())
    with torch.no_grad():
        next(iter(other_weights.parameters()))[-1] += 1e-6
    relabelled, repainted = source(), source()
    relabelled.labels[0] = 2
    repainted.images[6, 19, 29, 2] ^= 1
    keys = [
        digest(model, pictures, kind="pooled"),
        digest(model, pictures, kind="class+mean"),
        digest(other_config, pictures, kind="pooled"),
        digest(other_weights, pictures, kind="pooled"),
        digest(model, relabelled, kind="pooled"),
        digest(model, repainted, kind="pooled"),
        digest(model, pick(pictures, np.arange(6)), kind="pooled"),
        digest(model, pick(pictures, np.arange(7)[::-1]), kind="pooled"),
        digest(model, folder, kind="pooled"),
    ]
    assert len(set(keys)) == len(keys)
    assert (
        digest(model, pick(pictures, np.arange(7)), kind="pooled") == keys[0]
    )  # the same pictures, asked for by index
    path = folder.root / folder.name(0)  # type: ignore[attr-defined]
    os.utime(path, ns=(0, 0))
    assert digest(model, folder, kind="pooled") != keys[-1]


def test_a_folder_that_cannot_be_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="file', but must be a folder, and not a file"):
        cached_features(tmp_path / "file", random_model(), source(), CPU, workers=0)
