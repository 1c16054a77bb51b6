"""Torn, corrupt and hostile checkpoints."""

import contextlib
import gzip
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path

from torture.runner import Case
from torture.scene import Scene, finish, rejected, succeeded

LITTLE_MEMORY = 1500  # MB; torch alone takes several hundred


def resume_rejected(scene: Scene, run: Path, *words: str) -> str:
    """Assert that a damaged run is rejected on resume, and that its files are unchanged."""
    before = {path: path.read_bytes() for path in (run / "last").rglob("*") if path.is_file()}
    message = rejected(scene.vitreous("train", f"--out={run}", "--resume"), *words)
    assert {path: path.read_bytes() for path in before} == before, "the damaged files were changed"
    return message


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def truncated(scene: Scene) -> str:
    run = scene.finished_run()
    for file in (run / "last" / "model.safetensors", run / "best" / "model.safetensors"):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    image = next(scene.images().rglob("*.png"))
    rejected(scene.vitreous("predict", run / "best", image), "model.safetensors")
    return resume_rejected(scene, run, "model.safetensors")


def flipped_header(scene: Scene) -> str:
    run = scene.finished_run()
    flip(run / "last" / "model.safetensors", 20)
    flip(run / "best" / "model.safetensors", 20)
    rejected(scene.vitreous("info", run / "best"), "best")
    return resume_rejected(scene, run, "model.safetensors", "damaged")


def flipped_data(scene: Scene) -> str:
    run = scene.finished_run()
    (shard,) = (run / "last" / "training").iterdir()
    flip(shard, shard.stat().st_size - 5)
    return resume_rejected(scene, run, shard.name, "damaged")


def missing_files(scene: Scene) -> str:
    run = scene.finished_run()
    names = ("model.safetensors", "config.json", "progress.json", "training")
    for name in names:
        (run / "last" / name).rename(scene.folder / "aside")
        resume_rejected(scene, run, name)
        (scene.folder / "aside").rename(run / "last" / name)
    return f"each of {', '.join(names)} is named"


def missing_last(scene: Scene) -> str:
    run = scene.finished_run()
    (run / "last").rename(scene.folder / "aside")
    return rejected(scene.vitreous("train", f"--out={run}", "--resume"), "last is missing")


def wrong_config(scene: Scene) -> str:
    run = scene.finished_run()
    file = run / "best" / "config.json"
    document, image = json.loads(file.read_text()), next(scene.images().rglob("*.png"))
    messages = []
    for change in ({"width": 64}, {"depth": 10**6}, {"width": "wide"}, {"image_size": [10**8, 10**8]}):
        file.write_text(json.dumps(document | {"model": document["model"] | change}))
        messages.append(rejected(scene.vitreous("predict", run / "best", image), "best"))
    return f"four wrong values; {messages[0]}"


def broken_run_config(scene: Scene) -> str:
    run = scene.finished_run()
    (run / "config.json").write_text('{"data": "digits", "task": "sing"}')
    return resume_rejected(scene, run, "config.json", "task")


def torn_metrics(scene: Scene) -> str:
    run = scene.finished_run()
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(rows + rows.splitlines()[-1][:40])
    done = succeeded(scene.vitreous("train", f"--out={run}", "--resume"))
    assert (run / "metrics.jsonl").read_text() == rows
    assert "incomplete" in done.out, done.out
    return "the incomplete line was dropped, with a notice"


def gzip_bomb(scene: Scene) -> str:
    run = scene.finished_run()
    with gzip.open(run / "data.json.gz", "wb") as file:
        for _ in range(4096):
            file.write(bytes(1 << 20))  # 4 GB
    running = scene.start("train", f"--out={run}", "--resume")
    done = finish(running)
    assert done.memory < LITTLE_MEMORY, f"{done.memory:.0f} MB"
    return f"{rejected(done, 'data.json.gz')}; {done.memory:.0f} MB"


# ---- Hostile files ---------------------------------------------------------------------------------------------------


