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
from vitreous.data.sources.base import ArraySource, Source, pick
from vitreous.evaluation import features
from vitreous.evaluation.features import FeatureSet, cached_features, digest, extract
from vitreous.inference import Predictor
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.int8 import Int8Scales
from vitreous.model.options import IMAGENET, GlobalAverage
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT
from vitreous.weights.native import set_int8_scales

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


def on_cpu(model: ViT | ResNet, **options: Any) -> Predictor:
    return Predictor(model, device="cpu", workers=0, **options)


def source(count: int = 7) -> ArraySource:
    rng = np.random.default_rng(0)
    return ArraySource(rng.integers(0, 256, (count, 20, 30, 3), np.uint8), np.arange(count) % 3, ("a", "b", "c"), "x")


@pytest.fixture
def folder(tmp_path: Path) -> Source:
    """Six files in two classes; one of them is not an image."""
    for index in range(6):
        path = tmp_path / "data" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 24), (40 * index, 10, 200)).save(path)
    (tmp_path / "data" / "b" / "3.png").write_bytes(b"no image at all")
    return open_data(str(tmp_path / "data"), val_fraction=0.5).train.source  # type: ignore[attr-defined]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_features_equal_those_of_embed(name: str, flip: bool) -> None:
    model, images = random_model(CONFIGS[name]).train(), source()
    found = extract(on_cpu(model, batch_size=3, flip=flip), images)
    expected = Predictor(model, device="cpu", flip=flip).embed(list(images.images))
    torch.testing.assert_close(found.features, expected, rtol=1e-4, atol=1e-5)
    assert found.labels.tolist() == images.labels.tolist()
    assert (len(found), found.problems) == (7, ())


def test_class_and_mean_concatenates_class_token_and_mean() -> None:
    model, images = random_model().eval(), source()
    assert isinstance(model, ViT)
    [batch] = EvalLoader(Reader(images, TOKEN.image_size, 3, TOKEN.preprocessing), BatchSlice(7), 0)
    with torch.no_grad():
        tokens = model.features(normalise(batch.images.float() / 255, TOKEN.preprocessing))
    expected = torch.cat([tokens.prefix[:, 0], tokens.patches.mean(1)], dim=1)
    found = extract(on_cpu(model), images, "class+mean")
    torch.testing.assert_close(found.features, expected)


@pytest.mark.parametrize("name", ["bit", "mean"])
def test_class_and_mean_needs_a_trained_class_token(name: str) -> None:
    with pytest.raises(ValueError, match=r"class\+mean.*'pooled'.*GlobalAverage"):
        extract(on_cpu(random_model(CONFIGS[name])), source(), "class+mean")


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_kind_gets_a_suggestion() -> None:
    wrong: Any = "poled"
    with pytest.raises(ValueError, match="did you mean 'pooled'"):
        extract(on_cpu(random_model()), source(), wrong)


def test_bfloat16_features_are_stored_as_float16() -> None:
    model, images = random_model(), source()
    exact, half = (extract(on_cpu(model, precision=precision), images) for precision in ("fp32", "bf16"))
    assert (exact.features.dtype, half.features.dtype) == (torch.float32, torch.float16)
    assert torch.nn.functional.cosine_similarity(exact.features, half.features.float()).min() > 0.99


def test_features_that_are_not_finite_are_counted() -> None:
    model = random_model()
    assert isinstance(model.norm.weight, torch.Tensor)
    torch.nn.init.constant_(model.norm.weight, torch.nan)
    with pytest.raises(ValueError, match=r"the features of 7 of 7 images are infinite or NaN$"):
        extract(on_cpu(model), source())
    torch.nn.init.constant_(model.norm.weight, 1e6)
    with pytest.raises(ValueError, match="float16; try --precision fp32"):
        extract(on_cpu(model, precision="bf16"), source())


