"""Pushing to a hub and loading the pushed model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hub_server import TOKEN, Hub
from hub_subprocess import Client, error_of, files_of
from vitreous import create
from vitreous.weights.load import load, save
from vitreous.weights.native import STATISTICS, set_statistics


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
