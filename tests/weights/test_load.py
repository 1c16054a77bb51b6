"""Checkpoints are described without reading their tensors, and read once to build a model."""

import zipfile
from pathlib import Path

import pytest
import torch

import vitreous
from foreign_models import written
from vitreous.weights import load
from vitreous.weights.formats import detect_format
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.load import open_checkpoint

CASES = ["vitreous", "timm", "timm, a pickle", "google", "paddle"]


@pytest.mark.parametrize("case", CASES)
def test_file_is_read_once_for_config_and_model(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads, read_file = written(case, tmp_path), [], load.read_file
    monkeypatch.setattr(load, "read_file", lambda file, lazy: reads.append(lazy) or read_file(file, lazy))
    probes, identify = [], load.identify
    monkeypatch.setattr(load, "identify", lambda *given: probes.append(given) or identify(*given))
    source = open_checkpoint(path)
    assert source.describe().config == source.model().config
    assert reads == ([] if case == "vitreous" else [True, False])
    assert len(probes) == (case != "vitreous")


def test_model_under_a_prefix_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = load.find_tensors(written("timm, a pickle", tmp_path)).tensors
    lightning = {f"net.vit.{name}": tensor for name, tensor in tensors.items()} | {"loss.scale": torch.zeros(1)}
    torch.save({"state_dict": lightning}, tmp_path / "last.ckpt")
    searches, search = [], detect_format._search_prefixes
    monkeypatch.setattr(detect_format, "_search_prefixes", lambda state: searches.append(state) or search(state))
    source = open_checkpoint(tmp_path / "last.ckpt")
    description = source.describe()
    assert description.provenance["left_out"] == ["loss.scale"]
    assert source.model().provenance == description.provenance
    assert len(searches) == 1


def test_describe_does_not_read_npz_data(tmp_path: Path) -> None:
    path = written("google", tmp_path)
    expected = vitreous.load(path).config
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    data = bytearray(path.read_bytes())
    data[largest.header_offset + largest.file_size] ^= 1  # in the array, after the zip and npy headers
    path.write_bytes(data)
    assert open_checkpoint(path).describe().config == expected
    with pytest.raises(BadCheckpoint, match="damaged"):
        vitreous.load(path)


def test_describe_does_not_copy_paddle_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written("paddle", tmp_path)
    expected = vitreous.load(path).config
    monkeypatch.setattr("vitreous.weights.io.pickle.read._copy", lambda data: pytest.fail("data was copied"))
    assert open_checkpoint(path).describe().config == expected


@pytest.mark.parametrize("case", CASES)
def test_describe_converts_no_tensor(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(case, tmp_path)
    expected = vitreous.load(path)

    def fail(*_: object) -> None:
        raise AssertionError("a tensor is converted")

    monkeypatch.setattr(load, "read_table", fail)
    monkeypatch.setattr("vitreous.weights.native.read_tensors", fail)
    description = open_checkpoint(path).describe()
    assert description.config == expected.config
    assert description.provenance == expected.provenance


@pytest.mark.parametrize("case", CASES)
def test_models_from_one_source_share_no_memory(case: str, tmp_path: Path) -> None:
    source = open_checkpoint(written(case, tmp_path))
    first = source.model()
    with torch.no_grad():
        first.head.weight.fill_(7)
    second = source.model(num_classes=None)
    assert (first.head.weight == 7).all()
    assert not (second.head.weight == 7).any()
