"""Runs functions that use a hub in a subprocess, because huggingface_hub reads its settings when it is imported.

The subprocess reads one JSON request per line from stdin, calls the function, and writes one line with the result or
the error.
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
    "HF_HUB_DISABLE_XET": "1",  # the local hub supports only LFS for large files
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "HF_HUB_ETAG_TIMEOUT": "3",
    "HF_HUB_DOWNLOAD_TIMEOUT": "3",
}

NOT_FOUND = "does not exist or is private"


def settings(url: str, home: Path, **more: str) -> dict[str, str]:
    """Return environment variables that select a hub and `home` as the folder for its files."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return kept | SETTINGS | {"HF_ENDPOINT": url, "HF_HOME": str(home), "OMP_NUM_THREADS": "1"} | more


class Client:
    """Starts a subprocess and calls functions in it."""

    def __init__(self, url: str, home: Path, **more: str):
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=settings(url, home, **more),
            text=True,
        )

    def call(self, function: str, *arguments: Any, token: str | None = None, **options: Any) -> Any:
        """Return the result, or raise RuntimeError with the message of the error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"function": function, "arguments": arguments, "options": options, "token": token}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        response = json.loads(self.process.stdout.readline())
        if "error" in response:
            raise RuntimeError(response["error"])
        return response["result"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def error_of(client: Client, *arguments: Any, **options: Any) -> str:
    """Call a function that must raise, and return its one-line error message."""
    with pytest.raises(RuntimeError) as caught:
        client.call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# ---- In the subprocess -----------------------------------------------------------------------------------------------


def load(source: str, **options: Any) -> dict[str, Any]:
    """Load a model; return its exact output for a fixed image, its config and its provenance."""
    import torch

    import vitreous
    from vitreous.common.codec import to_dict
    from vitreous.weights.native import provenance_of

    model = vitreous.load(source, **options)
    size = model.config.image_size
    image = torch.linspace(-1, 1, 3 * size[0] * size[1]).reshape(1, 3, *size)
    with torch.inference_mode():
        logits = model(image).flatten()
    return {
        "logits": [number.hex() for number in logits.tolist()],
        "config": to_dict(model.config),
        "provenance": provenance_of(model),
    }


def push(path: str, target: str, push_to: str, **options: Any) -> None:
    """Load a checkpoint and save it with `push_to`."""
    import vitreous

    vitreous.save(vitreous.load(path), target, push_to=push_to, **options)


def command(*arguments: str) -> dict[str, Any]:
    """Run a command and return its output and exit status."""
    from vitreous.cli.main import main

    out, errors, status = io.StringIO(), io.StringIO(), 0
    sys.argv = ["vitreous", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
    return {"out": out.getvalue(), "errors": errors.getvalue(), "status": status}


def initial_provenance(*arguments: str) -> dict[str, Any]:
    """Return the provenance of the model that `vitreous train` would start from."""
    import tyro

    from vitreous.cli.main import FLAGS
    from vitreous.cli.train import Flags
    from vitreous.data.open import open_data
    from vitreous.tasks.base import open_init
    from vitreous.tasks.classify import Classify
    from vitreous.training.defaults import choose
    from vitreous.weights.native import provenance_of

    config = tyro.cli(Flags, args=arguments, config=FLAGS).config()
    data = open_data(config.data)
    init = open_init(config)
    return provenance_of(Classify.build_model(choose(config, data, "cpu", init=init).config, data, init))


FUNCTIONS = {"load": load, "push": push, "command": command, "initial_provenance": initial_provenance}


def serve() -> None:
    """Call the requested functions until stdin is closed."""
    importlib.import_module("vitreous.weights.load")  # slow; saves time if other tests run first
    responses = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.pop("HF_TOKEN", None)
        if request["token"] is not None:
            os.environ["HF_TOKEN"] = request["token"]
        try:
            function = FUNCTIONS[request["function"]]
            response = {"result": function(*request["arguments"], **request["options"])}
        except Exception as error:
            response = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(response), file=responses, flush=True)


if __name__ == "__main__":
    serve()
