"""Whatever ends a process that saves, the folder holds a checkpoint that is whole."""

import subprocess
import sys
from pathlib import Path

from native_models import assert_same
from vitreous.model.config import ViTConfig
from vitreous.weights.native import load_folder

# One process that imports torch once and forks the writers that it kills; each version's tensors all hold its number.
KILLER = """
import itertools, os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.weights.native import load_folder, save_folder

path = sys.argv[1]
model = build(ViTConfig(image_size=(16, 16), width=64, depth=2, num_heads=2, mlp_width=64, num_classes=3))

def save(version):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(version)
    save_folder(model, path, {"version": version})

generator, seen = random.Random(0), set()
for round in range(20):
    told, tell = os.pipe()
    writer = os.fork()
    if writer == 0:
        for version in itertools.count(round * 1000):
            save(version)
            os.write(tell, b"saved")
    os.read(told, 1)
    time.sleep(generator.uniform(0, 0.05))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    loaded = load_folder(path)
    (value,) = {x for parameter in loaded.parameters() for x in parameter.unique().tolist()}
    assert loaded.provenance["version"] == value
    seen.add(value)
save(-1)
assert len(seen) == 20, seen
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
"""


def test_killed_while_saving(tmp_path: Path) -> None:
    """Twenty times at random moments: the checkpoint always loads, and is one that was saved, whole."""
    path = tmp_path / "folder" / "x"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLER, path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_killed_between_two_renames(saved: Path) -> None:
    before = load_folder(saved)
    saved.rename(saved.with_name(".x.old"))
    assert_same(load_folder(saved), before)


def test_a_disk_that_is_full(saved: Path, small: ViTConfig) -> None:
    """A limit on the size of files fails like a full disk; in a process of its own, as it holds for all of it."""
    before = load_folder(saved)
    code = (
        "import resource, sys; from vitreous.weights.native import *; model = load_folder(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, -1))\n"
        "try: save_folder(model, sys.argv[1])\n"
        "except OSError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code, saved], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("the previous version is intact\n"), run
    assert "could not write" in run.stdout
    assert run.stdout.count("\n") == 1
    assert_same(load_folder(saved), before)
    assert [path.name for path in saved.parent.iterdir()] == ["x"]
