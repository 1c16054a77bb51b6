"""`vitreous serve` on the command line."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import vitreous
from command_line import CommandLine
from images import encoded, smooth
from live_server import HOST, process
from vitreous.common import device as capacity
from vitreous.model import options
from vitreous.serving.app import run_server
from vitreous.serving.models import check_capacity, load_models, unique_ids
from vitreous.serving.settings import Settings


@pytest.mark.slow
def test_two_checkpoints_and_a_key(checkpoint: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    with process([checkpoint, checkpoint], "--image-size", "48", "--api-key-file", str(key)) as live:
        assert live.request("GET", "/v1/model").code == "unauthorized"
        answer = live.request("GET", "/v1/model", X_API_Key="sesame").json
        assert [one["id"] for one in answer["models"]] == ["small", "small-2"]
        assert [one["name"] for one in answer["models"]] == ["small", "small"]  # without its folders
        assert {tuple(one["image_size"]) for one in answer["models"]} == {(48, 48)}
        for id in ("small", "small-2"):
            sample_image = encoded(smooth(50, 60))
            output = live.request("POST", f"/v1/classify?model={id}", sample_image, X_API_Key="sesame").json
            assert output["model"] == id


@pytest.mark.slow
def test_the_default_address_is_loopback_and_the_key_may_be_an_environment_variable(checkpoint: Path) -> None:
    with process([checkpoint], VITREOUS_API_KEY="sesame") as live:
        assert live.request("GET", "/v1/model").status == 401
        assert live.request("GET", "/v1/model", Authorization="Bearer sesame").status == 200
        assert live.process is not None
        listening = Path(f"/proc/{live.process.pid}/net/tcp").read_text()
        assert f"0100007F:{live.port:04X}" in listening  # 127.0.0.1
        assert f"00000000:{live.port:04X}" not in listening


@pytest.mark.slow
def test_a_taken_port_exits_with_1(checkpoint: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        command = [sys.executable, "-m", "vitreous", "serve", str(checkpoint), "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "Address already in use" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["no-such-folder"], 1, "no-such-folder"),
        (["no-such-folder", "--port", "99999"], 2, "port is 99999, but must be an integer from 0 to 65535"),
        (["no-such-folder", "--queue", "0"], 2, "queue is 0"),
        (["no-such-folder", "--api-key-file", "no-such-file"], 1, "no-such-file"),
        (["no-such-folder", "--host", "203.0.113.9", "--port", "0"], 1, "cannot listen on 203.0.113.9, port 0"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], status: int, message: str, command: CommandLine) -> None:
    done = command("serve", *arguments)
    assert (done.returncode, message in done.stderr.strip().splitlines()[-1]) == (status, True), done.stderr


def test_a_model_too_large_for_this_machine_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of config can describe a model that needs all memory and never finishes."""
    model = vitreous.create(
        "ViT-Ti/16", num_classes=3, image_size=32, overrides={"position": options.NoPosition(), "depth": 1}
    )
    vitreous.save(model, tmp_path / "small")
    config = tmp_path / "small" / "config.json"
    assert '"image_size": [' in config.read_text()
    config.write_text(re.sub(r'"image_size": \[[^]]*\]', '"image_size": [16384, 16384]', config.read_text()))
    monkeypatch.setattr(capacity, "total_memory", lambda device: 10**12)  # enough for one image
    with pytest.raises(ValueError, match="small takes images of 16384 x 16384 pixels, and a batch of 4096 needs"):
        run_server([tmp_path / "small"], Settings(port=0, max_batch=4096), device="cpu")
    [served] = load_models([tmp_path / "small"], device="cpu", max_batch=1)
    with pytest.raises(ValueError, match="longer than the timeout"):
        check_capacity(served, timeout=0.1)


def test_a_checkpoint_may_be_overwritten_while_it_is_served(checkpoint: Path, tmp_path: Path) -> None:
    """`cp` truncates the file, and a process that has mapped it would crash."""
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    [served] = load_models([copy], device="cpu")
    child = os.fork()
    if child == 0:
        os.truncate(copy / "model.safetensors", 0)
        for tensor in (*served.model.parameters(), *served.model.buffers()):
            tensor.detach().numpy().copy()  # numpy, because torch's threads do not survive a fork
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_ids_are_short_and_unique() -> None:
    names = ["a/best", "b/best", "b/last", "b", "C:\\models\\x y.pth", "hf-hub:owner/name@main", ".", "models/v1.0.npz"]
    ids = unique_ids(names)
    assert ids == ["a", "b", "b-2", "b-3", "x-y", "name-main", "model", "v1.0"]
    assert len(set(ids)) == len(ids)
