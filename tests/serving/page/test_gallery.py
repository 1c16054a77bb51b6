"""Nearest images and patches of a gallery."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

from images import encoded, smooth
from inspect_requests import as_given, get, sample_image
from live_server import Live, in_thread
from vitreous.common.checks import BadValue
from vitreous.page import gallery
from vitreous.page.gallery import build_gallery
from vitreous.serving.models import add_gallery, serve_model


@torch.no_grad()
def test_neighbours_have_the_largest_cosines(models: dict[str, Any], tmp_path: Path) -> None:
    files = {f"{seed}.png": encoded(smooth(60, 90, seed)) for seed in range(6)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "broken.png").write_bytes(b"not an image")
    names = ("class-token", "bare", "bit", "swin")  # a classifier, an encoder, a ResNet, a model that merges patches
    served = add_gallery([serve_model(models[id], id, id, "cpu") for id in names], tmp_path)
    with in_thread(served) as live:
        assert [one["gallery"] for one in live.request("GET", "/v1/model").json["models"]] == [6, 6, 6, 6]
        for id in names:
            model = models[id]
            features = {name: model.features(as_given(model, data)) for name, data in files.items()}
            pooled = {name: model.pool_features(found)[0] for name, found in features.items()}
            cosines = {name: float(cosine_similarity(pooled["2.png"], one, dim=0)) for name, one in pooled.items()}
            found = get(live, id, "neighbours?count=4", files["2.png"]).json["images"]
            assert found[0]["name"] == "2.png"
            expected = sorted(cosines.values(), reverse=True)[:4]
            assert [one["similarity"] for one in found] == pytest.approx(expected, abs=1e-4)
            assert [cosines[one["name"]] for one in found] == pytest.approx(expected, abs=1e-4)
        # Patches of the map, and where they are in the output: Swin has 9 x 13 patches, merged to 5 x 7.
        for id, patch, place in (("bare", 7, 7), ("bit", 5, 5), ("swin", 3 * 13 + 9, 1 * 7 + 4), ("swin", 116, 34)):
            features = {name: models[id].features(as_given(models[id], data)) for name, data in files.items()}
            query, columns = features["3.png"].patches[0, place], features["3.png"].grid[1]
            for one in get(live, id, f"neighbours?patch={patch}", files["3.png"]).json["images"]:
                similarity = cosine_similarity(query[None], features[one["name"]].patches[0], dim=-1)
                assert one["similarity"] == pytest.approx(float(similarity.max()), abs=2e-3)
                found = float(similarity[one["row"] * columns + one["column"]])
                assert found == pytest.approx(one["similarity"], abs=4e-3)
        assert get(live, "bare", "neighbours?patch=12").status == 422
        assert get(live, "swin", "neighbours?patch=117").status == 422


def test_patches_that_take_too_much_memory_are_not_kept(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        (tmp_path / f"{seed}.png").write_bytes(encoded(smooth(60, 90, seed)))
    steps: list[None] = []
    query = torch.ones(models["bare"].config.width)
    small = build_gallery(tmp_path, models["bare"])
    assert small.patches is not None
    assert len(small.nearest_patches(query, 2, lambda: steps.append(None))) == 2
    assert steps  # shorter requests can run in between
    monkeypatch.setattr(gallery, "MAX_PATCH_BYTES", small.patches.nbytes - 1)
    large = build_gallery(tmp_path, models["bare"])
    assert large.patches is None
    assert large.names == small.names
    with pytest.raises(BadValue, match="too many patches"):
        large.nearest_patches(query, 2)


def test_a_server_without_a_gallery_says_so(live: Live, tmp_path: Path, models: dict[str, Any]) -> None:
    reply = get(live, "bare", "neighbours", sample_image())
    assert (reply.status, reply.json["error"]["code"]) == (404, "no_gallery")
    with pytest.raises((BadValue, ValueError), match="image"):
        build_gallery(tmp_path, models["bare"])


@pytest.mark.parametrize("folder", ["-", "*", "0.png"])
def test_the_gallery_must_be_a_folder(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "0.png").write_bytes(sample_image())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadValue, match="folder"):
        build_gallery(Path(folder), models["bare"])
    if folder == "-":
        Path(folder).mkdir()
        (Path(folder) / "0.png").write_bytes(sample_image())
        assert build_gallery(Path(folder), models["bare"]).names == ("0.png",)
