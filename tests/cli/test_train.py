"""`vitreous train`: flags, automatic settings, and errors in one line."""

import io
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from command_line import CommandLine
from vitreous.training import run as training


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
        ("broken", "4 sampled images"),
        ("epmty", "/empty/'?)"),
        (
            "column.csv",
            "got 'path', 'kind'; for 0/1 columns or numbers, use --task multilabel or regress",
        ),
        ("gone.csv", "1 of 2 files do not exist in"),
    ],
)
def test_bad_data_is_reported_in_one_line_before_a_model_is_built(
    data: str, message: str, command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "set_up", lambda *_: pytest.fail("a model was built"))
    done = command("train", "--data", tmp_path / data)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("vitreous: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_flags_of_every_group_are_used_and_omitted_ones_are_chosen(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The metrics of `vitreous eval` equal those of the run."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # plots would take half of the time
    monkeypatch.chdir(tmp_path)
    fields = ("patch_size=4", "width=32", "mlp_width=32", "depth=1", "num_heads=2")
    flags = ["--model", "ViT-Lite-6/4", "--set", *fields, "--steps", "2", "--mixup", "0.2", "--schedule", "linear"]
    done = command("train", "--data", "digits", "--device", "cpu", *flags)
    assert done.returncode == 0
    out = done.stdout
    assert "digits: 10 classes; train 1,438, val 359; val is 20% of each class, drawn with seed 0" in out
    for chosen in ("image_size = 16", "batch_size = 64", "flip = 0", "workers = 0", "out = runs/digits"):
        assert f"  auto: {chosen} (" in out
    config = json.loads((tmp_path / "runs" / "digits" / "config.json").read_text())
    assert (config["optim"]["schedule"], config["augment"]["mixup"], config["steps"]) == ("linear", 0.2, 2)
    page = (tmp_path / "runs" / "digits" / "report.html").read_text()
    assert "evaluated on the val split, which was also used to select the best epoch" in page
    measured = json.loads(command("eval", "runs/digits/best", "--data", "digits", "--json", "--device", "cpu").stdout)
    metrics = json.loads((tmp_path / "runs" / "digits" / "metrics.json").read_text())
    assert {name: measured[name] for name in ("top1", "loss", "count")} == pytest.approx(
        {name: metrics[name] for name in ("top1", "loss", "count")}, rel=1e-5
    )


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
        (("--data", "digits", "--task", "distil"), "teacher is None, but must be a checkpoint path or a catalog name"),
        (("--data", "digits", "--teacher-size", "64"), "teacher_size is (64,), but it has no effect without --teacher"),
        (("--data", "digits", "--teacher", "x", "--teacher-size", "64"), "no effect with --task classify"),
        (("--data", "digits", "--teacher", "x", "--teacher-size", "6", "6", "6"), "teacher_size is (6, 6, 6), but"),
        (
            ("--data", "digits", "--task", "distil", "--teacher", "x", "--distill", "soft"),
            "no effect with --task distil",
        ),
        (("--data", "digits", "--task", "distil", "--teacher", "x", "--balance", "1"), "no effect with --task distil"),
        (("--data", "digits", "--lora-rank", "3"), "no effect without --train-only lora"),
    ],
    ids=" ".join,
)
def test_invalid_flags_are_rejected_in_one_line(command: CommandLine, flags: tuple[str, ...], message: str) -> None:
    done = command("train", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith("vitreous: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flags", [[], ["--auto-resume"]], ids=str)
@pytest.mark.parametrize("train_only", ["head", "lora", "lda"])
def test_a_frozen_encoder_without_init_is_rejected_before_anything_is_printed(
    train_only: str, flags: list[str], command: CommandLine, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")]
    done = command("train", "--data", "digits", "--train-only", train_only, *out, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--train-only {train_only} needs --init" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--data", "digit"], 1, "did you mean 'digits'?"),
        (["--data", "digits", "--epochs", "-1"], 2, "epochs is -1.0, but must be a finite number above 0"),
        (["--data", "digits", "--epocs", "1"], 2, "--epochs"),
        (["--data", "digits", "--batchsize", "4"], 2, "--batch-size"),
        (["--data", "digits", "--learning-rate=1e-3"], 2, "did you mean --lr?"),
        (["--data", "digits", "--optimizer", "adam"], 2, "adamw"),
        (["--data", "digits", "--max-unreadable", "3"], 2, "max_unreadable is 3.0, but must be"),
        (["--data", "digits", "--train-only", "lora"], 2, "--train-only lora needs --init"),
        (["--data", "digits", "--set", "widht=3"], 2, "(did you mean 'width'?)"),
        (["--data", "digits", "--init", "x", "--model", "ViT-S/16"], 2, "omitted with --init"),
        (["--data", "digits", "--task", "distil", "--teacher", "dinov2-z"], 1, "did you mean 'dinov2-s'?"),
        (["--resume", "--out", "nowhere"], 1, "no run to resume in nowhere"),
    ],
)
def test_invalid_arguments_exit_with_a_reason(
    command: CommandLine, arguments: list[str], status: int, message: str
) -> None:
    done = command("train", *arguments)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())
