import dataclasses
import itertools

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.cost import _kept_for_backward, cost
from vitreous.model.options import NoPosition, PositionConfig, RelativeBias


def multiply_adds(config: ViTConfig) -> int:
    """Count the multiply-adds of all matrix products in equations 1 to 8."""
    n, t, d = config.num_tokens - config.num_prefix_tokens, config.num_tokens, config.width
    patches = n * config.channels * config.patch_size[0] * config.patch_size[1] * d
    attention = t * d * 3 * d + 2 * t * t * d + t * d * d
    mlp = 2 * t * d * config.mlp_width
    return patches + config.depth * (attention + mlp) + d * config.num_classes


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [ViTConfig(), ViTConfig(image_size=(64, 96), registers=3), ViTConfig(image_size=(32, 32), position=RelativeBias())],
    ids=["B/16", "registers", "bias"],
)
def test_flops_count_the_matrix_products(config: ViTConfig) -> None:
    assert cost(config).flops == 2 * multiply_adds(config)


def test_activation_bytes_equal_those_saved_for_backward(small: ViTConfig) -> None:
    assert cost(small).activation_bytes == _kept_for_backward(build(small), torch.randn(1, 3, 24, 32))
    by_depth = [cost(dataclasses.replace(small, depth=depth)).activation_bytes for depth in (1, 2, 3)]
    assert by_depth[2] - by_depth[1] == by_depth[1] - by_depth[0] > 0  # every layer saves the same amount


@pytest.mark.parametrize("position", [NoPosition(), RelativeBias()])
def test_inference_bytes_match_the_profiled_peak(small: ViTConfig, position: PositionConfig) -> None:
    config = dataclasses.replace(small, position=position, image_size=(96, 128))
    model = build(config).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # attention allocates a buffer per thread
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        model(torch.empty(1, config.channels, *config.image_size))
    torch.set_num_threads(threads)
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    peak = max(itertools.accumulate(event.nbytes() for event in events))
    assert cost(config).inference_bytes == pytest.approx(peak, rel=0.3)  # operators allocate their own buffers
