"""Predictors replay CUDA graphs for small batches of repeated shapes, with the results of ordinary calls."""

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous
from vitreous.inference.cuda_graphs import LARGEST, RECORDED_CALL, CudaGraphs

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_function_is_called_directly_on_a_cpu() -> None:
    graphs = CudaGraphs(lambda images: 2 * images)
    for _ in range(RECORDED_CALL + 1):
        assert torch.equal(graphs(torch.ones(3, 2)), torch.full((3, 2), 2.0))
    assert not graphs.graphs


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_predictions_equal_direct_ones(precision: str) -> None:
    model = vitreous.create("ViT-Ti/16", num_classes=5, image_size=64).cuda()
    predictor = vitreous.Predictor(model, device="cuda", precision=precision)
    images = np.random.default_rng(0).integers(0, 256, (7, 64, 64, 3), dtype=np.uint8)
    for count in (1, 3, 4, 7):
        direct = predictor.logits(images[:count])
        for _ in range(RECORDED_CALL + 1):
            torch.testing.assert_close(predictor.logits(images[:count]), direct, atol=2e-2, rtol=2e-2)
    [graphs] = predictor.functions.values()
    assert isinstance(graphs, CudaGraphs)
    assert sorted(shape[0] for shape in graphs.graphs) == [1, 4, 8]
    with torch.no_grad():
        model.head.bias += 1  # the weights are shared if the dtype is the same
    changed = predictor.logits(images) - direct
    assert changed.mean().item() == pytest.approx(1 if precision == "fp32" else 0, abs=0.05)


@needs_gpu
def test_large_batches_and_failing_recordings_use_the_function() -> None:
    waiting = CudaGraphs(lambda images: images * images.sum().item())  # cannot be recorded
    for _ in range(RECORDED_CALL + 1):
        assert torch.equal(waiting(torch.ones(2, 1, device="cuda")), torch.full((2, 1), 2.0, device="cuda"))
    large = CudaGraphs(lambda images: images + 1)
    for _ in range(RECORDED_CALL + 1):
        large(torch.zeros(LARGEST + 1, 1, device="cuda"))
    assert not large.graphs


@needs_gpu
def test_results_are_not_overwritten_by_the_next_call() -> None:
    graphs = CudaGraphs(lambda images: (images + 1, images + 2))
    kept: list[tuple[Tensor, Tensor]] = [graphs(torch.full((2, 1), float(i), device="cuda")) for i in range(6)]
    assert [(int(a[0]), int(b[1])) for a, b in kept] == [(i + 1, i + 2) for i in range(6)]
