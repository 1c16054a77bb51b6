"""The catalog of pretrained weights: facts, formats, names, downloads from a local hub, and the table in the docs."""

import dataclasses
import json
import math
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitreous
from hub_server import Hub
from hub_subprocess import Client, error_of, files_of
from optional_imports import import_timm
from parity import noisy
from vitreous.common.checks import BadValue
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.meta_build import build_blank
from vitreous.model.presets import PRESETS
from vitreous.model.swin_config import SwinConfig
from vitreous.weights import load as loading
from vitreous.weights.catalog import BY_PRESET, CATALOG
from vitreous.weights.io.errors import BadCheckpoint

DOCS = Path(vitreous.__file__).parents[1] / "docs" / "en" / "weights.md"
SMALL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"  # the smallest repository: augreg-ti16


# ---- The table -------------------------------------------------------------------------------------------------------


TIMM = [name for name, entry in CATALOG.items() if "/" not in entry.model]


@pytest.mark.parametrize("name", [name for name in CATALOG if name not in TIMM])
def test_entry_of_another_repository_agrees_with_its_preset(name: str) -> None:
    entry = CATALOG[name]
    config = PRESETS[entry.preset]
    assert config.image_size == (entry.image_size, entry.image_size)
    model = build_blank(config)
    assert math.isclose(entry.parameters, sum(weight.numel() for weight in model.parameters()) / 1e6, abs_tol=0.06)
    assert f"patch{config.patch_stride[0]}" in entry.model


@pytest.mark.parametrize("name", TIMM)
def test_entry_agrees_with_timm(name: str) -> None:
    timm, entry = import_timm(), CATALOG[name]
    known = timm.get_pretrained_cfg(entry.model)
    assert entry.repository == known.hf_hub_id
    assert entry.license == known.license
    assert (3, entry.image_size, entry.image_size) == known.input_size
    with torch.device("meta"):
        model = timm.create_model(entry.model)
    assert math.isclose(entry.parameters, sum(weight.numel() for weight in model.parameters()) / 1e6, abs_tol=0.06)
    config = PRESETS[entry.preset] if entry.preset else None
    if isinstance(config, ViTConfig):
        theirs = (model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads)
        assert (config.width, config.depth, config.num_heads) == theirs
        grid = [side // stride for side, stride in zip((entry.image_size,) * 2, config.patch_stride, strict=True)]
        assert grid == list(model.patch_embed.grid_size)
        assert config.num_prefix_tokens == model.num_prefix_tokens
    elif isinstance(config, SwinConfig):
        assert config.depths == tuple(len(stage.blocks) for stage in model.layers)
        assert config.stage_windows == tuple(tuple(stage.blocks[0].window_size) for stage in model.layers)
        assert config.stage_heads == tuple(stage.blocks[0].attn.num_heads for stage in model.layers)
    elif isinstance(config, ResNetConfig):
        assert config.stages == tuple(len(stage.blocks) for stage in model.stages)


def test_facts_have_the_right_form() -> None:
    for name, entry in CATALOG.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)
        assert re.fullmatch(r"\d{4}\.\d{5}", entry.paper)
        assert entry.top1 is None or 60 < entry.top1 <= 90
        assert ("-384" in name) == (entry.image_size == 384)
        assert name.endswith("-in21k") == entry.model.endswith(("augreg_in21k", "orig_in21k", "goog_in21k"))
    assert len({entry.model for entry in CATALOG.values()}) == len(CATALOG)


SWINS = ("swin-ti", "swinv2-ti-w16", "swinv2-b-w16-in21k-ft")  # of all Swin models, to save time


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TIMM if not name.startswith("swin") or name in SWINS])
def test_repository_layout_gives_timm_outputs(name: str, tmp_path: Path) -> None:
    """One block of each model, in the files that timm pushes to its repositories."""
    timm, entry = import_timm(), CATALOG[name]
    shallow: dict[str, Any] = {} if "resnetv2" in entry.model else {"depth": 1}
    if "swin" in entry.model:
        shallow = {"depths": (1, 1, 1, 1)}
    model = noisy(timm.create_model(entry.model, **shallow)).eval()
    timm.models.save_for_hf(model, tmp_path / "m", safe_serialization=True)
    ours = vitreous.load(tmp_path / "m")
    assert ours.config.image_size == (entry.image_size, entry.image_size)
    images = torch.rand(1, 3, entry.image_size, entry.image_size) * 2 - 1
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), model(images), atol=1e-4, rtol=1e-3)


