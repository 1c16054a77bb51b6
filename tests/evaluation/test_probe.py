import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.cli.main import main
from vitreous.data.open import open_data
from vitreous.evaluation import evaluate, linear
from vitreous.evaluation.probe import PROBES
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.weights.load import save


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "STEPS", (30, 30))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained ViT whose head has other classes than the data."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(8, 8), channels=1, patch_size=(2, 2), width=48, depth=1, num_heads=2, mlp_width=48, num_classes=3
    )
    path = tmp_path_factory.mktemp("probe") / "random"
    save(build(config), path)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["vitreous", "eval", *map(str, arguments), "--workers", "0", "--device", "cpu"])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def probed(checkpoint: Path, probe: Any, **options: Any) -> dict[str, Any]:
    return evaluate(checkpoint, "digits", probe=probe, device="cpu", workers=0, **options).to_dict()


# Even an encoder that has learnt nothing keeps much of what a digit looks like.
LEAST = {"knn": 0.4, "linear": 0.4, "fewshot": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probe_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path, probe: str
) -> None:
    arguments = [checkpoint, "--data", "digits", "--probe", probe, "--cache", tmp_path / "cache"]
    assert run(monkeypatch, *arguments, "--json", "--out", tmp_path / "metrics.json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert LEAST[probe] < metrics[probe] < 0.95
    assert metrics[probe] == metrics["results"][0]["top1"] <= metrics[f"{probe}_top5"]
    assert (metrics["part"], metrics["count"], metrics["train_count"], metrics["unreadable"]) == ("val", 359, 1438, 0)
    assert metrics["images_per_second"] > 0
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert run(monkeypatch, *arguments, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["images_per_second"] is None  # from the cache
    assert [again[key] for key in (probe, "results")] == [metrics[key] for key in (probe, "results")]
    assert run(monkeypatch, *arguments) == 0
    table = capsys.readouterr().out
    assert probe in table
    assert f"{metrics[probe]:.4f}" in table


@pytest.mark.slow
def test_both_linear_methods_have_metrics(checkpoint: Path) -> None:
    metrics = probed(checkpoint, "linear")
    ways = {row["method"]: row for row in metrics["results"]}
    assert set(ways) == {"ridge", "sgd"}
    assert all(metrics[f"linear_{method}"] == row["top1"] for method, row in ways.items())
    best = max(ways.values(), key=lambda row: row["held_out"])
    assert (metrics["linear"], metrics["linear_method"]) == (best["top1"], best["method"])


@pytest.mark.slow
def test_the_first_number_is_reported(checkpoint: Path) -> None:
    several = probed(checkpoint, "knn", neighbours=(100, 1))
    assert [row["neighbours"] for row in several["results"]] == [100, 1]
    assert several["knn"] == several["results"][0]["top1"] != several["results"][1]["top1"]
    shots = probed(checkpoint, "fewshot", shots=(25, 1))
    assert shots["fewshot"] == shots["results"][0]["top1"] > shots["results"][1]["top1"]
    assert shots["fewshot_std"] == shots["results"][0]["std"] > 0
    wide = probed(checkpoint, "knn", features="class+mean")
    assert (several["width"], wide["width"]) == (48, 96)


def test_a_resnet_is_probed_and_unreadable_images_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        for index in range(8):
            path = tmp_path / "data" / name / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), tuple(min(255, part + 6 * index) for part in colour)).save(path)
    (tmp_path / "data" / "red" / "3.png").write_bytes(b"")
    save(build(ResNetConfig(image_size=(32, 32), stages=(1,), width=32, num_classes=0)), tmp_path / "bit")
    probing = [tmp_path / "bit", "--data", tmp_path / "data", "--probe"]
    assert run(monkeypatch, *probing, "knn", "--neighbours", "3") == 0
    out = capsys.readouterr().out
    assert f"unreadable: {Path('red', '3.png')}" in out
    assert "3 neighbours  1.0000" in out
    assert run(monkeypatch, *probing, "fewshot", "--shots", "9") == 1
    assert "shots is 9, but must be at most" in capsys.readouterr().err
    assert run(monkeypatch, *probing, "knn") == 1
    assert "neighbours is 20, but must be at most" in capsys.readouterr().err
    assert run(monkeypatch, *probing, "knn", "--features", "class+mean") == 2
    assert "features is 'class+mean', but must be 'pooled' for a model" in capsys.readouterr().err


@pytest.mark.slow
def test_default_shots_are_skipped_and_explicit_ones_rejected_for_small_classes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    digits = open_data("digits").train
    for count, measured, note in (
        (12, [5, 10], "skipped: 25 shots (class '0' only has 12"),
        (3, [3], "skipped: 5, 10, 25 shots (class '0' only has 3"),
    ):
        kept = [
            i for label in range(10) for i in np.flatnonzero(digits.labels == label).tolist()[: 30 if label else count]
        ]
        x, y = np.stack([digits.image(i) for i in kept]), digits.labels[kept]
        data = tmp_path / f"{count}.npz"
        np.savez(data, x_train=x, y_train=y, x_val=x[::3], y_val=y[::3])
        probing = [checkpoint, "--data", data, "--probe", "fewshot"]
        assert run(monkeypatch, *probing) == 0
        assert note in capsys.readouterr().out
        assert run(monkeypatch, *probing, "--json") == 0
        metrics = json.loads(capsys.readouterr().out)
        assert [row["shots"] for row in metrics["results"]] == measured
        assert run(monkeypatch, *probing, "--shots", "5", "25") == 1
        assert f"shots is 25, but must be at most {count}: class '0'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--probe", "kn"], 2, "knn"),
        (["--prob", "knn"], 2, "--probe"),
        (["--probe", "knn", "--features", "mean"], 2, "class+mean"),
        (["--probe", "knn", "--neighbours", "0"], 2, "neighbours is 0, but must be an integer from 1"),
        (["--probe", "fewshot", "--shots", "0"], 2, "shots is 0"),
        (["--probe", "knn", "--split", "train"], 2, "'val' or 'test' for a probe"),
        (["--probe", "knn", "--split", "test"], 1, "split is 'test', but digits only has train, val"),
    ],
)
def test_invalid_options_of_probes_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    assert run(monkeypatch, checkpoint, "--data", "digits", *arguments) == status
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_probe_gets_a_suggestion(checkpoint: Path) -> None:
    wrong: Any = "few-shot"
    with pytest.raises(ValueError, match=r"one of 'knn', 'linear', 'fewshot' \(did you mean 'fewshot'\?\)"):
        probed(checkpoint, wrong)


def test_every_stage_reports_its_progress_to_the_end(checkpoint: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    probed(checkpoint, "linear", progress=lambda *report: reports.append(report))
    ends = [total for _, done, total in reports if done == total]
    assert ends == [1438, 359, 30, 30]  # features of the train and val split; the sweep, and the selected setting
    assert [done for _, done, total in reports if total == 359] == list(range(360))


def test_command_reports_stages_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checkpoint: Path
) -> None:
    assert run(monkeypatch, checkpoint, "--data", "digits", "--probe", "linear", "--json") == 0
    output = capsys.readouterr()
    assert [key in output.err for key in ("features", "linear classifier")] == [True, True]
    assert json.loads(output.out)["probe"] == "linear"
    assert run(monkeypatch, checkpoint.parent / "missing", "--data", "digits") == 1
    assert capsys.readouterr().err.startswith("vitreous: ")  # without an empty line before it
