"""Without an extra, what needs it fails with the command that installs it, and everything else works."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command_line import CommandLine
from vitreous.data.image import decoding
from vitreous.serving import app

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TRAIN = (
    "train",
    "--data",
    "{images}",
    "--model",
    "ViT-Lite-6/4",
    "--steps",
    "1",
    "--batch-size",
    "4",
    "--device",
    "cpu",
)
# For each extra: modules to hide, and commands that need them. Modules of Vitreous are imported anew.
NEEDS: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]] = {
    "data": (
        ("pyarrow", "pyarrow.parquet"),
        [
            ("predict", "{checkpoint}", "{images}", "--out", "{tmp}/x.parquet"),
            ("embed", "{checkpoint}", "{images}", "--out", "{tmp}/x.parquet"),
            ("train", "--data", "{tmp}/table.parquet"),
        ],
    ),
    "heic": (
        ("pillow_heif",),
        [("predict", "{checkpoint}", "{heic}/photo.heic"), ("predict", "{checkpoint}", "{heic}")],
    ),
    "serve": (("uvicorn", "fastapi", "httptools", "multipart", "vitreous.serving.app"), [("serve", "{checkpoint}")]),
    "export": (
        ("onnxruntime",),
        [("export", "{checkpoint}", "--to", to, "--out", "{tmp}/exported") for to in ("onnx", "openvino", "web")],
    ),
    "openvino": (("openvino",), [("export", "{checkpoint}", "--to", "openvino", "--out", "{tmp}/exported")]),
    "ray": (
        ("ray",),
        [
            ("predict", "{checkpoint}", "{images}", "--engine", "ray"),
            ("embed", "{checkpoint}", "{images}", "--out", "{tmp}/vectors", "--engine", "ray"),
            ("serve", "{checkpoint}", "--engine", "ray"),
        ],
    ),
    "track": (("torch.utils.tensorboard",), [(*TRAIN, "--tensorboard"), (*TRAIN, "--track", "tensorboard")]),
    "wandb": (("wandb",), [(*TRAIN, "--track", "wandb")]),
    "mlflow": (("mlflow",), [(*TRAIN, "--track", "mlflow")]),
    "trackio": (("trackio",), [(*TRAIN, "--track", "trackio")]),
    "plot": (("matplotlib",), [("explain", "{checkpoint}", "{images}/a/0.png", "--out", "{tmp}/why")]),
}
DEVELOPMENT = {"dev", "docs", "peers"}
CASES = [(extra, words) for extra, (_, commands) in NEEDS.items() for words in commands]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def hide(extra: str) -> None:
        for module in NEEDS[extra][0]:
            if module.startswith("vitreous."):
                monkeypatch.delitem(sys.modules, module, raising=False)
            else:
                monkeypatch.setitem(sys.modules, module, None)
        decoding._register_heif.cache_clear()

    return hide


@pytest.fixture
def places(tmp_path: Path, checkpoint: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "heic").mkdir()
    (tmp_path / "heic" / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    (tmp_path / "empty" / "table.parquet").write_bytes(b"PAR1")
    return {"checkpoint": checkpoint, "tmp": tmp_path / "empty"} | {
        name: tmp_path / name for name in ("images", "heic")
    }


def test_every_extra_for_users_is_covered() -> None:
    assert set(NEEDS) == set(EXTRAS) - DEVELOPMENT


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "words"), CASES, ids=[f"{extra}-{words[0]}-{words[-1]}" for extra, words in CASES])
def test_a_missing_package_is_answered_with_the_command_that_installs_it(
    extra: str,
    words: tuple[str, ...],
    hide: Callable[[str], None],
    places: dict[str, Any],
    command: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(places["images"].parent)
    monkeypatch.setattr(app, "run_server", lambda *_: None)
    hide(extra)
    done = command(*(word.format(**places) for word in words))
    assert f'pip install "vitreous[{extra}]"' in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if extra == "plot" else 1)  # explain draws everything but charts
