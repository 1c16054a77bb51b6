"""`--train-only lda`: the run folder, the solution, and the checkpoint's further use."""

import io
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitreous
from live_server import in_thread
from train_runs import skip_report, start
from vitreous.common.checks import BadValue
from vitreous.data.open import open_data
from vitreous.model.build import build
from vitreous.model.familiarity import Familiarity
from vitreous.model.presets import configure
from vitreous.serving.models import serve_model
from vitreous.tasks import classification_metrics
from vitreous.tasks.classify import Classify
from vitreous.tasks.segment import Segment
from vitreous.training import TrainConfig
from vitreous.training.run import train
from vitreous.training.setup import task_class_of
from vitreous.weights.native import statistics_of

SMALL = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2, "channels": 1}


def make(folder: Path, **fields: Any) -> Path:
    """Save an encoder with random weights, whose features are better than chance."""
    torch.manual_seed(0)
    model = build(configure("ViT-Lite-6/4", 3, 8, SMALL | fields))
    vitreous.save(model, folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("encoder") / "start")


def lda(out: Path, init: Path, **fields: Any) -> vitreous.Run:
    return train(data="digits", init=init, train_only="lda", out=out, device="cpu", workers=0, **fields)


@pytest.fixture(scope="module")
def run(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> vitreous.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.training.run_results.can_draw", lambda: False)  # plots take longer than the run
        return lda(tmp_path_factory.mktemp("lda") / "run", encoder)


def test_the_run_folder_is_complete(run: vitreous.Run) -> None:
    names = {path.name for path in run.folder.iterdir()}
    assert {"config.json", "metrics.json", "metrics.jsonl", "report.html", "best", "last"} <= names
    assert run.metrics["top1"] > 0.7
    assert run.metrics["ece"] < 0.08
    assert "epoch" not in (run.folder / "report.html").read_text().split("<h2", 1)[0]  # no epoch was selected
    [row] = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert row["train_top1"] == pytest.approx(run.metrics["top1"], abs=0.06)  # leave-one-out, not training accuracy


def test_the_encoder_sees_every_image_once(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    monkeypatch.setattr(classification_metrics, "MOST_FEATURES", 2000)
    counts: list[int] = []
    encode = vitreous.ViT.features
    monkeypatch.setattr(vitreous.ViT, "features", lambda self, x: (counts.append(len(x)), encode(self, x))[1])
    run = lda(tmp_path / "run", encoder)
    data = open_data("digits")
    assert sum(counts) == len(data.train) + len(data.val)
    features = vitreous.Predictor(run.model, "cpu").embed(data.train)
    expected = Familiarity.fit(features, torch.from_numpy(data.train.labels))
    stored = vitreous.load(run.folder / "best").familiarity
    torch.testing.assert_close(stored.scores(features), expected.scores(features), rtol=1e-3, atol=1e-2)


def test_only_the_head_changes_and_equals_a_numpy_solution(run: vitreous.Run, encoder: Path) -> None:
    before, after = vitreous.load(encoder).state_dict(), run.model.state_dict()
    moved = {name for name in after if name not in before or not torch.equal(before[name], after[name])}
    assert moved == {"head.weight", "head.bias"}
    source = open_data("digits").train
    x, y = vitreous.Predictor(run.model, "cpu").embed(source).double().numpy(), source.labels
    [row] = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    means = np.stack([x[y == c].mean(0) for c in range(10)])
    within = np.cov((x - means[y]).T, bias=True)
    shrunk = (1 - row["shrinkage"]) * within + row["shrinkage"] * np.diag((np.sqrt(np.diag(within)) + 1e-5) ** 2)
    difference = x[:, None] - means  # [n, 10, 32]
    scores = -row["factor"] / 2 * np.einsum("ncd,de,nce->nc", difference, np.linalg.inv(shrunk), difference)
    ours = x @ after["head.weight"].double().numpy().T + after["head.bias"].double().numpy()
    ours, scores = (each - each.mean(1, keepdims=True) for each in (ours, scores))  # up to a term of all classes
    np.testing.assert_allclose(ours, scores, rtol=1e-2, atol=1e-3)


def test_the_checkpoint_predicts_and_is_explained(run: vitreous.Run) -> None:
    image = open_data("digits").val.image(0)
    assert isinstance(image, np.ndarray)
    [result] = vitreous.predict(run.folder / "best", image[..., 0], device="cpu")
    assert result.predictions[0].label in map(str, range(10))
    explanation = vitreous.explain(run.folder / "best", image[..., 0], methods=["relevance"], device="cpu")
    assert explanation.maps["relevance"].shape == (2, 2)


def test_fine_tuning_starts_from_the_head_and_drops_the_statistics(
    run: vitreous.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)
    tuned = train(
        data="digits", init=run.folder / "best", out=tmp_path / "tuned", steps=2, lr=1e-6, device="cpu", workers=0
    )
    assert tuned.metrics["top1"] == pytest.approx(run.metrics["top1"], abs=0.02)
    assert statistics_of(run.model) is not None
    assert not (tuned.folder / "best" / "statistics.safetensors").exists()


def test_a_finished_run_can_be_resumed(run: vitreous.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    again = train(out=run.folder, resume=True, device="cpu")
    assert again.metrics["top1"] == run.metrics["top1"]


@pytest.mark.slow
def test_two_processes_compute_the_head_of_one(run: vitreous.Run, encoder: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    base = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    config = TrainConfig(
        data="digits", init=encoder, train_only="lda", out=tmp_path / "two", device="cpu", workers=0, batch_size=64
    )
    ranks = [start(config, world=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    for process in ranks:
        process.join(300)
    assert [process.exitcode for process in ranks] == [0, 0]
    two = vitreous.load(tmp_path / "two" / "best").state_dict()
    torch.testing.assert_close(two, run.model.state_dict(), rtol=1e-4, atol=1e-4)


def test_the_checkpoint_is_served(run: vitreous.Run) -> None:
    file = io.BytesIO()
    Image.new("L", (8, 8), 90).save(file, "PNG")
    with in_thread([serve_model(run.model, device="cpu")]) as live:
        predictions = live.request("POST", "/v1/classify", file.getvalue()).json["predictions"]
    assert predictions[0]["label"] in run.model.config.labels


def test_unreadable_images_are_omitted(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for index in range(24):
            folder = tmp_path / "images" / split / "ab"[index % 2]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (8, 8)) // (1 + index % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
    broken = tmp_path / "images" / "train" / "a" / "0.png"
    broken.write_bytes(b"not an image")
    fields: dict[str, Any] = {"data": tmp_path / "images", "init": encoder, "train_only": "lda", "workers": 0}
    found = train(**fields, out=tmp_path / "run", device="cpu")
    assert len(found.metrics["unreadable_files"]) == 1
    tensors = statistics_of(found.model)
    assert tensors is not None
    assert tensors["counts"].tolist() == [11, 12]
    with pytest.raises(ValueError, match="max-unreadable"):
        train(**fields, out=tmp_path / "strict", device="cpu", max_unreadable=0.01)
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"epochs": 3}, "epochs"),
        ({"lr": 1e-3}, "lr"),
        ({"policy": "trivial"}, "policy"),
        ({"smoothing": 0.1}, "smoothing"),
        ({"parallel": "fsdp"}, "parallel"),
        ({"precision": "fp16"}, "precision"),
        ({"task": "segment"}, "classification"),
        ({"task": "mae"}, "train_only"),
        ({"init": None, "model": "ViT-Lite-6/4"}, "--init"),
    ],
)
def test_options_without_effect_are_rejected(encoder: Path, tmp_path: Path, fields: dict[str, Any], word: str) -> None:
    given = {
        "data": "digits",
        "init": encoder,
        "train_only": "lda",
        "device": "cpu",
        "out": tmp_path / "run",
    } | fields
    with pytest.raises(BadValue, match=word):
        train(**{name: value for name, value in given.items() if value is not None})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"distillation_token": True}, "two heads"), ({"head": {"kind": "MlpHead", "width": 8}}, "MlpHead")],
)
def test_other_heads_are_rejected(tmp_path: Path, fields: dict[str, Any], word: str) -> None:
    start = make(tmp_path / "start", **fields)
    with pytest.raises(BadValue, match=word):
        lda(tmp_path / "run", start)
    assert not (tmp_path / "run").exists()


def test_the_head_is_a_plain_linear_layer(run: vitreous.Run) -> None:
    assert isinstance(run.model.heads[0], nn.Linear)


def test_a_custom_classification_task_keeps_its_own_methods(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_report(monkeypatch)

    class Renamed(Classify):
        @classmethod
        def eval_flags(cls, config: TrainConfig) -> list[str]:
            return ["--flip"]

    config = TrainConfig(data="digits", init=encoder, train_only="lda", out=tmp_path / "run", device="cpu", workers=0)
    chosen = task_class_of(config, Renamed)
    assert chosen.closed_form
    assert chosen.eval_flags(config) == ["--flip"]
    assert train(config, task=Renamed).metrics["top1"] > 0.7
    with pytest.raises(BadValue, match="train_only"):
        task_class_of(config, Segment)