class Command:
    """Runs a shell command when unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, (self.command,)


def hostile(scene: Scene, *makers: Callable[[Path, Path], Path]) -> str:
    """Assert that files are rejected by three commands, quickly, with little memory and without side effects."""
    messages, peak = [], 0.0
    image = next(scene.images().rglob("*.png"))
    for number, make in enumerate(makers):
        folder, canary = scene.folder / str(number), scene.folder / "canary"
        folder.mkdir()
        source = make(folder, canary)
        for command in (("info", source), ("predict", source, image), ("convert", source, folder / "out", "--to=timm")):
            began = time.monotonic()
            done = scene.vitreous(*command)
            messages.append(rejected(done))
            peak = max(peak, done.memory)
            assert time.monotonic() - began < 60, "more than a minute"
        assert not canary.exists(), "code of the file was executed"
        assert not (folder / "out").exists(), "a rejected file was converted"
    assert peak < LITTLE_MEMORY, f"{peak:.0f} MB"
    return f"{messages[0]}; at most {peak:.0f} MB"


def pickle_of_command(folder: Path, canary: Path) -> Path:
    file = folder / "x.pth"
    file.write_bytes(pickle.dumps({"state_dict": Command(f"touch {canary}")}))
    return file


def torch_file_of_command(folder: Path, canary: Path) -> Path:
    from handmade_pickles import torch_zip

    file = folder / "x.pt"
    file.write_bytes(torch_zip(pickle.dumps({"model": Command(f"touch {canary}")}, protocol=2)))
    return file


def array_of_objects(folder: Path, canary: Path) -> Path:
    import numpy as np

    objects = np.empty(1, object)
    objects[0] = Command(f"touch {canary}")
    np.savez(folder / "x.npz", cls=objects)
    return folder / "x.npz"


def pickles(scene: Scene) -> str:
    from hostile_checkpoints import paddle_pickle

    return hostile(scene, pickle_of_command, torch_file_of_command, paddle_pickle)


def objects_in_npz(scene: Scene) -> str:
    data = array_of_objects(scene.folder, scene.folder / "canary")
    done = scene.vitreous("train", f"--data={data}", f"--out={scene.folder / 'run'}")
    assert not (scene.folder / "canary").exists()
    return f"{hostile(scene, array_of_objects)}; as data: {rejected(done)}"


def zip_bombs(scene: Scene) -> str:
    from hostile_checkpoints import huge_npy, zip_bomb

    return hostile(scene, zip_bomb, huge_npy)


def safetensors_headers(scene: Scene) -> str:
    from hostile_checkpoints import empty_with_overflowing_stride, huge_header, huge_safetensors

    return hostile(scene, huge_header, huge_safetensors, empty_with_overflowing_stride)


def index_outside(scene: Scene) -> str:
    from hostile_checkpoints import index_outside_the_folder

    return hostile(scene, index_outside_the_folder)


def escape_sequences(scene: Scene) -> str:
    """A label that would rewrite the terminal, in a checkpoint from someone else."""
    run = scene.finished_run()
    file = run / "best" / "config.json"
    document = json.loads(file.read_text())
    document["model"]["labels"][0] = "\x1b]0;owned\x07\x1b[2J\u202enine"
    file.write_text(json.dumps(document))
    image = next(scene.images().rglob("*.png"))
    strange = image.with_name("\x1b[31mred\x07.png")
    image.rename(strange)
    shown = ""
    for command in (("info", run / "best"), ("predict", run / "best", strange, "--top=10")):
        done = scene.vitreous(*command, env={"FORCE_COLOR": ""})
        shown += done.out + done.errors
    for text in ("\x1b]0;", "\x1b[2J", "\x07", "\u202e", "\x1b[31mred"):
        assert text not in shown, f"{text!r} was printed"
    with contextlib.suppress(OSError):
        strange.unlink()
    return "printed in escaped form"


CASES = [
    Case("truncated checkpoint", "half of model.safetensors", "exit 1 names the file", truncated),
    Case("flipped byte in a header", "one bit of model.safetensors", "exit 1 names the file", flipped_header),
    Case("flipped byte in data", "one bit of the optimizer state", "exit 1 names the file", flipped_data),
    Case("missing files", "each file of a checkpoint removed", "exit 1 names the file", missing_files),
    Case("missing checkpoint", "last/ removed", "exit 1; does not start again", missing_last),
    Case("wrong config.json", "other and absurd sizes in a checkpoint", "exit 1 with one line", wrong_config),
    Case("invalid run config", "an unknown task", "exit 1 names the field", broken_run_config),
    Case("torn metrics.jsonl", "half of a last line", "drops the line and resumes", torn_metrics),
    Case("gzip bomb in a run", "data.json.gz that unpacks to 4 GB", "exit 1, little memory", gzip_bomb),
    Case(
        "pickles with code",
        "os.system in a pickle, a torch file, a Paddle file",
        "exit 1; not executed",
        pickles,
        300,
    ),
    Case("objects in .npz", "a pickle in an array, as weights and as data", "exit 1; not executed", objects_in_npz),
    Case("zip bombs", "arrays of 256 MB and 4 TB in small .npz files", "exit 1, little memory", zip_bombs, 300),
    Case(
        "safetensors headers",
        "a header of 2^62 bytes, 4 TB of data, strides above 2^64",
        "exit 1, little memory",
        safetensors_headers,
        300,
    ),
    Case("shard index", "an index that lists ../../etc/passwd", "exit 1", index_outside),
    Case(
        "terminal escapes",
        "control characters in labels and file names",
        "printed in escaped form",
        escape_sequences,
    ),
]
