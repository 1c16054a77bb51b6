"""Choice of pretrained weights for --init auto, and advice to use them."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from automatic_choices import chosen, sample_images
from vitreous.common.checks import BadValue
from vitreous.common.distributed import World
from vitreous.model.cost import cost
from vitreous.training import TrainConfig, defaults
from vitreous.training.defaults import open_pretrained
from vitreous.weights.hub import HubUnavailable
from vitreous.weights.load import Checkpoint, describe, open_checkpoint

SMALL = {"width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2}


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint with the patches and the image size of DINOv2."""
    folder = tmp_path_factory.mktemp("dinov2") / "m"
    vitreous.save(vitreous.create("DINOv2-S/14", overrides=SMALL), folder)
    return folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, dinov2: Path) -> list[str]:
    """Open the small checkpoint for every catalog name; return the list of names."""
    names: list[str] = []

    def open_small(name: str) -> Checkpoint:
        names.append(name)
        return open_checkpoint(dinov2)

    monkeypatch.setattr(defaults, "open_checkpoint", open_small)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**50, 2**50))
    return names


def resolve(count: int, side: int, device: str, **fields: Any) -> tuple[TrainConfig, Checkpoint | None, list[str]]:
    config = TrainConfig(data="pictures", init="auto", **fields)
    return open_pretrained(config, sample_images(count, side), World(0, 1, torch.device(device)))


@pytest.mark.parametrize(
    ("count", "side", "device", "name"),
    [
        (500, 49, "cpu", "dinov2-s"),
        (500, 200, "mps", "dinov2-s"),
        (500, 32, "cuda", "dinov2-b"),
        (100_000, 200, "cuda", "dinov2-b"),
        (100_001, 200, "cuda", "dinov2-s"),
    ],
)
def test_weights_fit_the_data_and_the_device(count: int, side: int, device: str, name: str, opened: list[str]) -> None:
    config, init, notes = resolve(count, side, device)
    assert set(opened) == {name}
    assert config == TrainConfig(data="pictures", init=name)
    assert init is not None
    assert notes[0].startswith(f"init = {name} (")
    assert f"for {count:,} images of about {side} pixels per side on {device}" in notes[0]


def test_small_images_on_a_cpu_are_trained_from_scratch(opened: list[str]) -> None:
    config, init, [note] = resolve(500, 48, "cpu")
    assert (config.init, init, opened) == (None, None, [])
    assert "scratch" in note
    assert resolve(500, 48, "cpu", train_only="head")[0].init == "dinov2-s"  # a frozen encoder must be pretrained


def test_batch_fits_a_small_gpu(monkeypatch: pytest.MonkeyPatch, dinov2: Path) -> None:
    each = cost(describe(dinov2).config.resized((224, 224))).activation_bytes
    for images, size in ((63, 32), (64, 64)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_, images=images: (2 * each * images, 2**50))
        assert chosen(9_000, 200, "cuda", init=dinov2, image_size=(224,)).config.batch_size == size


def test_run_without_a_network_starts_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise HubUnavailable(f"{name} cannot be reached")

    monkeypatch.setattr(defaults, "open_checkpoint", fail)
    config, init, [note] = resolve(500, 200, "cpu")
    assert (config.init, config.image_size, init) == (None, (), None)
    assert "dinov2-s cannot be reached" in note
    assert "scratch" in note
    with pytest.raises(OSError, match="cannot be reached"):
        resolve(500, 200, "cpu", train_only="head")


def test_other_problems_do_not_start_a_run_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError("the token was rejected")

    monkeypatch.setattr(defaults, "open_checkpoint", fail)
    with pytest.raises(OSError, match="token"):
        resolve(500, 200, "cpu")


@pytest.mark.slow
def test_run_starts_from_the_chosen_weights(
    opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = vitreous.train(
        data="shapes:size=56,count=8,val=4", init="auto", image_size=28, batch_size=4, steps=1, out=tmp_path / "run"
    )
    assert set(opened) == {"dinov2-s"}
    assert "auto: init = dinov2-s" in capsys.readouterr().out
    assert run.model.config.patch_stride == (14, 14)
    assert '"init": "dinov2-s"' in (tmp_path / "run" / "config.json").read_text()


def test_error_for_a_catalog_name_as_model_names_init() -> None:
    with pytest.raises(BadValue, match=r"model is 'dinov2-s', but must be a preset; .* --init dinov2-s"):
        vitreous.train(data="digits", model="dinov2-s")


def test_auto_needs_a_task_with_labels() -> None:
    with pytest.raises(BadValue, match=r"init is 'auto', but must be .*checkpoint.*--task mae"):
        vitreous.train(data="digits", task="mae", init="auto")


# ---- Advice ----------------------------------------------------------------------------------------------------------


def test_advice_names_the_command() -> None:
    advice = chosen(1_999, 49, data="my pictures").advice
    assert "`vitreous train --data 'my pictures' --init auto`" in advice
    assert "auto" not in chosen(1_999, 49, task="mae").advice


@pytest.mark.parametrize("count", [100, 9_000])
def test_error_for_a_preset_names_its_pretrained_weights(count: int) -> None:
    advice = chosen(count, 200, model="DINOv2-S/14-reg").advice
    assert "--init dinov2-s-reg" in advice
    assert ("100 images" in advice) == (count == 100)
    assert "--init" not in chosen(9_000, 200, model="ViT-S/4").advice
    assert "--init" not in chosen(9_000, 200, model="ViT-S/16", overrides={"registers": 4}).advice
    assert chosen(9_000, 200).advice == ""
    assert chosen(9_000, 200, model="ViT-B/16", task="mae").advice == ""
