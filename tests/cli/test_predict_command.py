"""`vitreous predict` and `vitreous embed`, from files to files."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from masked_folders import folder
from vitreous.cli.predict_command import embed_files, predict_files
from vitreous.common.checks import BadValue
from vitreous.inference import Predictor
from vitreous.model.build import build, build_segmenter
from vitreous.model.config import SegmenterConfig
from vitreous.model.presets import configure
from vitreous.weights.load import load, save

FIELDS = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2, "labels": ("ant", "bee", "cat")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = build(configure("ViT-Lite-6/4", 3, 8, FIELDS))
    nn.init.normal_(made.head.weight)  # type: ignore[arg-type]
    save(made, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def segmenter(tmp_path: Path) -> Path:
    encoder = configure("ViT-Lite-6/4", 0, 8, {name: FIELDS[name] for name in FIELDS if name != "labels"})
    save(build_segmenter(SegmenterConfig(encoder, num_classes=2)), tmp_path / "segmenter")
    return tmp_path / "segmenter"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    (tmp_path / "set").mkdir()
    for i in range(5):
        Image.fromarray(chance.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(tmp_path / "set" / f"{i}.png")
    (tmp_path / "set" / "2.png").write_bytes(b"no picture")
    return tmp_path / "set"


def predict(model: Path, *images: str, **changes: Any) -> None:
    options = {"image_size": (), "top": 2, "flip": False, "batch_size": 2, "device": "cpu", "precision": "fp32"}
    predict_files(model, images, **({**options, "as_json": False, "out": None} | changes))  # type: ignore[arg-type]


def embed(model: Path, *images: str, out: Path) -> None:
    embed_files(model, images, image_size=(), flip=False, batch_size=2, device="cpu", precision="fp32", out=out)


def test_a_line_of_json_for_each_picture(model: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, str(pictures), as_json=True)
    said = capsys.readouterr()
    answers = [json.loads(line) for line in said.out.splitlines()]
    assert [Path(answer["path"]).name for answer in answers] == [f"{i}.png" for i in range(5)]
    assert "error" in answers[2]
    assert "predictions" not in answers[2]
    files = [pictures / f"{i}.png" for i in (0, 1, 3, 4)]
    probabilities = Predictor(load(model), device="cpu").logits(files).softmax(1)
    for answer, row in zip([answers[i] for i in (0, 1, 3, 4)], probabilities, strict=True):
        told = {one["label"]: one["probability"] for one in answer["predictions"]}
        best = {FIELDS["labels"][i]: pytest.approx(float(row[i]), abs=1e-5) for i in row.topk(2).indices}  # type: ignore[index]
        assert told == best
    assert said.err.startswith("5 pictures, 1 of them unreadable, ")
    assert said.err.rstrip().endswith("images/s on cpu")


def test_a_table_for_people(model: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, f"{pictures}/[01].png", f"{pictures}/2.png")
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "%" in line]) == 2
    assert any("error: not an image" in " ".join(line.split()) for line in lines)


def test_one_picture_is_not_several(model: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, f"{pictures}/0.png")
    assert capsys.readouterr().err.startswith("1 picture, ")


def test_at_another_size(model: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, f"{pictures}/0.png", image_size=(16,), as_json=True, top=3)
    told = json.loads(capsys.readouterr().out)["predictions"]
    larger = Predictor(load(model, image_size=16), device="cpu", top=3)([pictures / "0.png"])[0].predictions
    assert [(one["label"], one["probability"]) for one in told] == [
        (one.label, pytest.approx(one.probability, abs=1e-5)) for one in larger
    ]


def test_to_a_file(model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, str(pictures), out=tmp_path / "answers.csv")
    said = capsys.readouterr()
    assert said.out == ""
    assert f"5 pictures to {tmp_path / 'answers.csv'}, 1 of them unreadable" in said.err
    with (tmp_path / "answers.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5


def test_features_to_a_file(model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embed(model, str(pictures), out=tmp_path / "vectors.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text().splitlines()]
    vectors = torch.tensor([row["embedding"] for row in rows if "embedding" in row])
    expected = Predictor(load(model), device="cpu").embed([pictures / f"{i}.png" for i in (0, 1, 3, 4)])
    torch.testing.assert_close(vectors, expected)
    assert "5 pictures" in capsys.readouterr().err


def test_what_cannot_be_written_is_said_before_a_model_is_loaded(tmp_path: Path, pictures: Path) -> None:
    with pytest.raises(ValueError, match="xls"):
        embed(tmp_path / "nowhere", str(pictures), out=tmp_path / "answers.xls")


@pytest.mark.parametrize("name", ["x.npz", "x.json", "x.png", "folder"])
def test_what_cannot_be_written_is_said_in_the_words_of_the_model(
    name: str, model: Path, segmenter: Path, pictures: Path, tmp_path: Path
) -> None:
    if name != "x.json":
        with pytest.raises(BadValue, match=r"but must be a name that ends in \.json"):
            predict(model, str(pictures), out=tmp_path / name)
    if name != "folder":
        with pytest.raises(BadValue, match="but must be a folder for masks"):
            predict(segmenter, str(pictures), out=tmp_path / name, top=None)
    assert not (tmp_path / name).exists()


def test_a_segmenter_writes_into_any_folder_that_is_there(segmenter: Path, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.v2").mkdir()
    predict(segmenter, str(pictures / "0.png"), out=tmp_path / "cut.v2", top=None)
    assert (tmp_path / "cut.v2" / "masks" / "0.png").is_file()


def test_labels_are_not_counted_for_a_segmenter(segmenter: Path, pictures: Path) -> None:
    run = vitreous("predict", segmenter, pictures / "0.png", "--device", "cpu", "--top", 3)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert "top is 3, but must be left out for a segmenter" in run.stderr


def test_five_labels_where_nobody_says_how_many(tmp_path: Path, pictures: Path) -> None:
    save(build(configure("ViT-Lite-6/4", 7, 8, {**FIELDS, "labels": ()})), tmp_path / "seven")
    run = vitreous("predict", tmp_path / "seven", pictures / "0.png", "--device", "cpu", "--json")
    assert len(json.loads(run.stdout)["predictions"]) == 5


def test_masks_beside_pictures_are_no_pictures(
    model: Path, segmenter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder(tmp_path / "data", count=3)
    note = f"{data} has pictures beside masks: 3 masks left out\n3 pictures"
    predict(segmenter, str(data), top=None, as_json=True)
    said = capsys.readouterr()
    assert [Path(json.loads(line)["path"]).suffix for line in said.out.splitlines()] == [".jpg"] * 3
    assert said.err.startswith(note)
    predict(model, str(data))
    assert capsys.readouterr().err.startswith(note)
    embed(segmenter, str(data), out=tmp_path / "vectors.jsonl")
    assert capsys.readouterr().err.startswith(note)
    assert len((tmp_path / "vectors.jsonl").read_text().splitlines()) == 3


def test_pictures_that_are_not_there_are_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.jpg"):
        predict(tmp_path / "nowhere", str(tmp_path / "nothing.jpg"))


def vitreous(*arguments: object) -> subprocess.CompletedProcess[str]:
    """As in a shell, with both outputs in a pipe."""
    words = [sys.executable, "-m", "vitreous", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})


def test_in_a_pipe_every_path_is_whole(model: Path, pictures: Path) -> None:
    deep = pictures / "/".join(["a folder whose name is long"] * 4)
    deep.mkdir(parents=True)
    files = [shutil.copy(pictures / f"{i}.png", deep / f"{i}.png") for i in range(2)]
    run = vitreous("predict", model, deep, "--device", "cpu")
    assert run.returncode == 0
    _, *lines = run.stdout.splitlines()
    for file, line in zip(files, lines, strict=True):
        assert line.startswith(f" {file} ")
        assert "%" in line
    _, *facts = vitreous("info", model).stdout.splitlines()
    assert all(line.strip().split("  ")[0] for line in facts)  # no line goes on in the next
    assert max(map(len, facts)) > 80
    assert not any(line.endswith(" ") for line in (*lines, *facts))  # rows are not filled up to the longest


@pytest.mark.parametrize(
    "words", [["predict"], ["predict", "--json"], ["predict", "--out", "x.csv"], ["embed", "--out", "x.csv"]]
)
def test_where_no_picture_can_be_read_the_run_has_failed(
    words: list[str], model: Path, pictures: Path, tmp_path: Path
) -> None:
    verb, *options = [str(tmp_path / word) if word == "x.csv" else word for word in words]
    run = vitreous(verb, model, pictures / "2.png", *options, "--device", "cpu")
    assert run.returncode == 1
    assert run.stderr.startswith("vitreous: no picture could be read: 1 of 1 failed")
    assert len(run.stderr.splitlines()) == 1
    told = (tmp_path / "x.csv").read_text() if options[-1:] == [str(tmp_path / "x.csv")] else run.stdout
    assert "not an image" in told
    some = vitreous(verb, model, pictures, *options, "--device", "cpu")
    assert some.returncode == 0
    assert "5 pictures" in some.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "gpu"], "device is 'gpu', but must be auto, cpu, cuda, mps"),
        (["--out", "answers.xlsx"], "out is 'answers.xlsx', but must be a name that ends in .json"),
    ],
)
def test_arguments_that_cannot_be(words: list[str], message: str, model: Path, pictures: Path) -> None:
    run = vitreous("predict", model, pictures / "0.png", *words)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert message in run.stderr


def test_no_pictures_at_all(model: Path) -> None:
    run = vitreous("predict", model)
    assert run.returncode == 2
    assert "images is '', but must be files, folders, globs" in run.stderr


def test_a_segmenter_says_how_to_get_masks(segmenter: Path, pictures: Path, tmp_path: Path) -> None:
    run = vitreous("predict", segmenter, pictures / "0.png", "--device", "cpu")
    assert (run.returncode, run.stdout.count("\n")) == (0, 1)
    assert "masks and overlays are written with --out FOLDER" in run.stderr
    kept = vitreous("predict", segmenter, pictures / "0.png", "--device", "cpu", "--out", tmp_path / "cut")
    assert "--out" not in kept.stderr
    assert (tmp_path / "cut" / "masks" / "0.png").is_file()
    broken = vitreous("predict", segmenter, pictures / "2.png", "--device", "cpu")
    assert (broken.returncode, broken.stderr.count("\n")) == (1, 1)
