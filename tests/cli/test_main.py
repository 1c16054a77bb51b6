import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vitreous
from vitreous.cli.main import COMMANDS, app, main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `vitreous` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["vitreous", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.slow
def test_every_command_is_listed_and_has_an_example(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert set(COMMANDS) == set(app._subcommands)
    for command in COMMANDS:
        assert run(monkeypatch, command, "--help") == 0
        assert f"Example: vitreous {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "registers=4", "--lossy", "--set", "num_heads=3"],
        ["--set=registers=4", "--set=num_heads=3"],
        ["--set", "registers=4", "num_heads=3"],
    ],
)
def test_a_repeated_set_keeps_every_field(words, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    given = []
    monkeypatch.setattr("vitreous.weights.convert.convert", lambda *_, **options: given.append(options["overrides"]))
    monkeypatch.setattr("vitreous.cli.convert._print", lambda *_, **__: None)
    assert run(monkeypatch, "convert", "a.pth", "b", "--to", "vitreous", *words) == 0
    assert given == [{"registers": 4, "num_heads": 3}]


def test_convert_does_not_overwrite_its_source(monkeypatch, capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    vitreous.save(vitreous.create("ViT-Ti/32", overrides={"depth": 1}), tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_bytes()
    assert (
        run(monkeypatch, "convert", str(tmp_path / "model"), str(tmp_path / "model" / "."), "--to", "huggingface") == 1
    )
    assert "source" in capsys.readouterr().err
    assert (tmp_path / "model" / "config.json").read_bytes() == before


def test_convert_advises_a_folder_only_where_that_helps(monkeypatch, capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    vitreous.save(vitreous.create("ViT-Ti/32", overrides={"depth": 1}), tmp_path / "model")  # GELU by tanh
    assert run(monkeypatch, "convert", str(tmp_path / "model"), str(tmp_path / "x.pth"), "--to", "timm") == 1
    assert "folder" in capsys.readouterr().err
    assert run(monkeypatch, "convert", str(tmp_path / "model"), str(tmp_path / "folder"), "--to", "timm") == 0
    assert run(monkeypatch, "convert", str(tmp_path / "model"), "x.pth", "--to", "torchvision") == 1
    assert "Name a folder" not in capsys.readouterr().err


def test_info_on_a_missing_path_mentions_a_checkpoint(monkeypatch, capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "info", str(tmp_path / "missing.pth")) == 1
    assert "no checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_info_as_json(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "info", "ViT-Ti/16", "--image-size", "224", "320", "--num-classes", "10", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == 5_717_416 - 192 * 990 - 990 + 192 * 84  # fewer classes, more positions
    assert answer["tokens"] == 1 + 14 * 20
    assert answer["config"]["image_size"] == [224, 320]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B/16", "R50+ViT-B/16", "DINOv2-S/14-reg", "BiT-R50x1"])
def test_info_as_a_table(monkeypatch, capsys, name: str) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "info", name) == 0
    out = capsys.readouterr().out
    assert name in out
    assert "GMACs" in out


def test_info_lists_every_preset(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    from vitreous.model.presets import PRESETS

    assert run(monkeypatch, "info") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in PRESETS)
    assert run(monkeypatch, "info", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == set(PRESETS)


@pytest.mark.slow
def test_the_demo_trains_and_walks_through_the_equations(monkeypatch, capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from vitreous.cli import demo

    short = dataclasses.replace(demo.config(tmp_path / "demo"), epochs=1)
    monkeypatch.setattr(demo, "config", lambda out: short)
    monkeypatch.setattr(demo, "FOLDER", tmp_path / "demo")
    demo.demo()
    out = capsys.readouterr().out
    assert all(shape in out for shape in ("1 x 1 x 8 x 8", "1 x 16 x 128", "1 x 4 x 16 x 16", "1 x 10"))
    assert json.loads((tmp_path / "demo" / "metrics.json").read_text())["count"] == 359
    assert "vitreous predict" in out
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["inof"], 2, "unknown command 'inof' (did you mean 'info'?)"),
        (["info", "--jsn"], 2, "--json"),
        (["info", "--num-classes", "many"], 2, "--num-classes"),
        (["info", "ViT-B16"], 2, "there is no preset 'ViT-B16' (did you mean 'ViT-B/16'?)"),
        (["info", "ViT-B/16", "--image-size", "225"], 2, "use 224 x 224 or 240 x 240"),
        (["info", "ViT-B/16", "--image-size", "1", "2", "3"], 2, "must be one integer (square) or two"),
        (["info", "ViT-B/16", "--num-classes", "-5"], 2, "num_classes is -5"),
        (["train", "--data", "digit"], 1, "did you mean 'digits'?"),
        (["train", "--data", "digits", "--epochs", "-1"], 2, "epochs is -1.0, but must be a finite number above 0"),
        (["train", "--data", "digits", "--epocs", "1"], 2, "--epochs"),
        (["train", "--data", "digits", "--batchsize", "4"], 2, "--batch-size"),
        (["train", "--data", "digits", "--learning-rate=1e-3"], 2, "did you mean --lr?"),
        (["train", "--data", "digits", "--optimizer", "adam"], 2, "adamw"),
        (["train", "--data", "digits", "--max-unreadable", "3"], 2, "max_unreadable is 3.0, but must be"),
        (
            ["train", "--data", "digits", "--train-only", "lora"],
            2,
            "--train-only lora needs --init",
        ),
        (["train", "--data", "digits", "--set", "widht=3"], 2, "(did you mean 'width'?)"),
        (["train", "--data", "digits", "--init", "x", "--model", "ViT-S/16"], 2, "omitted with --init"),
        (["train", "--resume"], 2, "--resume needs --out"),
        (["train", "--resume", "--out", "nowhere"], 1, "no run to resume in nowhere"),
        (["train"], 2, "data is required"),
        (["eval", "nowhere", "--data", "digits"], 1, "there is no checkpoint nowhere"),
        (["predict", "nowhere", "nothing.jpg"], 1, "nothing.jpg"),
        (["predict", "nowhere", "--image-size", "64", "48", "nothing.jpg"], 1, "nothing.jpg"),
        (["predict", "nowhere", "nothing.jpg", "--image-size", "big"], 2, "--image-size"),
        (["eval", "x", "--data", "digits", "--cache", "y"], 2, "cache is y, but it only has an effect with"),
        (["eval", "x", "--data", "digits", "--probe", "linear", "--shots", "5"], 2, "effect with --probe fewshot"),
        (["eval", "x", "--data", "digits", "--probe", "fewshot", "--neighbours", "5"], 2, "effect with --probe knn"),
        (["eval", "x", "--data", "digits", "--probe", "knn", "--ignore", "sky"], 2, "omitted with --probe"),
    ],
)
def test_invalid_arguments_exit_with_a_reason(
    monkeypatch, capsys, arguments: list[str], status: int, message: str
) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, *arguments) == status
    assert message in " ".join(capsys.readouterr().err.split())


def bad_data(root: Path) -> None:
    """Write invalid folders and tables."""
    sample_image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(sample_image, "PNG")
    whole = [
        "empty/a",
        "empty/b",
        "differ/train/a",
        "differ/train/b",
        "differ/val/a",
        "differ/val/b",
        "differ/val/zebra",
    ]
    for folder in [*whole, "single/a", "flat", "notest/test/a", "broken/a", "broken/b"]:
        (root / folder).mkdir(parents=True)
        for i in range(3):
            (root / folder / f"{i}.png").write_bytes(b"text" if "broken" in folder else sample_image.getvalue())
    for folder in ("empty/c", "nothing", "none/a", "none/b"):
        (root / folder).mkdir(parents=True)
    (root / "none" / "a" / "notes.txt").write_text("no picture")
    (root / "column.csv").write_text("path,kind\nflat/0.png,a\nflat/1.png,b\n")
    (root / "gone.csv").write_text("path,label\nflat/0.png,a\nflat/9.png,b\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("empty", "empty: empty class folder: no images in 'c'"),
        ("differ", "the classes of train and val differ: val has 'zebra', which train lacks"),
        ("single", "single: only one class, 'a'; at least 2 are required"),
        ("flat", "flat has 3 images but no class folders"),
        ("nothing", "nothing is empty"),
        ("none", "no images in the folders of "),
        ("notest", "notest has 'test' but no 'train' folder"),
        ("broken", "4 sampled images, such as a/"),
        ("epmty", "/empty/'?)"),
        ("column.csv", "column.csv has no label column; expected one of label"),
        ("gone.csv", "1 of 2 files do not exist in"),
    ],
)
def test_bad_data_is_reported_in_one_line_before_a_model_is_built(
    data: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from vitreous.training import run as training

    bad_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "set_up", lambda *_: pytest.fail("a model was built"))
    assert run(monkeypatch, "train", "--data", str(tmp_path / data)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("vitreous: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("data", "status"), [("empty", 1), ("fine", 0)])
def test_a_check_that_finds_problems_fails(
    data: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad_data(tmp_path)
    for i in range(8):
        (folder := tmp_path / "fine" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (i, 0, 0)).save(folder / f"{i}.png")
    assert run(monkeypatch, "data", "check", str(tmp_path / data)) == status
    assert ("no problems" in capsys.readouterr().out) == (status == 0)


@pytest.mark.slow
def test_train_and_eval_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Flags of every group are used; omitted ones are chosen automatically and printed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # plots would take half of the time
    monkeypatch.chdir(tmp_path)
    fields = ("patch_size=4", "width=32", "mlp_width=32", "depth=1", "num_heads=2")
    flags = ["--model", "ViT-Lite-6/4", "--set", *fields, "--steps", "2", "--mixup", "0.2", "--schedule", "linear"]
    assert run(monkeypatch, "train", "--data", "digits", "--device", "cpu", *flags) == 0
    out = capsys.readouterr().out
    assert "digits: 10 classes; train 1,438, val 359; val is 20% of each class, drawn with seed 0" in out
    for chosen in ("image_size = 16", "batch_size = 64", "flip = 0", "workers = 0", "out = runs/digits"):
        assert f"  auto: {chosen} (" in out
    config = json.loads((tmp_path / "runs" / "digits" / "config.json").read_text())
    assert (config["optim"]["schedule"], config["augment"]["mixup"], config["steps"]) == ("linear", 0.2, 2)
    page = (tmp_path / "runs" / "digits" / "report.html").read_text()
    assert "evaluated on the val split, which was also used to select the best epoch" in page
    assert run(monkeypatch, "eval", "runs/digits/best", "--data", "digits", "--json", "--device", "cpu") == 0
    measured = json.loads(capsys.readouterr().out)
    metrics = json.loads((tmp_path / "runs" / "digits" / "metrics.json").read_text())
    assert {name: measured[name] for name in ("top1", "loss", "count")} == pytest.approx(
        {name: metrics[name] for name in ("top1", "loss", "count")}, rel=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["info"], ["train", "--help"], ["--help"], ["info", "ViT-B/16", "--json"]], ids=" ".join
)
def test_a_closed_pipe_ends_the_command_without_a_traceback(words: list[str]) -> None:
    """For example `vitreous info | head -3`."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        command = [sys.executable, "-m", "vitreous", *words]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=usual)
    assert (done.returncode, done.stderr) == (1, "")


def test_help_of_optional_flags_does_not_mention_none(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    for command in COMMANDS:
        run(monkeypatch, command, "--help")
        assert "{None}" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "data is required: a folder"),
        (("--data", "digits", "--lr", "-1"), "lr is -1.0, but must be"),
        (("--data", "digits", "--flip", "50"), "augmentation.flip is 50.0, but must be"),
        (("--resume",), "--resume needs --out"),
        (
            ("--data", "digits", "--decoder", "mask"),
            "decoder is mask, but it has no effect with --task classify",
        ),
        (("--data", "digits", "--mask-rate", "0.5"), "mask_rate is 0.5, but it has no effect with --task classify"),
        (("--data", "digits", "--task", "mae", "--mpp-target", "pixels"), "no effect with --task mae"),
        (("--data", "digits", "--task", "mpp", "--decoder-width", "64"), "no effect with --task mpp"),
        (("--data", "digits", "--distill", "soft"), "distill is 'soft', but it has no effect without --teacher"),
        (("--data", "digits", "--lora-rank", "3"), "no effect without --train-only lora"),
    ],
    ids=" ".join,
)
def test_invalid_train_flags_are_rejected_in_one_line(flags, message, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "train", *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("vitreous: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "side"),
    [
        (["--image-size", "64", "ViT-Ti/16"], 64),
        (["--image-size", "64", "--", "ViT-Ti/16"], 64),
        (["ViT-Ti/16", "--image-size", "64", "--json", "--image-size", "128"], 128),  # the last one counts
    ],
)
def test_numbers_may_come_before_a_name(monkeypatch, capsys, words: list[str], side: int) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "info", *words) == 0
    out = capsys.readouterr().out
    assert f"{side} x {side}" in out or f'"tokens": {(side // 16) ** 2 + 1}' in out


def test_version_is_printed(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"vitreous {vitreous.__version__}\n"
