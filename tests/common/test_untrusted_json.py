"""Errors in untrusted JSON files are one line that names the file."""

import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous
from vitreous.cli import main as cli
from vitreous.common.untrusted_files import MAX_JSON_DEPTH, parse_json, read_json_object
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.load import describe

DEEP = (MAX_JSON_DEPTH, 300, 950, 990, 100_000)  # some can be parsed by json but overflow repr or a recursive reader


def nested(depth: int, kind: str) -> str:
    return "[" * depth + "]" * depth if kind == "list" else '{"a": ' * depth + "1" + "}" * depth


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("depth", DEEP)
def test_nesting_depth_is_limited(depth: int, kind: str) -> None:
    assert parse_json(f'{{"a": {nested(MAX_JSON_DEPTH - 1, kind)}}}', "x")
    with pytest.raises(ValueError, match=r"^x is nested too deeply"):
        parse_json(f'{{"a": {nested(depth, kind)}}}', "x")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"null", b'{"a": ' + b"9" * 5000 + b"}"], ids=repr
)
def test_error_for_invalid_object_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"x\.json (is not valid JSON|must contain a)") as error:
        read_json_object(tmp_path / "x.json", BadCheckpoint)
    assert "\n" not in str(error.value)


def test_folder_instead_of_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        read_json_object(tmp_path, BadCheckpoint)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    model = vitreous.create("ViT-Ti/16", num_classes=2, overrides={"depth": 1, "image_size": (32, 32)})
    for format in ("vitreous", "timm", "huggingface"):
        vitreous.save(model, folder / format, format)
    header = json.dumps({"weight_map": {"x": "model-00001-of-00001.safetensors"}})
    (folder / "shards").mkdir()
    (folder / "shards" / "model.safetensors.index.json").write_text(header)
    return folder


@pytest.mark.parametrize("depth", DEEP)
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("vitreous/config.json", "provenance"),
        ("vitreous/config.json", "format"),
        ("timm/config.json", "model_args"),
        ("timm/config.json", "label_names"),
        ("huggingface/config.json", "model_type"),
        ("huggingface/config.json", "id2label"),
        ("huggingface/preprocessor_config.json", "size"),
        ("shards/model.safetensors.index.json", "weight_map"),
    ],
)
def test_deep_nesting_in_any_folder_file_gives_a_one_line_error(folders: Path, file: str, key: str, depth: int) -> None:
    path = folders / file
    before = path.read_text()
    document: dict[str, Any] = json.loads(before)
    path.write_text(json.dumps(document | {key: "@"}).replace('"@"', nested(depth, "list")))
    try:
        for read in (vitreous.load, describe):
            with pytest.raises(BadCheckpoint, match=rf"{path.name} is nested too deeply") as error:
                read(path.parent)
            assert "\n" not in str(error.value)
    finally:
        path.write_text(before)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_nesting_in_safetensors_header_gives_a_one_line_error(tmp_path: Path, depth: int) -> None:
    header = ('{"x": ' + nested(depth, "list") + "}").encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(BadCheckpoint, match=r"x\.safetensors"):
        vitreous.load(tmp_path / "x.safetensors")


def test_info_on_a_deeply_nested_config_prints_one_line(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Deep nesting in the provenance must not cause a traceback."""
    document = json.loads((folders / "vitreous" / "config.json").read_text())
    document["provenance"]["x"] = "@"
    shutil.copytree(folders / "vitreous", tmp_path / "x")
    (tmp_path / "x" / "config.json").write_text(json.dumps(document).replace('"@"', nested(900, "list")))
    monkeypatch.setattr(sys, "argv", ["vitreous", "info", str(tmp_path / "x")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert "config.json is nested too deeply" in capsys.readouterr().err
