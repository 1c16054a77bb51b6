"""Automatic choice of the trained weights, layer decay and optimizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from automatic_choices import TINY, checkpoint, chosen
from vitreous import create
from vitreous.training import Distillation, Optim
from vitreous.weights.load import save


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("checkpoints") / "vit")


def settings(*args: Any, **fields: Any) -> tuple[str | None, float | None, str | None]:
    config = chosen(*args, **fields).config
    return config.train_only, config.optim.layer_decay, config.optim.optimizer


def test_few_images_are_fine_tuned_with_lora_and_many_with_all_weights(vit: Path) -> None:
    assert settings(19_999, init=vit) == ("lora", None, "adamw")
    assert settings(20_000, init=vit) == ("all", 0.75, "adamw")


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "segment"},
        {"parallel": "fsdp"},
        {"optim": Optim("sgd")},
        {"optim": Optim("muon")},
        {"optim": Optim(layer_decay=0.9)},
    ],
    ids=str,
)
def test_options_that_exclude_lora_train_all_weights(fields: dict[str, Any], vit: Path) -> None:
    train_only, layer_decay, _ = settings(init=vit, **fields)
    assert train_only == "all"
    given = fields.get("optim", Optim()).layer_decay
    assert layer_decay == (given or (0.65 if "task" in fields else 0.75))


def test_checkpoints_of_runs_are_fine_tuned_with_all_weights(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    about = json.loads((folder / "config.json").read_text())
    about["provenance"] = {"run": "first"}
    (folder / "config.json").write_text(json.dumps(about))
    assert settings(init=folder) == ("all", 0.75, "adamw")


def test_given_weights_and_layer_decay_are_kept(vit: Path) -> None:
    assert settings(init=vit, train_only="head")[:2] == ("head", None)
    assert settings(init=vit, train_only="all", optim=Optim(layer_decay=1.0))[:2] == ("all", 1.0)


@pytest.mark.parametrize("task", ["classify", "segment"])
def test_vits_are_trained_from_scratch_with_muon(task: Any) -> None:
    assert settings(task=task) == ("all", None, "muon")
    assert settings(task=task, optim=Optim(lr=1e-3))[2] == "adamw"  # the rate may be meant for AdamW
    assert settings(task=task, optim=Optim("sgd"))[2] == "sgd"


def test_distillation_from_scratch_uses_muon(vit: Path) -> None:
    teacher = Distillation(teacher=vit)
    assert settings(task="distil", distillation=teacher) == ("all", None, "muon")
    assert settings(task="distil", distillation=teacher, init=vit) == ("all", None, "adamw")


def test_other_models_and_tasks_use_adamw(tmp_path: Path) -> None:
    assert settings(side=128, model="BiT-R50x1") == ("all", None, "adamw")
    assert settings(task="mae") == ("all", None, "adamw")
    save(create("BiT-R50x1", num_classes=0, image_size=64, overrides={"stages": (1,), "width": 32}), tmp_path / "r")
    assert settings(init=tmp_path / "r") == ("all", None, "adamw")


def test_small_images_on_a_gpu_get_a_larger_model_if_there_are_many() -> None:
    assert chosen(20_000, 32, "cuda").config.model == "ViT-S/4"
    assert chosen(19_999, 32, "cuda").config.model == chosen(20_000, 32, "cpu").config.model == "ViT-Lite-7/4"
    assert chosen(20_000, 32, "cuda", model="ViT-Ti/16", overrides=TINY).config.model == "ViT-Ti/16"
