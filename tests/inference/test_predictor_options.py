"""Options of a Predictor: flip, precision, compile, labels."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from predictors import RANDOM, probabilities, random_model
from vitreous.inference import Predictor
from vitreous.model.build import build
from vitreous.model.options import Dropout, Preprocessing


def test_flip_averages_with_the_mirror_image() -> None:
    how = Preprocessing(crop_fraction=1.0)
    config = dataclasses.replace(RANDOM["class token"], preprocessing=how)
    model = build(config)
    model.load_state_dict(random_model("class token").state_dict())
    size = (5, 24, 32, 3)  # the model's: nothing is resized
    images = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    mirrored = images[:, :, ::-1]
    plain, flipped = Predictor(model, top=7), Predictor(model, top=7, flip=True)
    mean = (probabilities(plain(images)) + probabilities(plain(mirrored))) / 2
    assert np.abs(mean - probabilities(plain(images))).max() > 0.01
    np.testing.assert_allclose(probabilities(flipped(images)), mean, atol=1e-6)
    np.testing.assert_allclose(flipped.logits(images).softmax(-1), mean, atol=1e-6)
    torch.testing.assert_close(flipped.embed(images), (plain.embed(images) + plain.embed(mirrored)) / 2)


def test_bfloat16_is_close_and_does_not_change_the_callers_model(photos: list[Path]) -> None:
    for name in ("bit", "attention pool"):
        model = random_model(name).train()
        rough, exact = Predictor(model, precision="bf16"), Predictor(model)
        assert rough.embed(photos).dtype == torch.float32
        error = (rough.embed(photos) - exact.embed(photos)).norm() / exact.embed(photos).norm()
        assert 0 < error < 0.05
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        stored = random_model(name).bfloat16()
        assert Predictor(stored).dtype == torch.float32
        assert len(Predictor(stored)(photos)) == len(photos)
        assert {parameter.dtype for parameter in stored.parameters()} == {torch.bfloat16}


def test_every_run_sets_evaluation_mode(photos: list[Path]) -> None:
    config = dataclasses.replace(RANDOM["class token"], patch_dropout=0.5, dropout=Dropout(embedding=0.5))
    predictor = Predictor(model := build(config), device="cpu")
    before = predictor.logits(photos)
    for part in (model, model.embedding_dropout):
        part.train()  # as a training loop does between two evaluations
        assert torch.equal(predictor.logits(photos), before)
    assert predictor.model is model


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_compiled_batches_have_one_size(photos: list[Path]) -> None:
    model = random_model("class token")
    sizes = set()
    model.register_forward_pre_hook(lambda _, arguments: sizes.add(len(arguments[0])))
    with torch.compiler.set_stance("force_eager"):  # as compiled, without waiting for a compiler
        compiled = Predictor(model, compile=True, batch_size=4, device="cpu")
        torch.testing.assert_close(
            compiled.logits(photos), Predictor(model, device="cpu").logits(photos), atol=1e-5, rtol=1e-5
        )
    assert sizes == {4, 7}


def test_classes_without_labels_are_numbered() -> None:
    [answer] = Predictor(random_model("class token"), top=2)(np.zeros((9, 9, 3), np.uint8))
    assert [label.label for label in answer.predictions] == [f"class {label.index}" for label in answer.predictions]
    assert len(answer.predictions) == 2
