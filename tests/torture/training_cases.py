"""Faults of runs: kills, signals, full disks, permissions, several processes, changed surroundings."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

from torchrun import SMALL, torchrun, worker
from torture.runner import Case
from torture.scene import (
    SAVE_EVERY_STEP,
    NotRun,
    Scene,
    finish,
    rejected,
    run_step,
    same_weights,
    stop,
    succeeded,
    wait_until,
    without_root,
)

# ---- Kills and signals -----------------------------------------------------------------------------------------------


def kill_at_random(scene: Scene) -> str:
    out, chance, steps = scene.folder / "run", random.Random(0), []
    for _ in range(3):
        before = run_step(out) if (out / "last").exists() else 0
        running = scene.train(out, SAVE_EVERY_STEP, "--auto-resume")
        wait_until(lambda before=before: (out / "last").exists() and run_step(out) > before, running)
        time.sleep(chance.uniform(0, 0.3))
        running.kill()
        finish(running)
        steps.append(run_step(out))
    succeeded(finish(scene.train(out, SAVE_EVERY_STEP, "--auto-resume")))
    same_weights(out, scene.finished_run("whole"))
    return f"killed after steps {', '.join(map(str, steps))} of 22; all tensors equal"


def kill_while_saving(scene: Scene) -> str:
    out, steps = scene.folder / "run", []
    for least in (1, 5, 9):
        running = scene.train(out, SAVE_EVERY_STEP, "--auto-resume")
        wait_until(lambda least=least: (out / ".saved").exists() and run_step(out) >= least, running)
        wait_until(lambda: any(out.glob(".last.*.aside")), running)
        running.kill()
        finish(running)
        steps.append(run_step(out))
        succeeded(scene.vitreous("info", out / "last"))
    succeeded(finish(scene.train(out, SAVE_EVERY_STEP, "--auto-resume")))
    left = [path.name for path in out.iterdir() if path.name.endswith(".aside")]
    assert not left, f"temporary folders remain: {left}"
    same_weights(out, scene.finished_run("whole"))
    return f"killed with a checkpoint half written, after steps {', '.join(map(str, steps))}; all tensors equal"


def kill_before_first_save(scene: Scene) -> str:
    out = scene.folder / "run"
    running = scene.train(out)
    wait_until((out / "config.json").exists, running)
    running.kill()
    finish(running)
    done = succeeded(finish(scene.train(out, "--auto-resume")))
    same_weights(out, scene.finished_run("whole"))
    return "started again" if "starting from the beginning" in done.out else "resumed"


def signalled(scene: Scene, number: signal.Signals) -> str:
    out = scene.folder / "run"
    running = scene.train(out, steps=2000)
    wait_until((out / "metrics.jsonl").exists, running)
    done = stop(running, number)
    step = run_step(out)
    assert f"after step {step} of" in done.errors, done.errors
    rejected(done, "--resume", status=128 + number)
    return f"exit {done.status}, saved after step {step}"


def interrupt(scene: Scene) -> str:
    return signalled(scene, signal.SIGINT)


def terminate(scene: Scene) -> str:
    return signalled(scene, signal.SIGTERM)


def closed_terminal(scene: Scene) -> str:
    """SIGHUP and a closed output, as when an SSH connection is lost."""
    out = scene.folder / "run"
    running = scene.train(out, SAVE_EVERY_STEP)
    wait_until((out / "last").exists, running)
    assert running.stdout is not None
    running.stdout.close()
    running.stdout = None
    finish_status = stop(running, signal.SIGHUP).status
    succeeded(scene.vitreous("train", f"--out={out}", "--resume"))
    same_weights(out, scene.finished_run("whole"))
    return f"exit {finish_status}; resumed with equal tensors"


# ---- Several processes -----------------------------------------------------------------------------------------------


def kill_one_of_four(scene: Scene) -> str:
    out, whole, steps = scene.folder / "run", scene.folder / "whole", "--steps=33"
    running = torchrun(4, *SMALL, steps, f"--out={out}", "--auto-resume", restarts=1)
    wait_until((out / ".saved").exists, running)
    os.kill(worker(running, 2), signal.SIGKILL)
    done = finish(running, 200)
    assert done.status == 0, done.out[-600:]
    assert len((out / "commands.txt").read_text().splitlines()) == 2, "it was not restarted"
    succeeded(finish(torchrun(4, *SMALL, steps, f"--out={whole}"), 200))
    same_weights(out, whole)
    return "torchrun restarted all processes; all tensors equal"


def terminate_torchrun(scene: Scene) -> str:
    out = scene.folder / "run"
    running = torchrun(2, *SMALL, "--steps=2000", f"--out={out}")
    wait_until((out / "metrics.jsonl").exists, running)
    before = run_step(out) if (out / "last").exists() else 0
    done = stop(running, signal.SIGTERM)
    assert run_step(out) > before, done.out[-600:]
    return f"both processes saved after step {run_step(out)} and ended"


def world_size_change(scene: Scene) -> str:
    out = scene.folder / "run"
    running = torchrun(2, *SMALL, "--steps=330", f"--out={out}")
    wait_until((out / ".saved").exists, running)
    finish_early = stop(running, signal.SIGTERM)
    assert run_step(out) < 330, finish_early.out[-600:]
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"steps": run_step(out) + 11}))
    step = run_step(out)
    succeeded(scene.vitreous("train", f"--out={out}", "--resume"))
    return f"saved by two processes after step {step}, resumed by one until step {run_step(out)}"


def two_runs_one_folder(scene: Scene) -> str:
    out = scene.folder / "run"
    first = scene.train(out, steps=66)
    wait_until((out / ".lock").exists, first)
    second = rejected(finish(scene.train(out, "--resume", steps=66)), "in use")
    third = rejected(finish(scene.train(out, steps=66)))
    succeeded(finish(first))
    assert run_step(out) == 66
    return f"{second} With --out only: {third}. The first run finished"


# ---- Disks and permissions -------------------------------------------------------------------------------------------


def full_disk(scene: Scene) -> str:
    disk = scene.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        raise NotRun("needs the right to mount a small disk")
    try:
        out = disk / "run"
        running = scene.train(out, SAVE_EVERY_STEP, steps=400)
        wait_until((out / ".saved").exists, running)
        with open(disk / "filler", "wb", buffering=0) as filler:
            try:
                while filler.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass
        message = rejected(finish(running), "no space left")
        step = run_step(out)
        succeeded(scene.vitreous("info", out / "last"))
        (disk / "filler").unlink()
        config = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(config | {"steps": step + 2}))
        done = scene.vitreous("train", f"--out={out}", "--resume")
        assert run_step(out) == step + 2, done.errors
        return f"{message}; with space again, resumed from step {step}"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def file_size_limit(scene: Scene) -> str:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    out = scene.folder / "run"
    message = rejected(finish(scene.train(out, preexec_fn=limit)), "could not write", "too large")
    assert not list(out.glob("*/*.safetensors")), "a partial checkpoint remains"
    return message


def full_output(scene: Scene) -> str:
    with open("/dev/full", "w") as full:
        done = finish(scene.train(scene.folder / "run", stdout=full))
    return rejected(done, "no space left")


def read_only_folder(scene: Scene) -> str:
    parent = scene.folder / "parent"
    parent.mkdir()
    parent.chmod(0o555)
    new = rejected(finish(scene.train(parent / "run", ahead=without_root())), str(parent), "denied")
    run = scene.finished_run()
    for path in (run, run / "last"):
        path.chmod(0o555)
    (run / ".lock").chmod(0o444)
    resumed = rejected(scene.vitreous("train", f"--out={run}", "--resume", ahead=without_root()), str(run))
    return f"{new}; resumed: {resumed}"


def unreadable_images(scene: Scene) -> str:
    data, out = scene.images(count=40), scene.folder / "run"
    for index in range(3):
        (data / "cat" / f"{index:02d}.png").chmod(0)
    done = succeeded(finish(scene.train_images(data, out, "--max-unreadable=0.5", ahead=without_root())))
    listed = json.loads((out / "metrics.json").read_text())["unreadable_files"]
    assert len(listed) == 3, listed
    assert "3 images could not be read" in done.out, done.out
    strict = scene.train_images(data, scene.folder / "strict", "--max-unreadable=0.001", ahead=without_root())
    return f"trained and listed 3 images; with --max-unreadable 0.001 {rejected(finish(strict), 'cannot be read')}"


# ---- Numbers and surroundings ----------------------------------------------------------------------------------------


def not_a_number(scene: Scene) -> str:
    out = scene.folder / "run"
    flags = ("--optimizer=sgd", "--clip=0", "--warmup=0", "--schedule=constant")
    words = [word for word in SMALL if not word.startswith("--lr")]
    done = scene.vitreous("train", *words, "--lr=1e30", "--steps=200", f"--out={out}", *flags)
    return rejected(done, "finite")


def wrong_dates(scene: Scene) -> str:
    data, out = scene.images(), scene.folder / "run"
    succeeded(finish(scene.train_images(data, out, env={"TZ": "Pacific/Kiritimati"})))
    for seconds, root in ((0, data), (2**33, out)):  # 1970 and 2242
        for path in root.rglob("*"):
            os.utime(path, (seconds, seconds))
    succeeded(scene.vitreous("train", f"--out={out}", "--resume", env={"TZ": "Pacific/Pago_Pago"}))
    return "trained and resumed"


def foreign_names(scene: Scene) -> str:
    """The C locale with ASCII output, and class names in other scripts, with emoji and with a line break."""
    data, out = scene.images("Bilder ä 图片"), scene.folder / "run 猫"
    (data / "cat").rename(data / "猫 🐈 кошка")
    (data / "dog").rename(data / "line\nbreak")
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    succeeded(finish(scene.train_images(data, out, env=ascii_only)))
    image = next((data / "line\nbreak").iterdir())
    done = succeeded(scene.vitreous("predict", out / "best", image, "--json", env=ascii_only))
    (line,) = done.out.splitlines()
    labels = {row["label"] for row in json.loads(line)["predictions"]}
    assert labels == {"猫 🐈 кошка", "line\nbreak"}, labels
    assert "кошка" in (out / "report.html").read_text(encoding="utf-8")
    return "trained, reported and predicted; labels are unchanged"


def undecodable_names(scene: Scene) -> str:
    """Names that are not valid UTF-8, as from an old archive."""
    data, out = scene.images(), scene.folder / "run"
    os.rename(data / "cat" / "00.png", os.fsencode(data / "cat") + b"/caf\xe9.png")
    succeeded(finish(scene.train_images(data, out)))
    os.rename(data / "cat", os.fsencode(data) + b"/caf\xe9")
    second = finish(scene.train_images(data, scene.folder / "second"))
    if second.status == 0:
        return "trained, with such images and classes"
    return f"trained with such images; a class: {rejected(second)}"


def no_home(scene: Scene) -> str:
    """No home folder, as in many containers."""
    out = scene.folder / "run"
    variables = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent", "VITREOUS_CACHE": "/nonexistent"}
    done = succeeded(finish(scene.train(out, env=variables, ahead=without_root())))
    assert (out / "report.html").exists()
    assert not done.errors.strip(), done.errors
    return "trained, with a report"


def changed_data(scene: Scene) -> str:
    data, out = scene.images(), scene.folder / "run"
    succeeded(finish(scene.train_images(data, out)))
    (data / "cat" / "03.png").unlink()
    return rejected(scene.vitreous("train", f"--out={out}", "--resume"), "03.png", "changed")


CASES = [
    Case(
        "kill -9 while training",
        "killed at three random moments, restarted with --auto-resume",
        "the weights of an uninterrupted run, bit for bit",
        kill_at_random,
    ),
    Case(
        "kill -9 while saving",
        "killed three times while a checkpoint is being written",
        "the previous checkpoint is complete; the weights of an uninterrupted run",
        kill_while_saving,
    ),
    Case(
        "kill -9 before the first save",
        "killed after the run folder was created",
        "starts again",
        kill_before_first_save,
    ),
    Case(
        "SIGINT while training",
        "Ctrl-C in a run of 2,000 steps",
        "saves, exit 130, names the command to resume",
        interrupt,
    ),
    Case(
        "SIGTERM while training",
        "kill in a run of 2,000 steps",
        "saves, exit 143, names the command to resume",
        terminate,
    ),
    Case("closed terminal", "output closed and SIGHUP", "the run can be resumed", closed_terminal),
    Case(
        "kill -9 of one of four processes",
        "torchrun --max-restarts 1, gloo",
        "restarts; the weights of an uninterrupted run, bit for bit",
        kill_one_of_four,
        400,
    ),
    Case("SIGTERM to torchrun", "two processes", "both save and end", terminate_torchrun),
    Case(
        "world-size change",
        "started by two processes, resumed by one",
        "resumes from the checkpoint of two",
        world_size_change,
    ),
    Case(
        "two runs in one folder",
        "a second run in the folder of a running one",
        "exit 1 names the other process; the first run finishes",
        two_runs_one_folder,
    ),
    Case(
        "full disk",
        "a disk of 4 MB filled while training",
        "exit 1; the last checkpoint is complete; resumes with space",
        full_disk,
    ),
    Case("file size limit", "ulimit -f of 40 kB", "exit 1; no partial checkpoint", file_size_limit),
    Case("output to a full disk", "vitreous train > /dev/full", "exit 1 with one line", full_output),
    Case(
        "read-only folder",
        "a new run in a read-only folder; a read-only run resumed",
        "exit 1 with one line",
        read_only_folder,
    ),
    Case(
        "unreadable images",
        "three images without read permission",
        "trains without them and lists them",
        unreadable_images,
    ),
    Case("NaN loss", "a learning rate of 1e30", "stops with exit 1", not_a_number),
    Case("wrong dates", "files from 1970 and 2242, another time zone", "trains and resumes", wrong_dates),
    Case(
        "locale and names",
        "C locale, ASCII output, class names in other scripts and with a line break",
        "trains and predicts; labels unchanged",
        foreign_names,
    ),
    Case(
        "undecodable names",
        "an image and a class called caf\\xe9",
        "trained, or exit 1 with one line",
        undecodable_names,
    ),
    Case("no home folder", "HOME and caches do not exist, no root rights", "trains, with a report", no_home),
    Case("changed data", "an image deleted before --resume", "exit 1 names the image", changed_data),
]
