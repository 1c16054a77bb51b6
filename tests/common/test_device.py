import pytest
import torch
from torch import nn

from vitreous.common import device
from vitreous.common.checks import BadValue
from vitreous.common.device import choose_device, choose_dtype, free_memory, placed
from vitreous.model.build import build
from vitreous.model.config import ViTConfig

CPU = torch.device("cpu")


def test_auto_chooses_the_best_available_device() -> None:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto").type == choose_device(None, CPU).type == best
    assert choose_device("cpu") == choose_device(CPU) == CPU


def test_a_model_on_an_accelerator_stays_there() -> None:
    assert choose_device(None, torch.device("meta")) == torch.device("meta")
    assert choose_device("cpu", torch.device("meta")) == CPU


def test_an_unavailable_device_is_named_in_the_error() -> None:
    with pytest.raises(BadValue, match="device 'cuda:99' is not available") as error:
        choose_device("cuda:99")
    assert "\n" not in str(error.value)
    with pytest.raises(BadValue, match="auto, cpu, cuda, mps"):
        choose_device("gpu")


def test_dtype_follows_the_precision() -> None:
    assert choose_dtype("bf16", CPU) == torch.bfloat16
    assert choose_dtype("fp32", CPU) == choose_dtype("auto", CPU) == torch.float32


def test_a_model_already_on_the_device_is_not_copied(small: ViTConfig) -> None:
    model = build(small)
    assert placed(model, CPU, torch.float32) is model


def test_another_dtype_makes_a_copy(small: ViTConfig) -> None:
    model = build(small)
    model.stem.register_buffer("counter", torch.arange(3))
    copied = placed(model, CPU, torch.bfloat16)
    assert copied.config is not None
    assert copied.config == model.config
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in model.parameters())
    for (name, ours), theirs in zip(copied.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16()), name
        assert isinstance(ours, nn.Parameter)
        assert not ours.requires_grad
    assert copied.stem.counter.dtype == torch.long
    assert copied.encoder is not model.encoder


def test_free_memory_is_estimated_where_the_system_does_not_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.setattr(device, "MEMINFO", "/nonexistent")
    monkeypatch.delattr("os.sysconf")
    monkeypatch.delattr("os.sysconf_names")
    monkeypatch.setattr(device, "LIMITS", ())
    assert free_memory("cpu") > 0
