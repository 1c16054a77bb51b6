"""Loading from a local hub (hub_server.py) through the real huggingface_hub in a subprocess (hub_subprocess.py).

test_hub_errors.py tests errors, test_hub_push.py tests pushing.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from hub_server import TOKEN, Hub
from hub_subprocess import NOT_FOUND, Client, error_of, files_of, settings
from vitreous.common.checks import BadValue
from vitreous.model.build import build
from vitreous.weights.hub import choose, parse
from vitreous.weights.io.containers import write_file
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.safetensors_file import read_tensors
from vitreous.weights.load import load, save

# ---- Names and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "repository", "revision"),
    [
        ("hf-hub:google/vit-base-patch16-224", "google/vit-base-patch16-224", None),
        ("hf-hub:a/b.c_d@v1.0", "a/b.c_d", "v1.0"),
        ("hf-hub:a/b@refs/pr/4", "a/b", "refs/pr/4"),
        (Path("hf-hub:a/b@main"), "a/b", "main"),
    ],
)
def test_names_are_parsed(source: str | Path, repository: str, revision: str | None) -> None:
    name = parse(source)
    assert (name.repository, name.revision) == (repository, revision)
    assert str(name) == str(source)


@pytest.mark.parametrize(
    "source",
    ["hf-hub:", "hf-hub:foo", "hf-hub:../x", "hf-hub:a/..", "hf-hub:a/b/c", "hf-hub:a/b c", "hf-hub:-a/b",
     "hf-hub:a/b.", "hf-hub:a/b--c", "hf-hub:a/b.git", "hf-hub:/b", "hf-hub:a/", "hf-hub:ä/b", "hf-hub:a/" + "b" * 96,
     "hf-hub:a/b@", "hf-hub:a/b@../main", "hf-hub:a/b@/etc", "hf-hub:a/b@x y", "hf-hub:a/b@a@b"],
)  # fmt: skip
def test_invalid_names_are_rejected_without_a_request(source: str) -> None:
    with pytest.raises(BadValue, match=r"^source is 'hf-hub:.*', but must be hf-hub:[\w/.-]+( or |@ .* branch)"):
        load(source)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5"], ["model.safetensors"]),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], ["pytorch_model.bin"]),
        (["config.json", "vit.pth", "vit.safetensors"], ["config.json", "vit.safetensors"]),
        (["B_16.npz", "README.md", "modeling.py", "handler.sh"], ["README.md", "B_16.npz"]),
        (["preprocessor_config.json", "onnx/model.bin", "a.pdparams"], ["preprocessor_config.json", "a.pdparams"]),
        (
            ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"],
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
    ],
)
def test_only_needed_files_are_selected(names: list[str], chosen: list[str]) -> None:
    assert choose(names) == chosen


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["config.json", "train.py", "sub/model.bin"], "has no weight files"),
        (["a.npz", "b.npz"], r"has 2 weight files \(a.npz, b.npz\), and none is named model.safetensors"),
        (["model.safetensors.index.json", "model-00001-of-00002.safetensors"], "has 1 of .* expected 2"),
        (["pytorch_model.bin.index.json"], "has 0 of .* expected at least one"),
    ],
)
def test_ambiguous_repositories_are_rejected(names: list[str], wrong: str) -> None:
    with pytest.raises(BadCheckpoint, match=wrong):
        choose(names)


# ---- Saving and loading ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_are_fetched_once(hub: Hub, client: Client, pets: Path) -> None:
    files = files_of(pets) | {"pytorch_model.bin": b"x", "modeling_vit.py": b"x", "model.onnx": b"x", "a/b.bin": b"x"}
    hub.add("me/once", files)
    first = client.call("load", "hf-hub:me/once")
    assert hub.requested_files() == ["README.md", "config.json", "model.safetensors"]
    hub.requests.clear()
    assert client.call("load", "hf-hub:me/once") == first
    assert [(request.method, request.path) for request in hub.requests] == [
        ("GET", "/api/models/me/once/revision/main")
    ]


@pytest.mark.slow
def test_shards_and_pickles_are_loaded(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    save(load(pets), tmp_path / "foreign", "huggingface", lossy=True)
    tensors = list(read_tensors(tmp_path / "foreign" / "model.safetensors").items())
    config = (tmp_path / "foreign" / "config.json").read_bytes()
    where = {}
    for number, part in ((1, tensors[::2]), (2, tensors[1::2])):
        shard = tmp_path / f"model-0000{number}-of-00002.safetensors"
        write_file(dict(part), shard)
        where |= dict.fromkeys(dict(part), shard.name)
    index = json.dumps({"weight_map": where}).encode()
    write_file(dict(tensors), tmp_path / "pytorch_model.bin")
    shards = {file.name: file.read_bytes() for file in tmp_path.glob("model-*")}
    hub.add("me/sharded", shards | {"config.json": config, "model.safetensors.index.json": index})
    hub.add("me/pickled", {"config.json": config, "pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()})
    right = client.call("load", str(tmp_path / "foreign"))["logits"]
    assert client.call("load", "hf-hub:me/sharded")["logits"] == right
    assert client.call("load", "hf-hub:me/pickled")["logits"] == right


def test_revision_is_fetched(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    model = load(pets)
    old = hub.add("me/versions", files_of(pets))
    hub.repositories["me/versions"].branches["v1.0"] = old
    with torch.no_grad():
        model.head.bias += 1
    save(model, tmp_path / "new")
    new = hub.add("me/versions", files_of(tmp_path / "new"))
    here = {commit: client.call("load", str(path))["logits"] for commit, path in ((old, pets), (new, tmp_path / "new"))}
    assert here[old] != here[new]
    for revision, commit in (("", new), ("@main", new), ("@v1.0", old), (f"@{old}", old), (f"@{new}", new)):
        found = client.call("load", f"hf-hub:me/versions{revision}")
        assert found["logits"] == here[commit], revision
        assert found["provenance"]["commit"] == commit
    with torch.no_grad():
        model.head.bias += 1
    save(model, tmp_path / "newer")
    newer = hub.add("me/versions", files_of(tmp_path / "newer"))
    assert client.call("load", "hf-hub:me/versions")["provenance"]["commit"] == newer  # main has changed since


# ---- Token and offline use -------------------------------------------------------------------------------------------


def test_token_is_sent_only_to_the_hub(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    hub.add("me/secret", files_of(pets), private=True)
    client.call("load", "hf-hub:me/secret", token=TOKEN)
    save(build(load(pets).config), tmp_path / "other")
    client.call("push", str(tmp_path / "other"), str(tmp_path / "sent"), "me/other", token=TOKEN)
    assert {(request.server, request.token) for request in hub.requests} == {("hub", TOKEN), ("store", None)}
    assert {request.method for request in hub.requests if request.server == "store"} == {"GET", "PUT"}
    hub.requests.clear()
    assert NOT_FOUND in error_of(client, "load", "hf-hub:me/secret")
    assert {request.token for request in hub.requests} == {None}


def test_cache_is_used_without_a_network(
    hub: Hub, client: Client, offline: Client, home: Path, pets: Path, tmp_path: Path
) -> None:
    commit = hub.add("me/kept", files_of(pets))
    online = client.call("load", "hf-hub:me/kept")
    hub.requests.clear()
    for revision in ("", "@main", f"@{commit}"):
        assert offline.call("load", f"hf-hub:me/kept{revision}") == online
    never = f"HubUnavailable: hf-hub:me/never is not in the cache ({home}/hub), and HF_HUB_OFFLINE is set"
    assert error_of(offline, "load", "hf-hub:me/never").startswith(never)
    line = error_of(offline, "push", str(pets), str(tmp_path / "x"), "me/x", token=TOKEN)
    assert line.startswith("OSError: cannot push to me/x because HF_HUB_OFFLINE is set")
    assert not (tmp_path / "x").exists()
    next((home / "hub" / "models--me--kept").rglob("model.safetensors")).unlink()
    assert error_of(offline, "load", "hf-hub:me/kept").startswith(
        "HubUnavailable: the cached copy of hf-hub:me/kept is incomplete"
    )
    assert not hub.requests


# ---- The command line ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_accepts_a_hub_name(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    commit = hub.add("me/cli", files_of(pets))
    info = json.loads(client.call("command", "info", "hf-hub:me/cli", "--json")["out"])
    assert info["provenance"]["commit"] == commit
    assert info["config"]["labels"] == ["cat", "dog", "owl"]
    result = client.call(
        "command", "predict", "hf-hub:me/cli", str(sample_image(tmp_path)), "--json", "--device", "cpu"
    )
    assert result["status"] == 0
    assert json.loads(result["out"])["predictions"][0]["label"] in ("cat", "dog", "owl")
    begun = client.call("initial_provenance", "--data", "digits", "--init", "hf-hub:me/cli", "--batch-size", "auto")
    assert (begun["repository"], begun["commit"]) == ("me/cli", commit)


def sample_image(folder: Path) -> Path:
    Image.new("RGB", (40, 50), (200, 30, 60)).save(folder / "picture.png")
    return folder / "picture.png"


@pytest.mark.slow
def test_command_line_error_is_one_line(hub: Hub, client: Client, home: Path) -> None:
    for arguments, status in ((["info", "hf-hub:foo"], 2), (["predict", "hf-hub:no/such", "x.png"], 1)):
        result = client.call("command", *arguments)
        assert result["status"] == status
        assert result["errors"].startswith("vitreous: ")
        assert result["errors"].count("\n") == 1
    real = subprocess.run(
        [sys.executable, "-m", "vitreous", "info", "hf-hub:no/such"],
        env=settings(hub.url, home),
        capture_output=True,
        text=True,
    )
    assert (real.returncode, real.stdout) == (1, "")
    assert real.stderr.startswith(f"vitreous: hf-hub:no/such: {hub.url}/no/such {NOT_FOUND}")
    assert real.stderr.count("\n") == 1