def test_table_in_the_docs_is_current() -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE))
    shown = {
        name: " | ".join(
            (
                f"[{entry.model}](https://huggingface.co/{entry.repository})",
                str(entry.image_size),
                f"{entry.parameters:,.1f}",
                "-" if entry.top1 is None else f"{entry.top1:.1f}",
            )
        )
        for name, entry in CATALOG.items()
    }
    assert {name: rows.get(name) for name in shown} == shown
    for entry in CATALOG.values():
        assert (
            f"([{entry.paper}](https://arxiv.org/abs/{entry.paper}), {entry.license}). Accuracy: {entry.measured}."
            in DOCS.read_text()
        )


# ---- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("dinov2-z", "did you mean 'dinov2-"),
        ("augreg-b-16", "did you mean 'augreg-b16'"),
        ("vit_small_patch14_dinov2.lvd142m", "use 'dinov2-s' (hf-hub:timm/vit_small_patch14_dinov2.lvd142m)"),
        ("vit_base_patch16_224", "'augreg-b16' (hf-hub:timm/vit_base_patch16_224.augreg_in21k_ft_in1k)"),
        ("vit_base_patch16_siglip_224.webli", "use 'hf-hub:timm/vit_base_patch16_siglip_224.webli'"),
        ("timm/vit_base_patch14_dinov2.lvd142m", "use 'dinov2-b'"),
        ("dinov2_vitl14", "use 'dinov2-l'"),  # torch.hub
        ("facebook/dinov2-small", "use 'hf-hub:facebook/dinov2-small'"),
        ("ViT-B/16", "'augreg-b16'"),
    ],
)
def test_other_names_get_the_catalog_name_as_a_suggestion(name: str, answer: str) -> None:
    with pytest.raises(BadCheckpoint, match=re.escape(answer)):
        vitreous.load(name)


def test_nearby_file_is_suggested_instead_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    with pytest.raises(BadCheckpoint, match="did you mean 'first'") as caught:
        vitreous.load("runs/frist")
    assert "hf-hub" not in str(caught.value)


def test_local_folder_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "download", None)  # any download would fail
    vitreous.save(vitreous.create("ViT-Lite-6/4", num_classes=7), "dinov2-s")
    for name in ("dinov2-s", Path("dinov2-s")):
        assert vitreous.load(name).config.num_classes == 7


# ---- create ----------------------------------------------------------------------------------------------------------


