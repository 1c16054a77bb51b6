"""A process that uses a hub: huggingface_hub reads its settings when it is imported, so each setting has its own.

It reads a question in JSON from each line of its input and answers with a line: what the function returned, or how it
failed.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SETTINGS = {
    "HF_HUB_DISABLE_XET": "1",  # large files go by LFS, which is what the local hub speaks
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "HF_HUB_ETAG_TIMEOUT": "3",
    "HF_HUB_DOWNLOAD_TIMEOUT": "3",
}

NOT_THERE = "check the name; if it is private, log in with `hf auth login`, or set HF_TOKEN"


def settings(url: str, home: Path, **more: str) -> dict[str, str]:
    """The environment of a process that knows this hub and keeps everything in this folder."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return kept | SETTINGS | {"HF_ENDPOINT": url, "HF_HOME": str(home), "OMP_NUM_THREADS": "1"} | more


class Client:
    """Client in the test process, which starts the other process and calls its functions."""

    def __init__(self, url: str, home: Path, **more: str):
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=settings(url, home, **more),
            text=True,
        )

    def ask(self, what: str, *arguments: Any, token: str | None = None, **options: Any) -> Any:
        """Return the result, or raise RuntimeError with the failure."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        question = {"what": what, "arguments": arguments, "options": options, "token": token}
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "failure" in answer:
            raise RuntimeError(answer["failure"])
        return answer["answer"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def failure(client: Client, *arguments: Any, **options: Any) -> str:
    """Return the one-line message of an error."""
    with pytest.raises(RuntimeError) as caught:
        client.ask(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# ---- The side of the process -----------------------------------------------------------------------------------------


def load(source: str, **options: Any) -> dict[str, Any]:
    """The exact output of a model for one fixed image, and its provenance."""
    import torch

    import vitreous
    from vitreous.common.codec import to_dict
    from vitreous.weights.native import provenance_of

    model = vitreous.load(source, **options)
    size = model.config.image_size
    picture = torch.linspace(-1, 1, 3 * size[0] * size[1]).reshape(1, 3, *size)
    with torch.inference_mode():
        logits = model(picture).flatten()
    return {
        "logits": [number.hex() for number in logits.tolist()],
        "config": to_dict(model.config),
        "provenance": provenance_of(model),
    }


def push(path: str, target: str, push_to: str, **options: Any) -> None:
    """Load a checkpoint, and save it with `push_to`."""
    import vitreous

    vitreous.save(vitreous.load(path), target, push_to=push_to, **options)


def command(*arguments: str) -> dict[str, Any]:
    """Return the output and exit status of a command."""
    from vitreous.cli.main import main

    out, errors, status = io.StringIO(), io.StringIO(), 0
    sys.argv = ["vitreous", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
    return {"out": out.getvalue(), "errors": errors.getvalue(), "status": status}


def initial(*arguments: str) -> dict[str, Any]:
    """The provenance of the model that `vitreous train` would begin with."""
    import tyro

    from vitreous.cli.main import FLAGS
    from vitreous.cli.train import Flags
    from vitreous.data.open import open_data
    from vitreous.tasks.base import open_init
    from vitreous.tasks.classify import Classify
    from vitreous.training.setup import choose
    from vitreous.weights.native import provenance_of

    config = tyro.cli(Flags, args=arguments, config=FLAGS).config()
    data = open_data(config.data)
    init = open_init(config)
    return provenance_of(Classify.build_model(choose(config, data, "cpu", init=init).config, data, init))


def serve() -> None:
    importlib.import_module("vitreous.weights.load")  # while the tests are still at something else
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        question = json.loads(line)
        os.environ.pop("HF_TOKEN", None)
        if question["token"] is not None:
            os.environ["HF_TOKEN"] = question["token"]
        try:
            function = {"load": load, "push": push, "command": command, "initial": initial}[question["what"]]
            answer = {"answer": function(*question["arguments"], **question["options"])}
        except Exception as error:
            answer = {"failure": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
