"""A complete checkpoint remains when a saving process is killed or fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from parity import check_identical
from vitreous.model.config import ViTConfig
from vitreous.weights.native import load_folder

# One process imports torch and forks writers that it kills. All tensors of a version equal its number.
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
    read_end, write_end = os.pipe()
    writer = os.fork()
    if writer == 0:
        for version in itertools.count(round * 1000):
            save(version)
            os.write(write_end, b"saved")
    os.read(read_end, 1)
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


@pytest.mark.slow
def test_kill_while_saving_leaves_a_checkpoint(tmp_path: Path) -> None:
    """After twenty kills at random times, the checkpoint loads and is one complete version."""
    path = tmp_path / "folder" / "x"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLER, path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_kill_between_two_renames_is_recovered(saved: Path) -> None:
    before = load_folder(saved)
    saved.rename(saved.with_name(".x.old"))
    check_identical(load_folder(saved), before)


@pytest.mark.slow
def test_full_disk_keeps_the_previous_checkpoint(saved: Path, small: ViTConfig) -> None:
    """A file size limit, set in a separate process, fails like a full disk."""
    before = load_folder(saved)
    code = (
        "import resource, sys; from vitreous.weights.native import *; model = load_folder(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, -1))\n"
        "try: save_folder(model, sys.argv[1])\n"
        "except OSError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code, saved], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("the previous version is unchanged\n"), run
    assert "could not write" in run.stdout
    assert run.stdout.count("\n") == 1
    check_identical(load_folder(saved), before)
    assert [path.name for path in saved.parent.iterdir()] == ["x"]