def test_create_loads_pretrained_weights_with_a_new_head(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(loading, "load", lambda *arguments: calls.append(arguments))
    vitreous.create("DINOv2-S/14", num_classes=3, image_size=224, pretrained="dinov2-s")
    vitreous.create("ViT-B/16", pretrained=True)
    assert calls == [("dinov2-s", None, 224, 3, None), (BY_PRESET["ViT-B/16"][0], None, None, None, None)]


@pytest.mark.parametrize(
    ("name", "pretrained", "wrong"),
    [
        ("DINOv2-S/14", "dinov2-b", "pretrained is 'dinov2-b', but must be True or one of 'dinov2-s'"),
        ("ViT-Lite-6/4", True, "no pretrained weights for ViT-Lite-6/4"),
        ("ViT-B16", True, "did you mean 'ViT-B/16'"),
        ("dinov2-s", False, r"use vitreous\.load\('dinov2-s'\)"),
    ],
)
def test_create_rejects_weights_that_do_not_fit(name: str, pretrained: bool | str, wrong: str) -> None:
    with pytest.raises(BadValue, match=wrong):
        vitreous.create(name, pretrained=pretrained)


# ---- A hub -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in the layout of the repository of augreg-ti16, with one block."""
    timm, folder = import_timm(), tmp_path_factory.mktemp("timm") / "m"
    timm.models.save_for_hf(noisy(timm.create_model(SMALL, depth=1)), folder, safe_serialization=True)
    return folder


@pytest.mark.slow
def test_weights_are_downloaded_by_name_and_the_license_is_printed_once(
    hub: Hub, client: Client, tiny: Path, tmp_path: Path
) -> None:
    commit = hub.add(f"timm/{SMALL}", files_of(tiny))
    assert CATALOG["augreg-ti16"].model == SMALL
    Image.new("RGB", (40, 50)).save(tmp_path / "picture.png")
    arguments = ["predict", "augreg-ti16", str(tmp_path / "picture.png"), "--device", "cpu"]
    first, second = (client.call("command", *arguments) for _ in range(2))
    assert first["status"] == second["status"] == 0
    assert "license apache-2.0" in first["errors"]
    assert "2106.10270" in first["errors"]
    assert "license" not in second["errors"]
    loaded = client.call("load", "augreg-ti16")
    assert loaded["logits"] == client.call("load", str(tiny))["logits"]
    assert loaded["provenance"]["commit"] == commit
    assert loaded["provenance"]["license"] == "apache-2.0"  # of the catalog, because the repository has no model card
    assert hub.requested_files() == ["config.json", "model.safetensors"]


@pytest.mark.slow
def test_automatic_run_downloads_its_weights(hub: Hub, client: Client, tmp_path: Path) -> None:
    timm, entry = import_timm(), CATALOG["dinov2-s"]
    timm.models.save_for_hf(noisy(timm.create_model(entry.model, depth=1)), tmp_path / "m", safe_serialization=True)
    commit = hub.add(entry.repository, files_of(tmp_path / "m"))
    arguments = ["train", "--data", "shapes:size=56,count=8,val=4", "--init", "auto", "--out", str(tmp_path / "run")]
    result = client.call("command", *arguments, "--steps", "1", "--batch-size", "4", "--device", "cpu")
    assert result["status"] == 0, result["errors"]
    assert "license apache-2.0" in result["errors"]
    assert "auto: init = dinov2-s" in result["out"]
    document = json.loads((tmp_path / "run" / "best" / "config.json").read_text())
    assert (document["provenance"]["repository"], document["provenance"]["commit"]) == (entry.repository, commit)
    assert document["model"]["image_size"] == [112, 112]


@pytest.mark.slow
def test_automatic_run_without_a_network_starts_from_scratch(shared_hub: Hub, tmp_path: Path) -> None:
    arguments = ["train", "--data", "shapes:size=56,count=8,val=4", "--init", "auto", "--out", str(tmp_path / "run")]
    with closing(Client(shared_hub.url, tmp_path / "empty", HF_HUB_OFFLINE="1")) as client:
        result = client.call("command", *arguments, "--steps", "1", "--set", "depth=1", "--device", "cpu")
    assert result["status"] == 0, result["errors"]
    assert "auto: init = none, training from scratch (dinov2-s: " in result["out"]


def test_offline_error_names_the_entry_and_what_to_do(hub: Hub, client: Client, offline: Client) -> None:
    line = error_of(offline, "load", "deit-ti")
    assert line.startswith("HubUnavailable: deit-ti: hf-hub:timm/deit_tiny_patch16_224.fb_in1k is not in the cache")
    assert "HF_HUB_OFFLINE" in line
    assert "model.safetensors" in line
    with hub.unreachable():
        line = error_of(client, "load", "deit-ti")
    assert "cannot be reached" in line
    assert "model.safetensors" in line


def test_info_needs_no_download(hub: Hub, client: Client) -> None:
    described = json.loads(client.call("command", "info", "deit-ti", "--json")["out"])
    entry = CATALOG["deit-ti"]
    plain = {"name": "deit-ti", "source": entry.source, "parameters": 5_700_000, "top1": 0.722}
    assert described == dataclasses.asdict(entry) | plain
    shown = client.call("command", "info", "deit-ti")["out"]
    assert all(word in shown for word in ("apache-2.0", "2012.12877", "72.2", "DeiT-Ti/16"))
    listed = client.call("command", "info", "--pretrained")["out"]
    assert all(re.search(rf"^ *{name} ", listed, re.MULTILINE) for name in CATALOG)
    assert set(json.loads(client.call("command", "info", "--pretrained", "--json")["out"])) == set(CATALOG)
    assert client.call("command", "info", "deit-ti", "--num-classes", "3")["status"] == 2
    assert "did you mean 'deit-ti'" in client.call("command", "info", "deit-tii")["errors"]
    assert not hub.requests
