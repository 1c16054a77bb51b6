import dataclasses
from pathlib import Path

import pytest
import torch

import vitreous
from foreign_models import written
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Gelu, Learned1d
from vitreous.model.vit import ViT
from vitreous.weights.convert import UnsupportedByFormat, _changes, convert
from vitreous.weights.parity import compare, random_images


def perturbed(config: ViTConfig) -> ViT:
    model = build_vit(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return model


def test_model_equals_itself_at_every_stage(small: ViTConfig) -> None:
    model = perturbed(small)
    differences = compare(model, model, random_images(model))
    assert [one.stage for one in differences][:3] == ["patches", "tokens and positions", "block 0"]
    assert differences[-1].stage == "logits"
    assert all(one.largest == one.mean == 0 and one.scale > 0 for one in differences)


def test_difference_appears_at_its_stage(small: ViTConfig) -> None:
    """After changing one weight of the last block, all later stages differ and no earlier one."""
    one, other = perturbed(small), build_vit(small).eval()
    other.load_state_dict(one.state_dict())
    last = small.depth - 1
    with torch.no_grad():
        other.encoder.blocks[last].mlp.down.bias[0] += 1
    by_stage = {difference.stage: difference for difference in compare(one, other, random_images(one))}
    assert by_stage["patches"].largest == by_stage[f"block {last - 1}"].largest == 0
    assert by_stage[f"block {last}"].largest == pytest.approx(1, abs=1e-5)
    assert by_stage[f"block {last}"].mean == pytest.approx(1 / small.width, abs=1e-5)
    assert by_stage["logits"].largest > 0


def test_lossless_convert_reports_no_losses(small: ViTConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(small, mlp=Gelu("erf"))
    vitreous.save(perturbed(config), tmp_path / "saved")
    result = convert(tmp_path / "saved", tmp_path / "foreign", to="timm")
    assert result.path == tmp_path / "foreign"
    assert all(one.largest == 0 for one in result.differences)
    assert len(result.differences) == config.depth + 4


@pytest.mark.parametrize("case", ["vitreous, ResNet", "vitreous, linear segmenter", "vitreous, mask segmenter"])
def test_every_model_family_is_compared(case: str, tmp_path: Path) -> None:
    result = convert(written(case, tmp_path), tmp_path / "copy", to="vitreous")
    assert {"features", "logits"} <= {one.stage for one in result.differences}
    assert all(one.largest == 0 and one.scale > 0 for one in result.differences)
    assert result.not_kept == []
    with pytest.raises(UnsupportedByFormat, match=r"'timm' .*vitreous"):
        convert(tmp_path / "copy", tmp_path / "foreign", to="timm")


def test_folder_keeps_labels_preprocessing_and_interpolation(small: ViTConfig, tmp_path: Path) -> None:
    square = dataclasses.replace(small, image_size=(32, 32), mlp=Gelu("erf"), preprocessing=IMAGENET)
    config = dataclasses.replace(
        square, num_classes=2, labels=("[/cat]", "dog"), position=Learned1d(interpolation="timm")
    )
    vitreous.save(perturbed(config), tmp_path / "saved")
    assert convert(tmp_path / "saved", tmp_path / "foreign", to="timm").not_kept == []


def test_different_computation_requires_lossy(small: ViTConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(small, mlp=Gelu("erf"), norm_eps=1e-3)
    vitreous.save(perturbed(config), tmp_path / "saved")
    with pytest.raises(UnsupportedByFormat, match=r"eps is 0\.001 .* 1e-06 in timm.*lossy"):
        convert(tmp_path / "saved", tmp_path / "foreign", to="timm")
    assert not (tmp_path / "foreign").exists()
    differences = convert(tmp_path / "saved", tmp_path / "foreign", to="timm", lossy=True).differences
    assert differences[0].largest == 0  # patches come before any norm
    assert differences[-1].largest > 1e-6


@pytest.mark.parametrize("name", ["thesis.tex", "README.md"])
def test_folder_with_other_files_is_not_replaced(name: str, small: ViTConfig, tmp_path: Path) -> None:
    target = tmp_path / "foreign"
    target.mkdir()
    (target / name).write_text("years of work")
    model = perturbed(dataclasses.replace(small, mlp=Gelu("erf")))
    with pytest.raises(ValueError, match=f"contains {name}"):
        vitreous.save(model, target, format="timm")
    assert (target / name).read_text() == "years of work"


def test_long_values_are_shown_where_they_differ() -> None:
    labels = tuple(f"a class with a long name {i}" for i in range(9))
    [line] = _changes({"labels": (labels, (*labels[:8], "another"))})
    before, after = line.removeprefix("labels: ").split(" is read as ")
    assert "name 8" in before
    assert "another" in after
