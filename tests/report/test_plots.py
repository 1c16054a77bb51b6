import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitreous.report import plots
from vitreous.tasks.classification_metrics import Evaluation

NASTY = ("猫", "$\\frac{$", "a" * 80, "\x00\n\t", "🐱", "<b>", "مرحبا", "\udcff", "")


def evaluation(n: int, classes: int, names: tuple[str, ...] | None = None, skill: float = 2) -> Evaluation:
    labels = torch.arange(n) % classes
    logits = torch.randn(n, classes)
    logits[torch.arange(n), labels] += skill
    return Evaluation.of(logits, labels, names)


def draw_confusion(path: Path, evaluation: Evaluation) -> None:
    names = [evaluation.name(index) for index in range(evaluation.num_classes)]
    plots.confusion(path, evaluation.confusion().numpy(), names)


def history(epochs: int, validation: bool = True) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        row: dict[str, Any] = {
            "epoch": epoch,
            "step": epoch * 10,
            "loss": 2 / epoch,
            "top1": 1 - 1 / (epoch + 1),
            "lr": 1e-3,
        }
        if validation:
            row |= {"val_loss": 2.2 / epoch, "val_top1": 0.9 - (epoch - 5) ** 2 / 500}
        rows.append(row)
    return rows


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def ink(path: Path) -> float:
    """Fraction of the plot that is not white."""
    return float((pixels(path).min(-1) < 250).mean())


def accent(path: Path) -> int:
    """Number of pixels in the accent colour, that of validation."""
    wanted = [int(plots.ACCENT[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels(path) - wanted).max(-1) < 12).sum())


def test_curves_show_training_and_validation(tmp_path: Path) -> None:
    plots.curves(tmp_path / "both.png", history(20))
    plots.curves(tmp_path / "training.png", history(20, validation=False))
    assert accent(tmp_path / "both.png") > 500
    assert accent(tmp_path / "training.png") == 0
    assert ink(tmp_path / "training.png") > 0.01


