"""The walkthroughs in docs/en/architecture.md list exactly the files whose functions are called."""

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from PIL import Image

import vitreous
from live_server import in_thread
from vitreous.cli.main import main
from vitreous.model.options import Gelu
from vitreous.serving.models import serve_model

pytestmark = pytest.mark.slow

PACKAGE = Path(vitreous.__file__).parent
GUIDE = (PACKAGE.parent / "docs" / "en" / "architecture.md").read_text()
SKIPPED = ("model/", "kernels/", "common/", "__init__.py")


class Walk:
    """Records the files of the package whose functions are called, except during imports."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name, caller = frame.f_code.co_filename, frame.f_back
        if event != "call" or not name.startswith(str(PACKAGE)) or frame.f_code.co_name == "<module>":
            return
        while caller is not None:
            if caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(str(PACKAGE)):
                return
            caller = caller.f_back
        if frame.f_code.co_flags & 1:  # a function, not the body of a class
            self.files.add(Path(name).relative_to(PACKAGE).as_posix())

    def listed(self) -> set[str]:
        return {name for name in self.files if not name.startswith(SKIPPED)}

    def of(self, work: Callable[[], object]) -> set[str]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self.listed()


def documented(title: str) -> set[str]:
    """Return the files listed in the table below a heading."""
    section = GUIDE.partition(f"### {title}\n")[2].partition("\n#")[0]
    return {
        name
        for row in section.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\S+?\.py)`", row.split("|")[1])
    }


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> Callable[[], None]:
    monkeypatch.setattr(sys, "argv", ["vitreous", *words])
    return main


@pytest.fixture
def image(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for index in range(8):
            folder = tmp_path / "images" / split / "ab"[index % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (40, 44, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    return tmp_path / "images" / "train" / "a" / "0.png"


def test_train(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model", "ViT-Lite-6/4", "--steps", "2", "--batch-size", "4", "--workers", "0", "--device", "cpu"]
    words = ["train", "--data", str(tmp_path / "images"), "--out", str(tmp_path / "run"), *flags]
    assert Walk().of(command(monkeypatch, *words)) == documented("Train on a folder")


def test_load(tmp_path: Path) -> None:
    model = vitreous.create("ViT-Ti/16", overrides={"depth": 1, "mlp": Gelu("erf")})
    vitreous.save(model, tmp_path / "timm", format="timm")
    assert Walk().of(lambda: vitreous.load(tmp_path / "timm")) == documented("Load a timm checkpoint")


def test_predict(image: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["predict", str(checkpoint), str(image.parent), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert Walk().of(command(monkeypatch, *words)) == documented("Predict a folder of images into files")


def test_explain(image: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["explain", str(checkpoint), str(image), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert Walk().of(command(monkeypatch, *words)) == documented("Explain an image")


def test_classify(image: Path, checkpoint: Path) -> None:
    walk = Walk()
    threading.setprofile(walk)  # also applies to the threads of the server
    try:
        with in_thread([serve_model(vitreous.load(checkpoint), device="cpu")]) as live:
            assert live.request("POST", "/v1/classify", image.read_bytes()).status == 200
            walk.files.clear()
            assert live.request("POST", "/v1/classify", image.read_bytes()).status == 200
            found = walk.listed()
    finally:
        threading.setprofile(None)
    assert found == documented("Classify an image over HTTP")
