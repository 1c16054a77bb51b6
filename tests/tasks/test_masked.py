"""Masked pretraining (MAE and MPP)."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from train_runs import finish, skip_report, tiny
from vitreous.data.loader import Batch
from vitreous.data.open import open_data
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.masked import MaskedAutoencoder
from vitreous.model.presets import configure
from vitreous.tasks.all_tasks import TASKS
from vitreous.tasks.masked import Mae, Masked, Mpp
from vitreous.tasks.unlabelled import Losses
from vitreous.training import Augment, Distillation, Masking, Optim, Segmenting, TrainConfig
from vitreous.training.defaults import choose
from vitreous.training.run import train
from vitreous.weights.io.safetensors_file import read_tensors
from vitreous.weights.native import load_folder


def filling(out: Path, task: str, **changes: Any) -> TrainConfig:
    """Images of 8 x 8 pixels in patches of 2."""
    small = {"patch_size": 2, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2, "channels": 1}
    small = changes.pop("overrides", small)
    light = Masking(decoder_width=32, decoder_depth=1) if task == "mae" else Masking()
    masking = changes.pop("masking", light)
    augment = Augment(crop="none", flip=0.0)
    return tiny(out, task=task, overrides=small, masking=masking, augment=augment, optim=Optim(lr=3e-3), **changes)


def task_of(small: ViTConfig, kind: str, masking: Masking | None = None) -> Masked:
    encoder = build_vit(dataclasses.replace(small, num_classes=0))
    masking = masking or Masking(decoder_width=32, decoder_depth=1)
    config = TrainConfig(masking=masking, augment=Augment(crop="none", flip=0.0))
    return (Mae if kind == "mae" else Mpp)(config, encoder)


def batch_of(labels: list[int]) -> Batch:
    images, where = torch.randint(0, 256, (len(labels), 3, 24, 32), dtype=torch.uint8), torch.arange(len(labels))
    return Batch(images, torch.tensor(labels), where, where, 0, [])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mae", "mpp"])
def test_a_run_learns_and_saves_an_encoder_for_other_tasks(task: str, tmp_path: Path) -> None:
    metrics = train(filling(tmp_path / "run", task, steps=66)).metrics
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["val_loss"] < 0.95 * rows[0]["val_loss"]
    assert metrics["loss"] == pytest.approx(rows[-1]["val_loss"], rel=1e-5)
    assert metrics["count"] == 359
    assert "top1" not in metrics
    assert (tmp_path / "run" / "reconstructions.png").exists()
    encoder = vitreous.load(tmp_path / "run" / "best")
    assert encoder.config.num_classes == 0
    assert not [name for name in encoder.state_dict() if "mask" in name or "paint" in name]
    # One step with a tiny learning rate: the classifier keeps the weights that it started from.
    fine = tiny(
        tmp_path / "fine", overrides={}, model=None, init=tmp_path / "run" / "best", steps=1, optim=Optim(lr=1e-12)
    )
    train(dataclasses.replace(fine, image_size=(), dropout=None, stochastic_depth=None))
    tuned = load_folder(tmp_path / "fine" / "last")
    assert tuned.config.num_classes == 10
    for name, tensor in encoder.state_dict().items():
        torch.testing.assert_close(tuned.state_dict()[name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_best_checkpoint_has_the_smallest_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    train(filling(tmp_path / "run", "mae", steps=22))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    provenance = json.loads((tmp_path / "run" / "best" / "config.json").read_text())["provenance"]
    smallest = min(rows, key=lambda row: row["val_loss"])
    assert provenance["step"] == smallest["step"]
    assert provenance["metrics"]["loss"] == smallest["val_loss"]


@pytest.mark.slow
def test_resume_after_kill_is_bit_identical(tmp_path: Path) -> None:
    """The decoder is not in the model folder, but must be restored too."""

    def everything(folder: Path) -> dict[str, torch.Tensor]:
        (shard,) = (folder / "last" / "training").glob("*.safetensors")
        return read_tensors(shard)

    whole, killed = filling(tmp_path / "whole", "mae"), filling(tmp_path / "killed", "mae", save_minutes=1e-5)
    assert finish(whole) == 0
    assert finish(killed, die_after=13) == -signal.SIGKILL
    assert finish(dataclasses.replace(killed, resume=True)) == 0
    one, other = everything(tmp_path / "whole"), everything(tmp_path / "killed")
    assert any("paint" in name for name in one)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["mae", "mpp"])
def test_evaluation_does_not_depend_on_the_batches(kind: str, small: ViTConfig) -> None:
    task, batch = task_of(small, kind), batch_of([0, 1, 2, 0])
    module = task.module()
    whole = task.evaluate(module, [batch], torch.float32)
    parts = [
        Batch(batch.images[i : i + 1], batch.labels[i : i + 1], batch.indices[i : i + 1], batch.keys[i : i + 1], 0, [])
        for i in range(4)
    ]
    apart = Losses.join([task.evaluate(module, [part], torch.float32) for part in reversed(parts)])
    torch.testing.assert_close(apart.losses, whole.losses)
    assert apart.metrics()["loss"] == pytest.approx(whole.losses.mean().item())


def test_unreadable_images_are_counted_and_have_no_weight(small: ViTConfig) -> None:
    task, batch = task_of(small, "mae"), batch_of([0, -1, 2])
    module = task.module()
    measured = task.evaluate(module, [batch], torch.float32)
    read = measured.losses[torch.tensor([0, 2])]
    assert measured.metrics() == {"loss": pytest.approx(read.mean().item()), "count": 2, "unreadable": 1}
    inputs = task.prepare(batch)
    loss, _ = task.loss(module.train(), inputs)
    each = task.predict(module, *inputs[:3]).losses
    torch.testing.assert_close(loss, each[0] + each[2])


def test_encoder_computes_only_visible_patches(small: ViTConfig) -> None:
    """At a mask rate of 75 %, its blocks get a quarter of the patches."""
    task, batch, lengths = task_of(small, "mae"), batch_of([0, 1]), []
    task.model.encoder.blocks[0].register_forward_hook(lambda block, inputs, output: lengths.append(output.shape[1]))
    task.loss(task.module(), task.prepare(batch))
    assert lengths == [small.num_prefix_tokens + 3]  # of 12


@pytest.mark.parametrize("name", ["ViT-Ti/16", "ViT-S/16", "ViT-B/16", "ViT-L/16", "ViT-H/14"])
def test_decoder_is_light(name: str) -> None:
    """Less than a twentieth of the encoder's work per token; in blocks, work is proportional to weights."""
    with torch.device("meta"):
        module = Mae(TrainConfig(), vitreous.create(name, num_classes=0)).module()
    assert isinstance(module, MaskedAutoencoder)
    decoder, encoder = (
        sum(weight.numel() for weight in blocks.parameters()) for blocks in (module.blocks, module.encoder.encoder)
    )
    assert 0.02 < decoder / encoder < 0.05


