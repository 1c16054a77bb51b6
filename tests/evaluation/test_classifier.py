"""`vitreous eval`: the figures of training again, from the checkpoint alone."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vitreous.common.checks import BadValue
from vitreous.data.open import open_data
from vitreous.evaluation.classifier import evaluate_classifier, print_evaluation
from vitreous.evaluation.setting import Setting, pick_part
from vitreous.inference.predictor import Predictor
from vitreous.model.build import build
from vitreous.model.presets import configure
from vitreous.weights.load import load, save

FIELDS = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2}
NAMES = ("[b]ird", "cat", "dog:smile:")  # folders may be called anything


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    for part, count in (("train", 3), ("val", 4), ("test", 5)):
        for label in NAMES:
            (tmp_path / "set" / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = chance.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "set" / part / label / f"{i}.png")
    (tmp_path / "set" / "test" / "cat" / "2.png").write_bytes(b"")
    return tmp_path / "set"


def checkpoint(folder: Path, labels: tuple[str, ...] = NAMES, classes: int = 3) -> Path:
    model = build(configure("ViT-Lite-6/4", classes, 8, FIELDS | {"labels": labels}))
    nn.init.normal_(model.head.weight)  # type: ignore[arg-type]
    save(model, folder / "model")
    return folder / "model"


def test_the_figures_are_those_of_the_predictor(pictures: Path, tmp_path: Path) -> None:
    """Two ways to the same: the loader of training, and the threads of `vitreous predict`."""
    model = checkpoint(tmp_path)
    figures, answers = evaluate_classifier(load(model), str(pictures), Setting(device="cpu", workers=0, batch_size=4))
    files = sorted(path for path in (pictures / "test").rglob("*.png") if path.stat().st_size)
    truth = torch.tensor([NAMES.index(path.parent.name) for path in files])
    logits = Predictor(load(model), device="cpu").logits(files)
    assert figures["part"] == "test"
    assert (figures["count"], figures["unreadable"]) == (14, 1)
    assert figures["top1"] == pytest.approx((logits.argmax(1) == truth).float().mean().item())
    assert figures["loss"] == pytest.approx(nn.functional.cross_entropy(logits, truth).item(), rel=1e-5)
    assert answers.problems == ["test/cat/2.png: the file is empty"]


def test_the_part_is_the_one_that_chose_nothing_unless_another_is_asked_for(pictures: Path) -> None:
    data = open_data(str(pictures))
    assert pick_part(data, None) == ("test", data.test)
    assert pick_part(data, "val") == ("val", data.val)
    digits = open_data("digits")
    assert pick_part(digits, None) == ("val", digits.val)
    with pytest.raises(ValueError, match="part is 'test', but digits has train, val"):
        pick_part(digits, "test")


@pytest.mark.parametrize(
    ("labels", "classes", "known"),
    [(("ant", "bee", "cow"), 3, "ant, bee, cow"), ((), 5, "5 unnamed"), (tuple("abcdef"), 6, "a, b, c, d, ...")],
)
def test_other_classes_are_no_measure(
    labels: tuple[str, ...], classes: int, known: str, pictures: Path, tmp_path: Path
) -> None:
    line = f"the checkpoint knows the classes {known}, but set has [b]ird, cat, dog:smile:"
    with pytest.raises(ValueError, match=re.escape(line)):
        evaluate_classifier(
            load(checkpoint(tmp_path, labels, classes)), str(pictures), Setting(device="cpu", workers=0)
        )


def test_bad_arguments_are_said_before_the_work(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="val_fraction"):
        evaluate_classifier(load(checkpoint(tmp_path)), str(pictures), Setting(val_fraction=3.0))


@pytest.mark.parametrize("as_json", [True, False])
def test_what_is_printed(
    as_json: bool, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    figures, answers = evaluate_classifier(load(checkpoint(tmp_path)), str(pictures), Setting(device="cpu", workers=0))
    print_evaluation(figures, answers, as_json, tmp_path / "out.json")
    out, record = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert record["unreadable_files"] == ["test/cat/2.png: the file is empty"]
    assert np.array(record["confusion"]).sum(1).tolist() == [5, 4, 5]
    assert [row["name"] for row in record["per_class"]] == list(NAMES)
    if as_json:
        assert json.loads(out) == record
        return
    assert all(name in out for name in NAMES)  # and not as markup
    assert f"{record['top1']:.4f}" in out
    assert "unreadable: test/cat/2.png: the file is empty" in out


def test_a_checkpoint_without_a_head_is_measured_by_its_features(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no head, so it knows no classes: .* --probe knn, linear or fewshot"):
        evaluate_classifier(build(configure("ViT-Lite-6/4", 0, 8, FIELDS)), str(pictures))


def test_names_of_classes_are_whole_in_a_pipe(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = " ".join(["cat"] * 40)
    for part in ("train", "val", "test"):
        (pictures / part / "cat").rename(pictures / part / long)
    names = ("[b]ird", long, "dog:smile:")
    model = load(checkpoint(tmp_path, names, 3))
    figures, answers = evaluate_classifier(model, str(pictures), Setting(device="cpu", workers=0))
    print_evaluation(figures, answers, False, None)
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f" {long} ")]
    assert len(row.removeprefix(f" {long} ").split()) == 4  # pictures, precision, recall, F1


def test_another_split_than_the_runs_own_is_doubted(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pictures may be among those that the model learned from, whatever it then gets right."""
    model, usual = load(checkpoint(tmp_path)), {"device": "cpu", "workers": 0, "batch_size": 4}
    own = {"seed": 3, "val_fraction": 0.4}
    vars(model)["provenance"] = {"data": "train", **own}
    alone = str(pictures / "train")  # which has no part to hold out but what is held out of it
    for data, split, doubted in ((alone, {}, True), (alone, own, False), (str(pictures), {}, False)):
        figures, answers = evaluate_classifier(model, data, Setting(**usual, **split))  # type: ignore[arg-type]
        print_evaluation(figures, answers, as_json=False, out=None)
        assert ("--seed 3 --val-fraction 0.4" in capsys.readouterr().err) == doubted
