"""`vitreous embed`: files, summary and errors."""

import json
from pathlib import Path

import pytest
import torch

import vitreous
from command_line import CommandLine
from masked_folders import folder
from vitreous.inference import Predictor
from vitreous.weights.load import load

CPU = ("--device", "cpu")


def test_embeddings_are_written_to_a_file(model: Path, images: Path, tmp_path: Path, command: CommandLine) -> None:
    done = command("embed", model, images, "--out", tmp_path / "vectors.jsonl", "--batch-size", 2, *CPU)
    assert (done.returncode, done.stdout) == (0, "")
    assert "5 images processed, 1 unreadable" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text().splitlines()]
    assert ["error" in row for row in rows] == [False, False, True, False, False]
    vectors = torch.tensor([row["embedding"] for row in rows if "embedding" in row])
    expected = Predictor(load(model), device="cpu").embed([images / f"{i}.png" for i in (0, 1, 3, 4)])
    torch.testing.assert_close(vectors, expected)


def test_flipping_averages_with_the_mirrored_image(
    model: Path, images: Path, tmp_path: Path, command: CommandLine
) -> None:
    assert command("embed", model, images / "0.png", "--out", tmp_path / "x.jsonl", "--flip", *CPU).returncode == 0
    found = torch.tensor(json.loads((tmp_path / "x.jsonl").read_text())["embedding"])
    plain, expected = (
        Predictor(load(model), device="cpu", flip=flip).embed(images / "0.png")[0] for flip in (False, True)
    )
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, plain)


@pytest.mark.filterwarnings("always:3 masks skipped")
def test_a_segmenter_embeds_images_but_not_their_masks(segmenter: Path, tmp_path: Path, command: CommandLine) -> None:
    data = folder(tmp_path / "data", count=3)
    done = command("embed", segmenter, data, "--out", tmp_path / "vectors.jsonl", *CPU)
    assert "3 masks skipped" in done.stderr
    assert len((tmp_path / "vectors.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "vectors.xls"], "ending in one of .json"),
        (["--out", "x.csv", "--device", "gpu"], "auto, cpu, cuda, mps"),
        (["--out", "x.csv", "--top", "3"], "--top"),
        ([], "--out"),
    ],
)
def test_invalid_arguments_are_rejected(
    words: list[str], message: str, model: Path, images: Path, tmp_path: Path, command: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    done = command("embed", model, images / "0.png", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert not list(tmp_path.glob("*.csv"))


def test_the_file_name_is_checked_before_the_checkpoint_is_loaded(images: Path, command: CommandLine) -> None:
    assert "vectors.xls" in command("embed", "nowhere", images, "--out", "vectors.xls").stderr


def test_a_run_without_a_readable_image_fails(model: Path, images: Path, tmp_path: Path, command: CommandLine) -> None:
    done = command("embed", model, images / "2.png", "--out", tmp_path / "x.csv", *CPU)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no image could be read (1 image" in done.stderr
    assert "not a" in (tmp_path / "x.csv").read_text()


def test_embed_as_a_function_gives_an_array_of_the_readable_images(model: Path, images: Path) -> None:
    names, vectors = vitreous.embed(model, images, device="cpu").array()
    assert [Path(name).name for name in names] == ["0.png", "1.png", "3.png", "4.png"]
    torch.testing.assert_close(vectors, Predictor(load(model), device="cpu").embed(names))  # type: ignore[arg-type]
