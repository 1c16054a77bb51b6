"""The resize by matrices returns the same pixels as torch's antialiased resize of uint8 images."""

import random

import numpy as np
import pytest
import torch

from vitreous.data.image import fit
from vitreous.data.image.decoding import Interpolation, resize
from vitreous.exporting.preprocess import Preprocess
from vitreous.exporting.resample import resize_columns, resize_rows, resize_weights
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_every_pixel_equals_torch(interpolation: Interpolation) -> None:
    draw = random.Random(0)
    sides = [1, 2, 3, 17, 160, 224, 333, 1000]
    for _ in range(40):
        (h, w), (rows, columns) = draw.choices(sides, k=2), draw.choices(sides[:-1], k=2)
        image = torch.randint(0, 256, (3, h, w), dtype=torch.uint8)
        before, after = (torch.tensor(h), torch.tensor(w)), (torch.tensor(rows), torch.tensor(columns))
        down, across = resize_weights(before, after, interpolation)
        found = resize_rows(resize_columns(image[None].float(), across), down)[0]
        assert torch.equal(found.to(torch.uint8), resize(image, (rows, columns), interpolation)), (h, w, rows, columns)


IMAGES = [(1, 1), (20, 31), (500, 375), (333, 500), (64, 2000), (1500, 30), (225, 224)]


@pytest.mark.parametrize("how", ["crop", "squash", "squash-crop", "pad"])
@pytest.mark.parametrize("geometry", ["torchvision", "timm", "huggingface"])
def test_preprocessing_equals_that_of_the_predictor(how: str, geometry: str) -> None:
    numbers = np.random.default_rng(0)
    preprocessing = Preprocessing((0.48, 0.45, 0.4), (0.2, 0.3, 0.25), how, 0.9, geometry=geometry)  # type: ignore[arg-type]
    module = Preprocess(preprocessing, 3)
    for height, width in IMAGES:
        image = numbers.integers(0, 256, (height, width, 3), dtype=np.uint8)
        for size in [(32, 32), (48, 80)]:
            found = module(torch.from_numpy(image)[None], torch.tensor(size))
            expected = normalise(fit(image, size, preprocessing)[None].float() / 255, preprocessing)
            assert torch.allclose(found, expected, atol=1e-6), (height, width, size)