@pytest.mark.parametrize(
    ("depth", "width", "expected"),
    [(1, 192, (1, 96)), (7, 256, (2, 128)), (12, 768, (2, 384)), (23, 1024, (3, 512)), (60, 1280, (8, 512))],
)
def test_decoder_grows_with_the_encoder(depth: int, width: int, expected: tuple[int, int]) -> None:
    with torch.device("meta"):
        encoder = build_vit(configure("ViT-B/16", 0, 32, {"depth": depth, "width": width, "num_heads": 4}))
        module = Mae(TrainConfig(), encoder).module()
    assert isinstance(module, MaskedAutoencoder)
    assert (len(module.blocks), module.embed.out_features) == expected


def test_decoder_of_the_mae_paper_for_a_vit_l() -> None:
    with torch.device("meta"):
        module = Mae(TrainConfig(masking=Masking(decoder_depth=8)), vitreous.create("ViT-L/16")).module()
    assert isinstance(module, MaskedAutoencoder)
    attention = module.blocks[0].attention
    assert (len(module.blocks), module.embed.out_features, attention.num_heads) == (8, 512, 16)


def test_invalid_options_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mask_rate is 1\.0, but must be more than 0 and less than 1"):
        Masking(mask_rate=1.0).check()
    with pytest.raises(ValueError, match=r"decoder_width is 100, but must be a multiple of 32"):
        Masking(decoder_width=100).check()
    resnet = filling(tmp_path / "x", "mae", model="BiT-R50x1", overrides={"channels": 1}, image_size=(32,))
    with pytest.raises(ValueError, match="drop patches for --task mae"):
        train(dataclasses.replace(resnet, dropout=None, stochastic_depth=None))


