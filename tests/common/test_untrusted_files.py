"""Only regular files are opened; pipes and devices among images are reported and never block."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from images import encoded, smooth
from vitreous.common.untrusted_files import check_regular, open_regular, read_regular, read_regular_text
from vitreous.model.config import ViTConfig

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import vitreous
from vitreous.data.doctor import check_data
from vitreous.data.loader import Reader, Request
from vitreous.data.open import open_data
from vitreous.data.open import open_masked
from vitreous.model.options import Preprocessing
import torch
root = Path(sys.argv[1])
found = {"check": sorted(sample.name for sample in check_data(str(root / "images")).unreadable)}
data = open_data(str(root / "images"))
everything = torch.arange(len(data.train))
batch = Reader(data.train, (16, 16), 3, Preprocessing())[Request(0, everything, everything)]
everything = torch.arange(len(data.val))
problems = batch.problems + Reader(data.val, (16, 16), 3, Preprocessing())[Request(0, everything, everything)].problems
found["train"] = sorted(line.split(":")[0] for line in problems)
model = vitreous.load(root / "model")
answers = vitreous.Predictor(model, device="cpu")(sorted((root / "images").rglob("*.png")))
found["predict"] = sorted(Path(answer.name).name for answer in answers if answer.error == "not a regular file")
for name, read in {
    "masks": lambda: open_masked(str(root / "masked")),
    "table": lambda: open_data(str(root / "pipe.csv")),
    "lines": lambda: open_data(str(root / "pipe.jsonl")),
    "arrays": lambda: open_data(str(root / "pipe.npz")),
    "shards": lambda: open_data(str(root / "shards")),
    "weights": lambda: vitreous.load(root / "pipe.safetensors"),
    "pickle": lambda: vitreous.load(root / "pipe.pth"),
    "folder": lambda: vitreous.load(root / "broken"),
}.items():
    try:
        read()
        found[name] = "was read"
    except (ValueError, OSError) as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_pipes_and_devices_are_reported_and_never_opened(tmp_path: Path, small: ViTConfig) -> None:
    import vitreous
    from vitreous.model.build import build

    vitreous.save(build(small), tmp_path / "model")
    vitreous.save(build(small), tmp_path / "broken")
    for folder in ("a", "b"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        for i in range(5):
            (tmp_path / "images" / folder / f"{i}.png").write_bytes(encoded(smooth(20, 20, i + 10 * (folder == "b"))))
    os.mkfifo(tmp_path / "images" / "a" / "pipe.png")
    (tmp_path / "images" / "b" / "zeros.png").symlink_to("/dev/zero")
    (tmp_path / "images" / "b" / "input.png").symlink_to("/dev/stdin")
    for part in ("images", "masks"):
        (tmp_path / "masked" / part).mkdir(parents=True)
        for i in range(3):
            mask = Image.fromarray(np.full((8, 8), i, np.uint8))
            (tmp_path / "masked" / part / f"{i}.png").write_bytes(encoded(mask))
    (tmp_path / "masked" / "masks" / "1.png").unlink()
    os.mkfifo(tmp_path / "masked" / "masks" / "1.png")
    for name in ("pipe.csv", "pipe.jsonl", "pipe.npz", "pipe.safetensors", "pipe.pth"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "shards").mkdir()
    os.mkfifo(tmp_path / "shards" / "a.tar")
    (tmp_path / "broken" / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "broken" / "model.safetensors")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    run = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    special_files = ["a/pipe.png", "b/input.png", "b/zeros.png"]
    assert found.pop("check") == special_files
    assert found.pop("train") == special_files
    assert found.pop("predict") == ["input.png", "pipe.png", "zeros.png"]
    for name, message in found.items():
        assert "not a" in message or "not found" in message, (name, message)


def test_regular_files_and_links_to_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some\r\nbytes")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        assert read_regular(tmp_path / name) == b"some\r\nbytes"
        assert read_regular_text(tmp_path / name) == "some\nbytes"
        with open_regular(tmp_path / name) as file:
            file.seek(4)
            assert file.read(2) == b"\r\n"
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        check_regular(tmp_path)
