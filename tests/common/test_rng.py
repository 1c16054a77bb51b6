import pytest
import torch

from vitreous.common.rng import SampleRng


def test_image_has_the_same_random_numbers_in_any_batch() -> None:
    indices = torch.randperm(1000)
    whole = SampleRng(5, 2, indices)
    for start in (0, 137, 999):
        part = SampleRng(5, 2, indices[start : start + 100])
        assert torch.equal(part.uniform("crop", 4), whole.uniform("crop", 4)[start : start + 100])


@pytest.mark.parametrize("change", [{"seed": 6}, {"epoch": 3}, {"indices": torch.arange(1000, 2000)}])
def test_other_seed_epoch_or_index_gives_independent_numbers(change: dict) -> None:  # type: ignore[type-arg]
    one = {"seed": 5, "epoch": 2, "indices": torch.arange(1000)}
    a, b = SampleRng(**one).uniform("flip"), SampleRng(**(one | change)).uniform("flip")
    assert torch.corrcoef(torch.stack([a, b]))[0, 1].abs() < 0.1
    assert (a != b).all()


def test_purposes_give_independent_numbers() -> None:
    rng = SampleRng(0, 0, torch.arange(10_000))
    numbers = torch.stack([rng.uniform("flip"), rng.uniform("crop"), *rng.uniform("crop", 3).unbind(1)])
    correlation = torch.corrcoef(numbers) - torch.eye(5)
    assert correlation.abs().max() < 0.05


def test_numbers_are_uniform() -> None:
    rng = SampleRng(1, 1, torch.arange(100_000))
    uniform = rng.uniform("u")
    assert uniform.min() >= 0
    assert uniform.max() < 1
    counts = torch.histc(uniform, 50, 0, 1)
    chi2 = ((counts - 2000) ** 2 / 2000).sum()
    assert chi2 < 90  # 49 degrees of freedom; exceeded with probability 0.0003