def test_missing_metrics_have_no_panel(tmp_path: Path) -> None:
    plots.curves(tmp_path / "three.png", history(5))
    plots.curves(tmp_path / "one.png", [{"epoch": row["epoch"], "loss": row["loss"]} for row in history(5)])
    assert pixels(tmp_path / "three.png").shape[1] > 2.5 * pixels(tmp_path / "one.png").shape[1]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        [{"epoch": 1}],
        history(1),
        history(1, validation=False),
        [{"epoch": 0, "loss": 0.0, "lr": 0.0}],
        [{"loss": 1.0}, {"loss": 2.0}],
        [{"epoch": 1, "loss": math.nan, "val_loss": math.inf}, {"epoch": 2, "loss": None, "val_top1": "?"}],
        [{"epoch": 1, "train_loss": 1e9, "val_miou": 0.4}, {"epoch": 2, "train_loss": -3, "val_miou": 0.5}],
    ],
    ids=range(9),
)
def test_curves_of_few_or_invalid_rows(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    plots.curves(tmp_path / "x.png", rows)
    assert ink(tmp_path / "x.png") > 0


@pytest.mark.slow
def test_curves_of_many_steps_are_small(tmp_path: Path) -> None:
    rows = [{"epoch": step // 200, "step": step, "loss": random.random(), "lr": 1e-5} for step in range(6000)]
    rows += [{"epoch": epoch, "step": epoch * 200, "val_top1": epoch / 40} for epoch in range(1, 30)]
    plots.curves(tmp_path / "x.png", rows)
    assert (tmp_path / "x.png").stat().st_size < 400_000


def test_the_axis_is_one_on_which_steps_do_not_coincide() -> None:
    assert plots._axis(history(5)) == "epoch"
    assert plots._axis([{"epoch": step / 7, "step": step} for step in range(20)]) == "epoch"
    assert plots._axis([{"epoch": step // 7, "step": step} for step in range(20)]) == "step"
    assert plots._axis([{"epoch": 1, "loss": 1}]) == "epoch"
    assert plots._axis([{"step": 1}, {"step": 2}]) == "step"


def test_a_repeated_step_counts_once() -> None:
    rows = [{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 9.0}, {"epoch": 2, "loss": 2.0}]
    assert plots._series(rows, "epoch", "loss") == ({1: 3.0, 2: 2.0}, {})


def test_the_best_evaluation() -> None:
    rows = history(9)
    best = plots.best_row(rows)
    assert best is not None
    assert best["epoch"] == 5
    without = [{key: number for key, number in row.items() if key != "val_top1"} for row in rows]
    best = plots.best_row(without)
    assert best is not None
    assert best["epoch"] == 9  # the lowest loss
    assert plots.best_row(history(4, validation=False)) is None


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 2, 30, 31, 1000])
def test_confusion_of_few_and_many_classes(tmp_path: Path, classes: int) -> None:
    draw_confusion(tmp_path / "x.png", evaluation(2 * classes, classes))
    assert ink(tmp_path / "x.png") > 0.1
    assert max(pixels(tmp_path / "x.png").shape) < 2500


def test_rows_are_true_and_columns_predicted(tmp_path: Path) -> None:
    def corner(predicted: int) -> float:
        """Dark fraction of the lower left: class 1 predicted as class 0."""
        draw_confusion(tmp_path / "x.png", Evaluation.of(torch.eye(2)[[predicted] * 4], torch.tensor([0, 0, 1, 1])))
        image = pixels(tmp_path / "x.png")
        high, wide = image.shape[:2]
        return float((image[high // 2 : 3 * high // 4, wide // 8 : wide // 3].sum(-1) < 300).mean())

    assert corner(0) > 0.4
    assert corner(1) < 0.05


def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    draw_confusion(tmp_path / "x.png", evaluation(90, 9, NASTY))
    with Image.open(tmp_path / "x.png") as drawn:
        assert len(np.unique(np.asarray(drawn.convert("L")))) > 20  # shades, not an empty plot


@pytest.mark.parametrize("skill", [0, 2, 100])
def test_calibration_at_low_and_high_confidence(tmp_path: Path, skill: float) -> None:
    plots.calibration(tmp_path / "x.png", **vars(evaluation(100, 10, skill=skill).calibration()))
    assert accent(tmp_path / "x.png") > 20


@pytest.mark.parametrize(
    "images",
    [
        [],
        [torch.zeros(1, 8, 8)],
        [torch.zeros(3, 8, 8)] * 9,
        [torch.zeros(3, 100, 30), torch.zeros(1, 30, 100)],
        [torch.zeros(4, 70, 70)],
        [torch.zeros(2, 1, 1)],
    ],
    ids=lambda images: str([tuple(image.shape) for image in images[:2]]),
)
def test_every_image_of_a_grid_is_drawn_at_its_aspect_ratio(tmp_path: Path, images: list[Tensor]) -> None:
    width = 1.3
    plots.grid(tmp_path / "x.png", [image.byte() for image in images], ["a → b\n(97%)"] * len(images), 8, width)
    cell_width = 0.92 * width
    cell_height = cell_width * min(max((p.shape[1] / p.shape[2] for p in images), default=0), 2)
    scales = [min(cell_height / p.shape[1], cell_width / p.shape[2]) * plots.DPI for p in images]
    area = sum(p.shape[1] * p.shape[2] * scale**2 for p, scale in zip(images, scales, strict=True))
    black = (pixels(tmp_path / "x.png").max(-1) < 10).sum()  # captions are dark grey, images black
    assert black == pytest.approx(area, rel=0.03)
    assert ink(tmp_path / "x.png") > 0


def test_small_images_are_not_smoothed(tmp_path: Path) -> None:
    checks = (torch.arange(8)[:, None] + torch.arange(8)).remainder(2).mul(255).byte()[None]
    plots.grid(tmp_path / "x.png", [checks], [""])
    shown = pixels(tmp_path / "x.png")
    middle = (shown > 5) & (shown < 250)
    assert middle.mean() < 0.05  # squares with edges, not a grey blur


def test_arrays_keep_the_pixels() -> None:
    image = torch.randint(256, (3, 5, 7), dtype=torch.uint8)
    array = plots.as_array(image)
    assert array.shape == (5, 7, 3)
    assert (array == image.permute(1, 2, 0).numpy()).all()
    assert plots.as_array(image[:1]).shape == plots.as_array(image[:2]).shape == (5, 7)


def test_files_are_reproducible(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        plots.curves(tmp_path / name, history(5))
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.slow
def test_global_settings_of_matplotlib_are_unchanged(tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"text.usetex": True, "font.size": 30}):  # a user's own settings
        before = dict(mpl.rcParams)
        plots.curves(tmp_path / "x.png", history(3))
        assert dict(mpl.rcParams) == before
    plots.curves(tmp_path / "y.png", history(3))
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()
