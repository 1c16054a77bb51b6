"""`vitreous.calibrate`, and the calibration error in `vitreous.evaluate`."""

import pytest
import torch

import vitreous
from vitreous.model.protocol import Model

TINY = {"depth": 1, "patch_size": 4, "width": 32, "mlp_width": 32, "num_heads": 2}


def overconfident() -> Model:
    """Return a classifier of digits that is almost certain and almost always wrong."""
    model = vitreous.create("ViT-Lite-6/4", num_classes=10, image_size=8, overrides=TINY)
    torch.nn.init.normal_(model.heads[0].weight, std=3)  # type: ignore[arg-type]
    return model


def test_calibration_reduces_the_error_and_keeps_the_accuracy() -> None:
    model = overconfident()
    found = vitreous.calibrate(model, "digits", device="cpu")
    assert model.config.calibration is None
    assert found.calibration.temperature > 2
    assert found.ece_calibrated < 0.5 * found.ece
    before, after = (vitreous.evaluate(one, "digits", device="cpu") for one in (model, found.model))
    assert isinstance(before, vitreous.ClassificationMetrics)
    assert isinstance(after, vitreous.ClassificationMetrics)
    assert (after.top1, after.loss, after.ece) == (before.top1, before.loss, before.ece)
    assert (before.ece_calibrated, after.ece_calibrated) == (None, found.ece_calibrated)


def test_only_the_split_of_the_calibration_is_cross_fitted() -> None:
    model = vitreous.calibrate(overconfident(), "digits", device="cpu").model
    val, train = (vitreous.evaluate(model, "digits", split=split, device="cpu") for split in ("val", "train"))
    assert isinstance(val, vitreous.ClassificationMetrics)
    assert isinstance(train, vitreous.ClassificationMetrics)
    assert (val.evaluation.cross_fitted, train.evaluation.cross_fitted) == (True, False)
    assert train.ece_calibrated is not None
    assert train.ece_calibrated < train.ece


def test_a_model_without_classes_is_rejected() -> None:
    model = vitreous.create("ViT-Lite-6/4", num_classes=0, image_size=8, overrides=TINY)
    with pytest.raises(ValueError, match="classifier"):
        vitreous.calibrate(model, "digits", device="cpu")
