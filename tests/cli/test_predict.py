"""`vitreous predict`: tables, files, summary and errors."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import vitreous
from command_line import CommandLine
from masked_folders import folder
from vitreous.cli.predict import predict as predict_verb
from vitreous.cli.prediction_output import print_table
from vitreous.common.checks import BadValue
from vitreous.inference import Predictor
from vitreous.inference.predict_images import MasksSkipped
from vitreous.inference.predictions import Prediction, Segmentation
from vitreous.model.options import MultiLabel, Numbers, OutputConfig
from vitreous.model.top_labels import Label
from vitreous.weights.load import load


def predict(model: Path, *images: str, **changes: Any) -> None:
    options = {"top": 2, "batch_size": 2, "device": "cpu"}
    predict_verb(model, images, **(options | changes))  # type: ignore[arg-type]


def test_json_has_a_line_for_each_image(model: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, str(images), json=True)
    output = capsys.readouterr()
    answers = [json.loads(line) for line in output.out.splitlines()]
    assert [Path(answer["path"]).name for answer in answers] == [f"{i}.png" for i in range(5)]
    assert "error" in answers[2]
    assert "predictions" not in answers[2]
    files = [images / f"{i}.png" for i in (0, 1, 3, 4)]
    probabilities = Predictor(load(model), device="cpu").logits(files).softmax(1)
    for answer, row in zip([answers[i] for i in (0, 1, 3, 4)], probabilities, strict=True):
        found = {one["label"]: one["probability"] for one in answer["predictions"]}
        best = {("ant", "bee", "cat")[i]: pytest.approx(float(row[i]), abs=1e-5) for i in row.topk(2).indices}
        assert found == best
    assert output.err.startswith("5 images processed, 1 unreadable, ")
    assert "images/s on cpu (PyTorch " in output.err


def test_predictions_are_printed_as_a_table(model: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, f"{images}/[01].png", f"{images}/2.png")
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "%" in line]) == 2
    assert any("error: not a" in " ".join(line.split()) for line in lines)


def test_one_image_is_singular(model: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, f"{images}/0.png")
    assert capsys.readouterr().err.startswith("1 image processed, ")


def test_prediction_at_another_image_size(model: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(model, f"{images}/0.png", image_size=(16,), json=True, top=3)
    found = json.loads(capsys.readouterr().out)["predictions"]
    larger = Predictor(load(model, image_size=16), device="cpu", top=3)([images / "0.png"])[0].predictions
    assert [(one["label"], one["probability"]) for one in found] == [
        (one.label, pytest.approx(one.probability, abs=1e-5)) for one in larger
    ]


def test_predictions_are_written_to_a_file(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predict(model, str(images), out=tmp_path / "answers.csv")
    output = capsys.readouterr()
    assert output.out == ""
    assert "5 images processed, 1 unreadable" in output.err
    assert f"written to {tmp_path / 'answers.csv'}" in output.err
    with (tmp_path / "answers.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5


@pytest.mark.parametrize("name", ["x.npz", "x.json", "x.png"])
def test_an_unsupported_output_is_rejected_for_each_kind_of_model(
    name: str, model: Path, segmenter: Path, images: Path, tmp_path: Path
) -> None:
    if name != "x.json":
        with pytest.raises(BadValue, match=r"ending in one of \.json"):
            predict(model, str(images), out=tmp_path / name)
    with pytest.raises(BadValue, match="a folder for masks"):
        predict(segmenter, str(images), out=tmp_path / name, top=None)
    assert not (tmp_path / name).exists()


def test_a_segmenter_writes_into_any_existing_folder(segmenter: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.v2").mkdir()
    predict(segmenter, str(images / "0.png"), out=tmp_path / "cut.v2", top=None)
    assert (tmp_path / "cut.v2" / "masks" / "0.png").is_file()


def test_top_is_rejected_for_a_segmenter(segmenter: Path, images: Path, command: CommandLine) -> None:
    run = command("predict", segmenter, images / "0.png", "--device", "cpu", "--top", 3)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert "top is 3, but must be omitted for a segmenter" in run.stderr


def test_five_labels_by_default(checkpoint: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict_verb(checkpoint, (str(images / "0.png"),), device="cpu", json=True)
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 5


def test_masks_beside_images_are_not_predicted(
    model: Path, segmenter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder(tmp_path / "data", count=3)
    skipped = pytest.warns(MasksSkipped, match="3 masks skipped")
    with skipped:
        predict(segmenter, str(data), top=None, json=True)
    lines = capsys.readouterr().out.splitlines()
    assert [Path(json.loads(line)["path"]).suffix for line in lines] == [".jpg"] * 3
    with skipped:
        predict(model, str(data))
    assert capsys.readouterr().err.startswith("3 images")


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process and capture its output."""
    words = [sys.executable, "-m", "vitreous", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})