def test_unreadable_images_are_named_and_skipped(folder: Source, tmp_path: Path) -> None:
    model = random_model()
    found, _ = cached_features(tmp_path / "cache", on_cpu(model), folder)
    assert (len(found), len(found.features)) == (5, 5)
    assert [problem.split(":")[0] for problem in found.problems] == [os.path.join("b", "3.png")]
    readable = [index for index in range(6) if folder.name(index) != os.path.join("b", "3.png")]
    alone = extract(on_cpu(model), pick(folder, np.array(readable)))
    torch.testing.assert_close(alone.features, found.features)
    assert torch.equal(alone.labels, found.labels)
    again, cached = cached_features(tmp_path / "cache", on_cpu(model), folder)
    assert cached
    assert again.problems == found.problems
    with pytest.raises(ValueError, match="none of the 1 images could be read"):
        extract(on_cpu(model), pick(folder, np.setdiff1d(np.arange(6), readable)))


# ---- The cache -------------------------------------------------------------------------------------------------------


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, cache = random_model(), source(), tmp_path / "not" / "yet"
    first, cached = cached_features(cache, on_cpu(model), images)
    assert not cached

    def never(*_: object, **__: object) -> FeatureSet:
        raise AssertionError("computed again")

    monkeypatch.setattr(features, "extract", never)
    second, cached = cached_features(cache, on_cpu(model), images)
    assert cached
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.labels, second.labels)
    with pytest.raises(AssertionError, match="computed again"):
        cached_features(None, on_cpu(model), images)


@pytest.mark.parametrize("keep", [0, 40, -10])
def test_a_damaged_cache_file_is_replaced(tmp_path: Path, keep: int) -> None:
    model, images = random_model(), source()
    first, _ = cached_features(tmp_path, on_cpu(model), images)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])
    second, cached = cached_features(tmp_path, on_cpu(model), images)
    assert not cached
    assert torch.equal(first.features, second.features)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [whole]


def with_scales(model: ViT | ResNet, span: float) -> ViT | ResNet:
    """Attach int8 scales for one layer."""
    name, layer = next((name, one) for name, one in model.named_modules() if isinstance(one, torch.nn.Linear))
    set_int8_scales(model, Int8Scales({name: (torch.ones(layer.in_features), (-span, span))}))
    return model


def test_the_digest_covers_all_that_features_depend_on(folder: Source) -> None:
    model, images = random_model(), source()
    other_config = build(dataclasses.replace(TOKEN, preprocessing=IMAGENET))
    other_config.load_state_dict(model.state_dict())
    other_weights = build(TOKEN)
    other_weights.load_state_dict(model.state_dict())
    with torch.no_grad():
        next(iter(other_weights.parameters()))[-1] += 1e-6
    relabelled, repainted = source(), source()
    relabelled.labels[0] = 2
    repainted.images[6, 19, 29, 2] ^= 1
    eight = [digest(with_scales(model, span), images, kind="pooled", precision="int8") for span in (4.0, 4.0, 5.0)]
    assert eight[0] == eight[1] != eight[2]
    keys = [
        digest(model, images, kind="pooled"),
        digest(model, images, kind="class+mean"),
        digest(other_config, images, kind="pooled"),
        digest(other_weights, images, kind="pooled"),
        digest(model, relabelled, kind="pooled"),
        digest(model, repainted, kind="pooled"),
        digest(model, pick(images, np.arange(6)), kind="pooled"),
        digest(model, pick(images, np.arange(7)[::-1]), kind="pooled"),
        digest(model, folder, kind="pooled"),
    ]
    assert len(set(keys)) == len(keys)
    assert digest(model, pick(images, np.arange(7)), kind="pooled") == keys[0]  # the same images, through a subset
    path = folder.root / folder.name(0)  # type: ignore[attr-defined]
    os.utime(path, ns=(0, 0))
    assert digest(model, folder, kind="pooled") != keys[-1]


def test_an_invalid_cache_folder_is_rejected_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="file', but must be a folder, not a file"):
        cached_features(tmp_path / "file", on_cpu(random_model()), source())