UNUSED = [
    ({"smoothing": 0.1}, "mae mpp segment"),
    ({"flip_test": True}, "mae mpp segment"),
    ({"distillation": Distillation(teacher=Path("x"))}, "mae mpp segment"),
    ({"augment": Augment(mixup=0.2)}, "mae mpp"),
    ({"masking": Masking(mask_rate=0.4)}, "classify segment"),
    ({"masking": Masking(mpp_target="pixels")}, "classify segment mae"),
    ({"masking": Masking(decoder_depth=2)}, "classify segment mpp"),
    ({"segmenting": Segmenting(dice=1.0)}, "classify mae mpp"),
]


@pytest.mark.parametrize(("changes", "tasks"), UNUSED, ids=str)
def test_options_without_effect_are_rejected(changes: dict[str, Any], tasks: str) -> None:
    for task in ("classify", "segment", "mae", "mpp"):
        config = TrainConfig(data="x", task=task, **changes)
        config.check()
        if task in tasks.split():
            with pytest.raises(ValueError, match=f"has no effect with --task {task}"):
                TASKS[task].check(config)
        else:
            TASKS[task].check(config)


@pytest.mark.parametrize(("kind", "target"), [("mae", "colour"), ("mpp", "pixels")])
def test_predicted_images_have_no_gradient(kind: str, target: Any, small: ViTConfig) -> None:
    """A compiled step would compute gradients of zeros, as large as all images, for them."""
    task = task_of(small, kind, Masking(mpp_target=target))
    filled = task.predict(task.module(), *task.prepare(batch_of([0, 1]))[:3])
    assert filled.losses.requires_grad
    assert not filled.patches.requires_grad


@pytest.mark.parametrize("rate", [0.01, 0.99])
def test_some_patches_are_visible_and_some_hidden_at_any_rate(rate: float, small: ViTConfig) -> None:
    task = task_of(small, "mae", Masking(mask_rate=rate))
    filled = task.predict(task.module(), *task.prepare(batch_of([0, 1]))[:3])
    assert filled.hidden.sum(1).tolist() == [1 if rate < 0.5 else 11] * 2  # of 12
    assert filled.losses.isfinite().all()


def test_chosen_decoder_is_reported_and_saved_in_the_config(tmp_path: Path) -> None:
    """A later version may choose another one, but a resumed run keeps its own."""
    data = open_data("digits", labelled=False)
    given = filling(tmp_path, "mae", masking=Masking(decoder_depth=3))
    chosen = choose(given, data, "cpu")
    assert chosen.config.masking == Masking(decoder_width=32, decoder_depth=3)
    assert [note for note in chosen.notes if "decoder" in note] == [
        "decoder_width = 32 (for an encoder of width 32 and depth 2)"
    ]
    assert choose(filling(tmp_path, "mpp"), data, "cpu").config.masking == Masking()


@pytest.mark.slow
def test_resume_with_another_decoder_is_rejected(tmp_path: Path) -> None:
    train(filling(tmp_path, "mae", steps=1, masking=Masking(decoder_depth=2)))
    config = json.loads((tmp_path / "config.json").read_text())
    config["masking"]["decoder_depth"], config["steps"] = 1, 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"unexpected tensor weights\.blocks\.1.*64"):
        train(TrainConfig(data="", out=tmp_path, resume=True))