@pytest.mark.slow
def test_paths_are_not_truncated_in_a_pipe(model: Path, images: Path) -> None:
    deep = images / "/".join(["a folder whose name is long"] * 4)
    deep.mkdir(parents=True)
    files = [shutil.copy(images / f"{i}.png", deep / f"{i}.png") for i in range(2)]
    run = shell("predict", model, deep, "--device", "cpu")
    assert run.returncode == 0
    _, *lines = run.stdout.splitlines()
    for file, line in zip(files, lines, strict=True):
        assert line.startswith(f" {file} ")
        assert "%" in line
    _, *facts = shell("info", model).stdout.splitlines()
    assert all(line.strip().split("  ")[0] for line in facts)  # no line is wrapped
    assert max(map(len, facts)) > 80
    assert not any(line.endswith(" ") for line in (*lines, *facts))  # rows are not padded to the longest


@pytest.mark.parametrize("words", [[], ["--json"], ["--out", "x.csv"]])
def test_a_run_without_a_readable_image_fails(
    words: list[str], model: Path, images: Path, tmp_path: Path, command: CommandLine
) -> None:
    options = [str(tmp_path / word) if word == "x.csv" else word for word in words]
    run = command("predict", model, images / "2.png", *options, "--device", "cpu")
    assert run.returncode == 1
    assert run.stderr.startswith("vitreous: no image could be read (1 image")
    assert len(run.stderr.splitlines()) == 1
    found = (tmp_path / "x.csv").read_text() if "--out" in words else run.stdout
    assert "not a" in found
    some = command("predict", model, images, *options, "--device", "cpu")
    assert some.returncode == 0
    assert "5 images" in some.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "gpu"], "auto, cpu, cuda, mps"),
        (["--out", "answers.xlsx"], "ending in one of .json"),
    ],
)
def test_invalid_arguments_are_rejected(
    words: list[str], message: str, model: Path, images: Path, command: CommandLine
) -> None:
    run = command("predict", model, images / "0.png", *words)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert message in run.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere", "nothing.jpg"], 1, "nothing.jpg"),
        (["nowhere", "--image-size", "64", "48", "nothing.jpg"], 1, "nothing.jpg"),
        (["nowhere", "nothing.jpg", "--image-size", "big"], 2, "--image-size"),
    ],
)
def test_missing_images_and_malformed_flags_are_rejected(
    command: CommandLine, arguments: list[str], status: int, message: str
) -> None:
    done = command("predict", *arguments)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())


def test_no_images_is_an_error(model: Path, command: CommandLine) -> None:
    run = command("predict", model)
    assert run.returncode == 2
    assert "files, folders, globs" in run.stderr


