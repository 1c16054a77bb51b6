"""Two images in one model: similarity of their patches, and their joint principal components."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from inspect_requests import array, as_given, get, sample_image, send
from live_server import Live
from vitreous.explanation.attention_and_logit_lens import capture


@torch.no_grad()
@pytest.mark.parametrize("id", ["class-token", "registers", "average"])
def test_matches_are_cosines_of_patches(live: Live, models: dict[str, Any], id: str) -> None:
    other = send(live, id, sample_image(seed=7))
    found = array(get(live, id, f"matches/{other}?layer=0"))
    images = [as_given(models[id], sample_image(seed=seed)) for seed in (0, 7)]
    first, second = (normalize(capture(models[id], image).features(0).patches[0], dim=-1) for image in images)
    np.testing.assert_allclose(found / 127.5 - 1, first @ second.T, rtol=0, atol=0.51 / 127.5)
    same = array(get(live, id, f"matches/{send(live, id)}"))
    assert (np.diag(same) == 255).all()


def test_an_image_beside_itself_has_the_same_colours(live: Live) -> None:
    found = get(live, "class-token", f"joint_pca/{send(live, 'class-token')}").json
    assert found["first"] == pytest.approx(found["second"], abs=1e-5)
    assert len(found["first"]) == 3 * found["grid"][0] * found["grid"][1]
    assert get(live, "class-token", f"matches/{'0' * 32}").json["error"]["code"] == "unknown_image"
