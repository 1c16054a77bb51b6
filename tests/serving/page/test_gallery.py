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
from vitreous.page.gallery import build_gallery
from vitreous.serving.models import add_gallery, serve_model


@torch.no_grad()
def test_neighbours_have_the_largest_cosines(models: dict[str, Any], tmp_path: Path) -> None:
    files = {f"{seed}.png": encoded(smooth(60, 90, seed)) for seed in range(6)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "broken.png").write_bytes(b"not an image")
    names = ("class-token", "bare", "bit")  # a classifier, an encoder, a ResNet
    served = add_gallery([serve_model(models[id], id, id, "cpu") for id in names], tmp_path)
    with in_thread(served) as live:
        assert [one["gallery"] for one in live.request("GET", "/v1/model").json["models"]] == [6, 6, 6]
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
        bare = models["bare"]
        patches = {name: bare.features(as_given(bare, data)).patches[0] for name, data in files.items()}
        for one in get(live, "bare", "neighbours?patch=7", files["3.png"]).json["images"]:
            similarity = cosine_similarity(patches["3.png"][7][None], patches[one["name"]], dim=-1)
            assert one["similarity"] == pytest.approx(float(similarity.max()), abs=2e-3)
            assert float(similarity[one["row"] * 4 + one["column"]]) == pytest.approx(one["similarity"], abs=4e-3)
        assert get(live, "bare", "neighbours?patch=12").status == 422


def test_a_server_without_a_gallery_says_so(live: Live, tmp_path: Path, models: dict[str, Any]) -> None:
    reply = get(live, "bare", "neighbours", sample_image())
    assert (reply.status, reply.json["error"]["code"]) == (404, "no_gallery")
    with pytest.raises((BadValue, ValueError), match="image"):
        build_gallery(tmp_path, models["bare"])