def test_a_segmenter_hints_at_the_flag_that_writes_masks(
    segmenter: Path, images: Path, tmp_path: Path, command: CommandLine
) -> None:
    run = command("predict", segmenter, images / "0.png", "--device", "cpu")
    assert (run.returncode, run.stdout.count("\n")) == (0, 1)
    assert "--out FOLDER" in run.stderr
    kept = command("predict", segmenter, images / "0.png", "--device", "cpu", "--out", tmp_path / "cut")
    assert "--out" not in kept.stderr
    assert (tmp_path / "cut" / "masks" / "0.png").is_file()
    broken = command("predict", segmenter, images / "2.png", "--device", "cpu")
    assert (broken.returncode, broken.stderr.count("\n")) == (1, 1)


def test_table_of_predictions() -> None:
    cat = Prediction("a/cat.jpg", (Label("cat", 3, 0.75), Label("dog, small", 1, 0.25)))
    dog = Prediction("dog\udce9.png", (Label("犬 [bold]", 0, 0.5), Label("line\nbreak", 2, 0.125)))
    text = io.StringIO()
    print_table([Prediction("bad.jpg", error="the file is empty"), cat, dog], Console(file=text, width=100))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert lines[0] == "image label probability other labels"
    assert lines[1] == "bad.jpg error: the file is empty"
    assert lines[2] == "a/cat.jpg cat 75.0% dog, small 25.0%"
    assert lines[3].startswith("dog?.png 犬 [bold] 50.0% line")


# ---- As functions ----------------------------------------------------------------------------------------------------


def test_predict_as_a_function_takes_models_checkpoints_files_and_arrays(model: Path, images: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "top": 2}
    array = np.array(Image.open(images / "0.png"))
    results = vitreous.predict(model, images, batch_size=1, **options)
    found = list(results)
    assert (results.images, results.errors, len(results.paths)) == (5, 1, 5)
    [named] = vitreous.predict(load(model), str(images / "0.png"), **options)
    [plain] = vitreous.predict(load(model), array, **options)
    assert found[0] == named
    assert plain.predictions == named.predictions  # type: ignore[union-attr]


def test_predict_as_a_function_gives_masks_for_a_segmenter(segmenter: Path, images: Path) -> None:
    [result] = vitreous.predict(segmenter, images / "0.png", device="cpu")
    assert isinstance(result, Segmentation)
    assert result.mask is not None
    assert result.mask.shape == (9, 12)


@pytest.mark.parametrize(
    ("output", "columns"),
    [(MultiLabel((0.1, 0.9, 0.5)), ("labels", "other labels")), (Numbers((1.0,) * 3, (2.0,) * 3), "abc")],
)
def test_several_labels_and_numbers_are_printed(
    command: CommandLine, output: OutputConfig, columns: Sequence[str], tmp_path: Path
) -> None:
    model = vitreous.create(
        "ViT-Lite-6/4", num_classes=3, overrides={"labels": tuple("abc"), "output": output, "depth": 1}
    )
    vitreous.save(model, tmp_path / "model")
    Image.new("RGB", (32, 32), (200, 30, 30)).save(tmp_path / "red.png")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    done = command("predict", tmp_path / "model", tmp_path, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert all(column in header for column in columns)
    assert [word in "".join(rows) for word in ("red.png", "broken.png", "error")] == [True] * 3
    done = command("predict", tmp_path / "model", tmp_path / "red.png", "--json", "--device", "cpu")
    record = json.loads(done.stdout)
    [result] = vitreous.predict(model, tmp_path / "red.png", device="cpu")
    assert {key: record[key] for key in result.record()} == result.record()


def test_a_long_error_does_not_widen_the_column_of_labels() -> None:
    cat = Prediction(
        "holiday/picture_0001.jpg", (Label("cat", 0, 0.5), Label("triangle", 1, 0.375), Label("circle", 2, 0.125))
    )
    bad = Prediction("holiday/picture_0002.jpg", error="cannot be decoded: image file is truncated (95 bytes)")
    text = io.StringIO()
    print_table([cat, bad], Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert lines[1].split() == ["holiday/picture_0001.jpg", "cat", "50.0%", "triangle", "37.5%,", "circle", "12.5%"]
    assert "holiday/picture_0002.jpg" in lines[2]
