"""`vitreous.evaluate`: the metrics of training, computed from the model alone."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitreous
from vitreous.cli.eval import print_metrics
from vitreous.common.checks import BadValue
from vitreous.data.open import open_data
from vitreous.evaluation import ClassificationMetrics
from vitreous.evaluation.evaluate_model import choose_split
from vitreous.model.build import build
from vitreous.model.presets import configure
from vitreous.weights.load import load, save

FIELDS = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2}
NAMES = ("[b]ird", "cat", "dog:smile:")  # folders may have any name


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 4), ("test", 5)):
        for label in NAMES:
            (tmp_path / "set" / split / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "set" / split / label / f"{i}.png")
    (tmp_path / "set" / "test" / "cat" / "2.png").write_bytes(b"")
    return tmp_path / "set"


def checkpoint(folder: Path, labels: tuple[str, ...] = NAMES, classes: int = 3) -> Path:
    model = build(configure("ViT-Lite-6/4", classes, 8, FIELDS | {"labels": labels}))
    nn.init.normal_(model.head.weight)  # type: ignore[arg-type]
    save(model, folder / "model")
    return folder / "model"


def evaluated(model: Any, data: Path, **options: Any) -> ClassificationMetrics:
    metrics = vitreous.evaluate(model, data, **{"device": "cpu", "workers": 0, "batch_size": 4} | options)
    assert isinstance(metrics, ClassificationMetrics)
    return metrics


def test_metrics_equal_those_of_predicted_scores(images: Path, tmp_path: Path) -> None:
    model = checkpoint(tmp_path)
    metrics = evaluated(model, images)
    files = sorted(path for path in (images / "test").rglob("*.png") if path.stat().st_size)
    truth = torch.tensor([NAMES.index(path.parent.name) for path in files])
    logits = vitreous.Predictor(load(model), device="cpu").logits(files)  # type: ignore[arg-type]
    assert metrics.split == "test"
    assert (metrics.count, metrics.unreadable) == (14, 1)
    assert metrics.top1 == pytest.approx((logits.argmax(1) == truth).float().mean().item())
    assert metrics.loss == pytest.approx(nn.functional.cross_entropy(logits, truth).item(), rel=1e-5)
    assert metrics.evaluation.problems == ["test/cat/2.png: the file is empty"]


def test_a_model_and_its_checkpoint_give_the_same_metrics(images: Path, tmp_path: Path) -> None:
    model = checkpoint(tmp_path)
    timed = ("seconds", "images_per_second")
    for options in ({}, {"image_size": 16, "flip": True, "split": "val"}):
        records = [evaluated(one, images, **options).to_dict() for one in (model, str(model), load(model))]
        plain = [{key: value for key, value in record.items() if key not in timed} for record in records]
        assert plain[0] == plain[1] == plain[2]


def test_the_default_split_is_test_else_val(images: Path) -> None:
    data = open_data(str(images))
    assert choose_split(data) == ("test", data.test)
    assert choose_split(data, "val") == ("val", data.val)
    digits = open_data("digits")
    assert choose_split(digits) == ("val", digits.val)
    with pytest.raises(ValueError, match="split is 'test', but digits only has train, val"):
        choose_split(digits, "test")


@pytest.mark.parametrize(
    ("labels", "classes", "known"),
    [
        (("ant", "bee", "cow"), 3, "the classes ant, bee, cow"),
        ((), 5, "on 5 unnamed classes"),
        (tuple("abcdef"), 6, "the classes a, b, c, d, ..."),
    ],
)
def test_data_with_other_classes_is_rejected(
    labels: tuple[str, ...], classes: int, known: str, images: Path, tmp_path: Path
) -> None:
    pattern = rf"{re.escape(known)}, but .*{re.escape('[b]ird, cat, dog:smile:')}"
    with pytest.raises(ValueError, match=pattern):
        evaluated(checkpoint(tmp_path, labels, classes), images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 3.0}, "val_fraction"),
        ({"ignore": ("sky",)}, "ignore is 'sky', but must be omitted for a classifier"),
        ({"shots": (5,)}, "shots .* effect with --probe fewshot"),
        ({"features": "class+mean"}, "features .* effect with --probe"),
    ],
)
def test_invalid_or_unused_options_are_rejected(
    options: dict[str, Any], message: str, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadValue, match=message):
        evaluated(checkpoint(tmp_path), images, **options)


def test_error_for_a_model_without_a_head_names_the_probes(images: Path) -> None:
    with pytest.raises(ValueError, match=r"has no head.* --probe knn, linear or fewshot"):
        evaluated(build(configure("ViT-Lite-6/4", 0, 8, FIELDS)), images)


def test_another_split_than_that_of_the_run_is_a_warning(images: Path, tmp_path: Path) -> None:
    """The model may have been trained on some of its images."""
    model, own = load(checkpoint(tmp_path)), {"seed": 3, "val_fraction": 0.4}
    vars(model)["provenance"] = {"data": "train", **own}
    alone = images / "train"  # without a validation split
    for data, split, doubted in ((alone, {}, True), (alone, own, False), (images, {}, False)):
        assert ("--seed 3 --val-fraction 0.4" in evaluated(model, data, **split).doubt) == doubted


# ---- Tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [True, False])
def test_printed_metrics(
    as_json: bool, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_metrics(evaluated(checkpoint(tmp_path), images), as_json, tmp_path / "out.json")
    out, record = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert record["part"] == "test"
    assert record["unreadable_files"] == ["test/cat/2.png: the file is empty"]
    assert np.array(record["confusion"]).sum(1).tolist() == [5, 4, 5]
    assert [row["name"] for row in record["per_class"]] == list(NAMES)
    if as_json:
        assert json.loads(out) == record
        return
    assert all(name in out for name in NAMES)  # and not as markup
    assert f"{record['top1']:.4f}" in out
    assert "unreadable: test/cat/2.png: the file is empty" in out


def test_top5_is_printed_only_for_more_than_five_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for classes in (5, 6):
        x, y = np.zeros((12, 8, 8, 3), np.uint8), np.arange(12) % classes
        np.savez(tmp_path / "set.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        metrics = evaluated(checkpoint(tmp_path / str(classes), (), classes), tmp_path / "set.npz")
        assert "top5" in metrics.to_dict()
        print_metrics(metrics, False, None)
        assert ("top5" in capsys.readouterr().out) == (classes > 5)


def test_class_names_are_not_truncated_in_a_pipe(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = " ".join(["cat"] * 40)
    for split in ("train", "val", "test"):
        (images / split / "cat").rename(images / split / long)
    print_metrics(evaluated(checkpoint(tmp_path, ("[b]ird", long, "dog:smile:"), 3), images), False, None)
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f" {long} ")]
    assert len(row.removeprefix(f" {long} ").split()) == 4  # images, precision, recall, F1


def test_warnings_are_printed_to_stderr(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(checkpoint(tmp_path))
    vars(model)["provenance"] = {"data": "train", "seed": 3, "val_fraction": 0.4}
    print_metrics(evaluated(model, images / "train"), True, None)
    assert "--seed 3 --val-fraction 0.4" in capsys.readouterr().err
