import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from vitreous.common.checks import BadValue
from vitreous.common.codec import from_dict, to_dict
from vitreous.model.build import build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.options import DecoderConfig, LinearDecoder, MaskDecoder
from vitreous.model.segmenter import Segmenter, slide

DECODERS = [LinearDecoder(), MaskDecoder(1), MaskDecoder(3)]


def segmenter(small: ViTConfig, decoder: DecoderConfig, classes: int = 3) -> Segmenter:
    encoder = dataclasses.replace(small, num_classes=0)
    model = build_segmenter(SegmenterConfig(encoder, decoder, classes)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
@pytest.mark.parametrize("size", [(24, 32), (8, 8), (25, 39), (7, 50)], ids=str)
def test_output_has_the_image_size(decoder: DecoderConfig, size: tuple[int, int], small: ViTConfig) -> None:
    images = torch.randn(2, 3, *size)
    assert segmenter(small, decoder)(images).shape == (2, 3, *size)


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_images_are_zero_padded_and_scores_cropped(decoder: DecoderConfig, small: ViTConfig) -> None:
    model, images = segmenter(small, decoder), torch.randn(1, 3, 21, 30)
    whole = F.pad(images, (0, 2, 0, 3))  # to multiples of 8
    torch.testing.assert_close(model(images), model(whole)[:, :, :21, :30])


def test_linear_decoder_is_a_linear_layer_and_a_bilinear_resize(small: ViTConfig) -> None:
    model, images = segmenter(small, LinearDecoder()), torch.randn(1, 3, 24, 32)
    features = model.encoder.features(images)
    scores = torch.einsum("bnd,kd->bkn", features.patches, model.decoder.weight) + model.decoder.bias[:, None]
    expected = F.interpolate(scores.reshape(1, 3, 3, 4), (24, 32), mode="bilinear")
    torch.testing.assert_close(model(images), expected)


def test_mask_decoder_is_equivariant_to_patch_order(small: ViTConfig) -> None:
    """The decoder has no positions, so permuting the patches permutes their scores."""
    decoder, order = segmenter(small, MaskDecoder(2)).decoder, torch.randperm(12)
    patches = torch.randn(2, 12, small.width)
    torch.testing.assert_close(decoder(patches)[:, order], decoder(patches[:, order]), atol=1e-4, rtol=0)


def test_mask_scores_are_normalised_over_classes(small: ViTConfig) -> None:
    model = segmenter(small, MaskDecoder(1), classes=5)
    torch.nn.init.ones_(model.decoder.mask_norm.weight)
    torch.nn.init.zeros_(model.decoder.mask_norm.bias)
    model.decoder.mask_norm.eps = 1e-12  # the default eps would matter for nearly equal cosines
    scores = model.decoder(torch.randn(2, 12, small.width))
    torch.testing.assert_close(scores.mean(-1), torch.zeros(2, 12), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.square().mean(-1), torch.ones(2, 12), atol=1e-4, rtol=0)


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_sliding_equals_one_window_if_the_image_fits(decoder: DecoderConfig, small: ViTConfig) -> None:
    model = segmenter(small, decoder)
    for size in [(24, 32), (20, 30)]:
        images = torch.randn(2, 3, *size)
        torch.testing.assert_close(slide(model, images), model(images))


def test_sliding_averages_overlapping_windows(small: ViTConfig) -> None:
    """Each pixel is averaged over the windows that contain it."""
    model, images = segmenter(small, LinearDecoder()), torch.randn(1, 3, 31, 50)
    total, seen = torch.zeros(1, 3, 31, 50), torch.zeros(31, 50)
    for top in (0, 7):  # 31 - 24
        for left in (0, 16, 18):  # a step of 32 / 2, and 50 - 32
            total[:, :, top : top + 24, left : left + 32] += model(images[:, :, top : top + 24, left : left + 32])
            seen[top : top + 24, left : left + 32] += 1
    torch.testing.assert_close(slide(model, images), total / seen)


def test_config_round_trips_through_json(small: ViTConfig) -> None:
    config = SegmenterConfig(dataclasses.replace(small, num_classes=0), MaskDecoder(2), 2, ("pet", "background"))
    assert from_dict(SegmenterConfig, to_dict(config)) == config


def test_encoder_with_a_head_is_rejected(small: ViTConfig) -> None:
    with pytest.raises(BadValue, match=r"encoder.num_classes is \d+, but must be 0"):
        SegmenterConfig(small)


def test_resized_equals_the_model_at_that_size(small: ViTConfig) -> None:
    model, images = segmenter(small, MaskDecoder(1)), torch.randn(1, 3, 40, 48)
    torch.testing.assert_close(model.resized((40, 48))(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("look", [Segmenter.__call__, slide])
def test_invalid_images_are_rejected(look: Callable[[Segmenter, torch.Tensor], torch.Tensor], small: ViTConfig) -> None:
    model = segmenter(small, LinearDecoder())
    with pytest.raises(ValueError, match=r"images must have shape \[batch, channels.*got \(3, 98, 98\)"):
        look(model, torch.zeros(3, 98, 98))
    with pytest.raises(ValueError, match=r"images must have \d+ channels, got 4"):
        look(model, torch.zeros(1, 4, 25, 30))
