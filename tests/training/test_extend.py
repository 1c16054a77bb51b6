"""`vitreous.extend` gives the same classifier as training on all images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from train_runs import skip_report
from vitreous.data.open import open_data
from vitreous.model.build import build
from vitreous.model.presets import configure
from vitreous.training.extend import merged_labels
from vitreous.training.run import train
from vitreous.weights.native import CALIBRATION, FAMILIARITY, STATISTICS, provenance_of

SMALL = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2, "channels": 1}
NAMES = ("apple", "cherry", "fig", "grape", "lemon", "melon", "olive", "peach", "pear", "plum")


def write(path: Path, keep: np.ndarray) -> Path:
    """Write the digits of a selection of rows, with names of fruit as labels."""
    source = open_data("digits").train
    pixels = np.stack([np.asarray(source.image(int(i)))[..., 0] for i in keep])
    val = open_data("digits").val
    labels = np.array(NAMES)[source.labels[keep]]
    known = np.flatnonzero(np.isin(np.array(NAMES)[val.labels], labels))
    np.savez(
        path,
        x_train=pixels,
        y_train=labels,
        x_val=np.stack([np.asarray(val.image(int(i)))[..., 0] for i in known]),
        y_val=np.array(NAMES)[val.labels[known]],
    )
    return path


class Fruit:
    """Classifiers of nine and of ten classes, and the images in which they differ."""

    def __init__(self, folder: Path):
        torch.manual_seed(0)
        vitreous.save(build(configure("ViT-Lite-6/4", 3, 8, SMALL)), folder / "start")
        labels = open_data("digits").train.labels[:600]
        new = labels == NAMES.index("fig")
        later = new | ((labels == 0) & (np.arange(600) >= 300))  # all figs, and some of the apples
        self.all = write(folder / "all.npz", np.arange(600))
        self.some = write(folder / "some.npz", np.flatnonzero(~later))
        self.more = write(folder / "more.npz", np.flatnonzero(later))
        self.run_all, self.run_some = (self.train(folder, data) for data in (self.all, self.some))

    def train(self, folder: Path, data: Path) -> Path:
        how: dict[str, Any] = {"train_only": "lda", "device": "cpu", "workers": 0, "init": folder / "start"}
        return train(data=data, out=folder / data.stem, **how).folder / "best"


@pytest.fixture(scope="module")
def fruit(tmp_path_factory: pytest.TempPathFactory) -> Fruit:
    with pytest.MonkeyPatch.context() as patch:
        skip_report(patch)
        return Fruit(tmp_path_factory.mktemp("fruit"))


def same(one: vitreous.ViT, other: vitreous.ViT) -> None:
    assert one.config.uncalibrated() == other.config.uncalibrated()
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-5, atol=1e-5)


def test_extending_equals_training_on_all_images(fruit: Fruit, tmp_path: Path) -> None:
    extension = vitreous.extend(fruit.run_some, fruit.more, tmp_path / "extended", device="cpu")
    assert extension.new_classes == ("fig",)
    assert set(extension.added) == {"apple", "fig"}
    assert extension.count == 600
    same(extension.model, vitreous.load(fruit.run_all))
    metrics = vitreous.evaluate(tmp_path / "extended", fruit.all, device="cpu")
    assert metrics.top1 > 0.6


def test_an_extended_checkpoint_can_be_extended(fruit: Fruit, tmp_path: Path) -> None:
    labels = open_data("digits").train.labels[:600]
    later = np.flatnonzero((labels == 2) | ((labels == 0) & (np.arange(600) >= 300)))
    first, second = (write(tmp_path / f"{i}.npz", part) for i, part in enumerate(np.array_split(later, 2)))
    vitreous.extend(fruit.run_some, first, tmp_path / "first", device="cpu")
    last = vitreous.extend(tmp_path / "first", second, tmp_path / "second", device="cpu")
    assert last.new_classes == ()
    same(last.model, vitreous.load(fruit.run_all))


def test_a_folder_with_one_class_is_enough(fruit: Fruit, tmp_path: Path) -> None:
    (tmp_path / "new" / "quince").mkdir(parents=True)
    for index in range(3):
        Image.new("L", (8, 8), 80 + index).save(tmp_path / "new" / "quince" / f"{index}.png")
    (tmp_path / "new" / "quince" / "broken.png").write_bytes(b"")
    extension = vitreous.extend(str(fruit.run_some), str(tmp_path / "new"), str(tmp_path / "out"), device="cpu")
    assert extension.added == {"quince": 3}
    assert len(extension.problems) == 1
    [result] = vitreous.predict(extension.model, tmp_path / "new" / "quince" / "1.png", device="cpu")
    assert result.predictions[0].label == "quince"


def test_an_extended_classifier_is_not_calibrated(fruit: Fruit, tmp_path: Path) -> None:
    before = vitreous.load(fruit.run_some)
    assert before.config.calibration is not None
    assert CALIBRATION in provenance_of(before)
    after = vitreous.extend(fruit.run_some, fruit.more, tmp_path / "extended", device="cpu").model
    assert after.config.calibration is None
    assert CALIBRATION not in provenance_of(after)
    assert not (tmp_path / "extended" / FAMILIARITY).exists()


def test_statistics_survive_saving_and_loading(fruit: Fruit, tmp_path: Path) -> None:
    vitreous.save(vitreous.load(fruit.run_some), tmp_path / "copy")
    vitreous.convert(tmp_path / "copy", tmp_path / "converted", to="vitreous")
    extension = vitreous.extend(tmp_path / "converted", fruit.more, tmp_path / "extended", device="cpu")
    same(extension.model, vitreous.load(fruit.run_all))


@pytest.mark.parametrize("change", ["weights", "image size", "classes", "bf16"])
def test_statistics_of_other_weights_are_not_saved(fruit: Fruit, tmp_path: Path, change: str) -> None:
    model = vitreous.load(fruit.run_some, image_size=16 if change == "image size" else None)
    if change == "weights":
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)
    if change == "classes":
        model.replace_head(2, ("cherry", "apple"))
    vitreous.save(model.bfloat16() if change == "bf16" else model, tmp_path / "changed")
    assert not (tmp_path / "changed" / STATISTICS).exists()
    with pytest.raises(ValueError, match="--train-only lda"):
        vitreous.extend(tmp_path / "changed", fruit.more, tmp_path / "out", device="cpu")


def test_weights_replaced_by_hand_are_detected(fruit: Fruit, tmp_path: Path) -> None:
    vitreous.save(vitreous.load(fruit.run_some), tmp_path / "copy")
    statistics = (tmp_path / "copy" / STATISTICS).read_bytes()
    model = vitreous.load(fruit.run_some)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    vitreous.save(model, tmp_path / "copy")
    (tmp_path / "copy" / STATISTICS).write_bytes(statistics)
    with pytest.raises(ValueError, match="changed"):
        vitreous.extend(tmp_path / "copy", fruit.more, tmp_path / "out", device="cpu")


def test_damaged_statistics_are_reported(fruit: Fruit, tmp_path: Path) -> None:
    vitreous.save(vitreous.load(fruit.run_some), tmp_path / "copy")
    (tmp_path / "copy" / STATISTICS).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=STATISTICS):
        vitreous.load(tmp_path / "copy")


def test_error_for_another_classifier_names_the_command(tmp_path: Path, fruit: Fruit) -> None:
    vitreous.save(build(configure("ViT-Lite-6/4", 3, 8, SMALL)), tmp_path / "plain")
    with pytest.raises(ValueError, match=r"vitreous train .* --train-only lda"):
        vitreous.extend(tmp_path / "plain", fruit.more, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "added", "expected"),
    [
        (["b", "d"], ["c", "d"], ("b", "c", "d")),
        (["2", "10"], ["9"], ("2", "9", "10")),
        (["10", "2"], ["9"], ("10", "2", "9")),
        (["d", "b"], ["c", "a"], ("d", "b", "c", "a")),
    ],
)
def test_classes_keep_the_order_of_a_data_set(before: list[str], added: list[str], expected: tuple[str, ...]) -> None:
    assert merged_labels(before, added) == expected
