"""Pushing to a hub and loading the pushed model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hub_server import TOKEN, Hub
from hub_subprocess import Client, error_of, files_of
from vitreous import create
from vitreous.model.int8 import Int8Scales
from vitreous.weights.load import load, save
from vitreous.weights.native import INT8, STATISTICS, set_int8_scales, set_statistics


def test_pushed_model_loads_bit_identically(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    before = client.call("load", str(pets))
    assert not hub.requests  # saving a local checkpoint sends no requests
    client.call("push", str(pets), str(tmp_path / "sent"), "me/pets", token=TOKEN)
    commit = hub.repositories["me/pets"].branches["main"]
    sent = hub.repositories["me/pets"].commits[commit]
    assert sent.keys() == {".gitattributes", "config.json", "model.safetensors", "README.md"}
    card = sent["README.md"].decode()
    front = {'library_name: "vitreous"', 'pipeline_tag: "image-classification"', 'license: "mit"'}
    assert front | {"| top1 | 0.75 |"} < set(card.splitlines())
    assert 'vitreous.load("hf-hub:me/pets")' in card

    after = client.call("load", "hf-hub:me/pets")
    assert (after["logits"], after["config"]) == (before["logits"], before["config"])
    assert after["provenance"] == before["provenance"] | {"repository": "me/pets", "commit": commit}


def test_statistics_of_training_images_are_not_pushed(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    model = load(pets)
    set_statistics(model, {"counts": torch.ones(3)})
    save(model, tmp_path / "start")
    client.call("push", str(tmp_path / "start"), str(tmp_path / "sent"), "me/statistics", token=TOKEN)
    assert (tmp_path / "sent" / STATISTICS).is_file()
    sent = hub.repositories["me/statistics"].commits[hub.repositories["me/statistics"].branches["main"]]
    assert "model.safetensors" in sent
    assert STATISTICS not in sent


def test_repository_is_recorded_in_the_next_checkpoint(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    first = hub.add("me/first", files_of(pets))
    client.call("push", "hf-hub:me/first", str(tmp_path / "next"), "me/second", token=TOKEN)
    record = json.loads((tmp_path / "next" / "config.json").read_text())["provenance"]
    assert (record["repository"], record["commit"], record["license"]) == ("me/first", first, "mit")
    second = client.call("load", "hf-hub:me/second")["provenance"]
    assert (second["repository"], second["earlier"]) == ("me/second", [f"me/first@{first}"])


@pytest.mark.parametrize(
    ("format", "target", "library", "files"),
    [
        ("huggingface", "folder", "transformers", {"config.json", "model.safetensors", "preprocessor_config.json"}),
        ("timm", "folder", "timm", {"config.json", "model.safetensors"}),
        ("google", "pets.npz", "vitreous", {"pets.npz"}),
        ("timm", "pets.pth", "timm", {"pets.pth"}),
    ],
)
def test_foreign_formats_are_pushed_and_loaded(
    hub: Hub, client: Client, pets: Path, tmp_path: Path, format: str, target: str, library: str, files: set[str]
) -> None:
    name = f"me/{format}-{target}"
    client.call("push", str(pets), str(tmp_path / target), name, format=format, lossy=True, token=TOKEN)
    commit = hub.repositories[name].branches["main"]
    sent = hub.repositories[name].commits[commit]
    assert sent.keys() == files | {"README.md", ".gitattributes"}
    assert f'library_name: "{library}"' in sent["README.md"].decode()
    there = client.call("load", f"hf-hub:{name}")
    here = client.call("load", str(tmp_path / target))
    assert (there["logits"], there["config"]) == (here["logits"], here["config"])
    expected = {"repository": name, "commit": commit, "license": "mit"}
    del here["provenance"]["file"]
    assert there["provenance"] == here["provenance"] | expected


def test_push_errors_are_one_line(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    hub.add("me/full", {"model.safetensors": b"x", "config.json": b"{}"})

    def error_for(push_to: str, target: str = "out", token: str | None = TOKEN, **options: Any) -> str:
        return error_of(client, "push", str(pets), str(tmp_path / target), push_to, token=token, **options)

    for wrong in ("pets", "../pets", "me/pets@v1", "", "me/a/b"):
        assert error_for(wrong) == f"BadValue: push_to is {wrong!r}, but must be owner/name"
    assert not (tmp_path / "out").exists()
    assert not hub.requests
    written = f"OSError: {tmp_path}/out was saved but not pushed to {hub.url}"
    for place, token in (("me/new", None), ("others/new", TOKEN)):
        assert error_for(place, token=token) == (
            f"{written}/{place}: a token with write access is required: log in with `hf auth login`, or set HF_TOKEN"
        )
    assert load(tmp_path / "out").config == load(pets).config
    message = "contains config.json, which would interfere"
    assert message in error_for("me/full", "x.npz", format="google", lossy=True)
    hub.faults["upload"] = "403"
    save(create("ViT-Ti/16", overrides={"depth": 1, "width": 64, "num_heads": 1}), tmp_path / "fresh")
    line = error_of(client, "push", str(tmp_path / "fresh"), str(tmp_path / "out"), "me/new", token=TOKEN)
    assert line == f"{written}/me/new: HTTP status 403: Storage is full"


# ---- vitreous push ---------------------------------------------------------------------------------------------------


def pushed(hub: Hub, name: str) -> dict[str, bytes]:
    """Return the files of the only commit after the creation of a repository."""
    commits = list(hub.repositories[name].commits.values())
    assert len(commits) == 2
    return {file: content for file, content in commits[1].items() if file != ".gitattributes"}


def test_push_uploads_exactly_the_checkpoint_in_one_commit(
    hub: Hub, client: Client, pets: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "best"
    model = load(pets)
    set_statistics(model, {"counts": torch.ones(3)})
    save(model, folder)
    for stray in (folder / "notes.txt", folder / ".env", tmp_path / "run" / "metrics.json"):
        stray.write_text("private")
    (folder / "training").mkdir()
    (folder / "training" / "optimizer.safetensors").write_bytes(b"x")
    done = client.call("command", "push", str(folder), "hf-hub:me/command", token=TOKEN)
    assert done["status"] == 0, done["errors"]
    assert done["out"].startswith(f"{hub.url}/me/command/commit/")
    files = pushed(hub, "me/command")
    assert files.keys() == {"config.json", "model.safetensors", "README.md"}
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert files["config.json"] == (folder / "config.json").read_bytes()
    assert 'vitreous.load("hf-hub:me/command")' in files["README.md"].decode()
    assert b"# me/command" in files["README.md"]
    assert hub.repositories["me/command"].private
    logits = client.call("load", str(pets))["logits"]
    assert client.call("load", "hf-hub:me/command", token=TOKEN)["logits"] == logits


def test_int8_scales_are_pushed_and_downloaded(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    model = load(pets)
    scales = Int8Scales({"encoder.blocks.0.mlp.up": (torch.ones(model.config.feature_width), (-1.0, 1.0))})
    set_int8_scales(model, scales)
    save(model, tmp_path / "pets")
    assert client.call("command", "push", str(tmp_path / "pets"), "me/int8", token=TOKEN)["status"] == 0
    assert pushed(hub, "me/int8")[INT8] == (tmp_path / "pets" / INT8).read_bytes()
    hub.requests.clear()
    client.call("load", "hf-hub:me/int8", token=TOKEN)
    assert any(request.method == "GET" and request.path.endswith(INT8) for request in hub.requests)


def test_push_keeps_an_edited_card_and_can_be_public(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    shutil.copytree(pets, folder)
    card = (folder / "README.md").read_text() + "\n## Intended use\n\nPhotographs of pets.\n"
    (folder / "README.md").write_text(card)
    done = client.call("command", "push", str(folder), "me/edited", "--public", token=TOKEN)
    assert done["status"] == 0, done["errors"]
    assert pushed(hub, "me/edited")["README.md"].decode() == card
    assert not hub.repositories["me/edited"].private


def test_push_does_not_follow_a_linked_card(hub: Hub, client: Client, pets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    shutil.copytree(pets, folder)
    (tmp_path / "secret").write_text("secret")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "secret")
    assert client.call("command", "push", str(folder), "me/linked", token=TOKEN)["status"] == 0
    assert b"secret" not in pushed(hub, "me/linked")["README.md"]


def test_push_refuses_what_is_no_checkpoint_before_any_request(
    hub: Hub, client: Client, pets: Path, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    shutil.copytree(pets, tmp_path / "run" / "best")
    shutil.copytree(pets, tmp_path / "torn")
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"torn")
    save(load(pets), tmp_path / "pets.pth", format="timm", lossy=True)
    for name, words in (
        ("photos", "not a Vitreous checkpoint"),
        ("pets.pth", "vitreous convert"),
        ("run", "run/best"),
        ("torn", "model.safetensors"),
        ("missing", "not found"),
    ):
        done = client.call("command", "push", str(tmp_path / name), "me/refused", token=TOKEN)
        assert done["status"] == 1
        assert words in done["errors"]
        assert done["errors"].count("\n") == 1
    assert client.call("command", "push", str(pets), "nowhere", token=TOKEN)["status"] == 2
    assert not hub.requests


def test_push_needs_a_token(hub: Hub, client: Client, pets: Path) -> None:
    done = client.call("command", "push", str(pets), "me/anonymous")
    assert done["status"] == 1
    assert "HF_TOKEN" in done["errors"]
    assert "me/anonymous" not in hub.repositories
