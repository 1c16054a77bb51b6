"""All systems compute the same function with the same weights, and the record has everything that is shown."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optional_imports import import_timm, import_torchvision, import_transformers, import_vit_pytorch
from vitreous.benchmarking import comparison_output, systems
from vitreous.benchmarking.comparison import Result, compare_systems
from vitreous.benchmarking.timing import Skip
from vitreous.model.fp8_linear import Fp8Linear
from vitreous.model.presets import configure
from vitreous.model.protocol import Model
from vitreous.report.plots import can_draw

Record = dict[str, Any]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Record]:
    """Measure small models, without compiling them."""
    monkeypatch.setattr(systems, "CPU_PRODUCT", 64)
    monkeypatch.setattr(systems, "LONG_JOB", 1)  # no conversion

    def run(*models: str, **options: Any) -> Record:
        chosen = {
            "image_size": [8],
            "batch_size": 2,
            "rounds": 2,
            "report": lambda line: None,
        } | options
        return compare_systems(models or ["ViT-Lite-6/4"], device="cpu", eager=True, **chosen)

    return run


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use copies of our models instead of those of other libraries."""
    monkeypatch.setattr(systems.Peer, "installed", True)
    monkeypatch.setattr(systems, "_peer_model", lambda peer, model: copy.deepcopy(model))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "size", "libraries"),
    [
        ("ViT-Lite-6/4", 32, {"timm", "transformers", "torchvision", "vit-pytorch"}),
        ("DINOv2-S/14", 28, {"timm", "transformers"}),
        ("Swin-Ti/2", 32, {"timm", "transformers", "torchvision"}),
    ],
)
def test_libraries_agree_with_float64(
    measure: Callable[..., Record], model: str, size: int, libraries: set[str]
) -> None:
    for needed in (import_timm, import_torchvision, import_transformers, import_vit_pytorch):
        needed()
    record = measure(model, image_size=[size], batch_size=1, rounds=1, workloads=["train", "latency"])
    found = {(row["workload"], row["system"]): row["difference"] for row in record["results"]}
    assert found.keys() == {(word, name) for word in ("train", "latency") for name in {systems.OURS, *libraries}}
    assert max(found.values()) < 1e-4
    assert len(record["notes"]) == 4 - len(libraries)


def test_record(measure: Callable[..., Record], copies: None, tmp_path: Path) -> None:
    finished: list[int] = []
    record = measure(against=["timm"], finished=lambda record: finished.append(len(record["results"])))
    assert finished == [2, 4, 6]
    comparison_output.write_json(record, tmp_path / "new" / "bench.json")
    assert json.loads((tmp_path / "new" / "bench.json").read_text()) == json.loads(json.dumps(record))
    for row in record["results"]:
        assert row.keys() == Result.__dataclass_fields__.keys()
        assert not row["error"]
        assert len(row["times"]) == 2
        assert row["fastest"] <= row["seconds"] <= row["slowest"]
        assert row["images_per_second"] == pytest.approx(row["batch_size"] / row["seconds"])
        assert row["mfu"] > 0
    assert [row["speed"] for row in record["results"] if row["system"] == "timm"] == [1, 1, 1]
    assert [(row["workload"], row["batch_size"]) for row in record["results"][::2]] == [
        ("train", 2),
        ("inference", 2),
        ("latency", 1),
    ]
    assert set(record["machine"]["versions"]) == {"torch", "timm"}

    shown = list(comparison_output.tables(record))
    assert [table.row_count for table in shown] == [2, 2, 2]
    lines = comparison_output.markdown_table([record], ["Model", "Workload", "Precision", "Batch"]).splitlines()
    assert lines[0] == "| Model | Workload | Precision | Batch | vitreous | timm |"
    assert len(lines) == 2 + 3
    assert all("1.00 (eager)" in line for line in lines[2:])
    if can_draw():
        comparison_output.draw(record, tmp_path / "bench.png")
        assert (tmp_path / "bench.png").stat().st_size > 1000


def test_another_function_is_an_error(
    measure: Callable[..., Record], copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(nn.Module):
        def __init__(self, model: nn.Module):
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            return 1.5 * self.model(images)

    def build(peer: systems.Peer, model: Model) -> nn.Module:
        return Other(copy.deepcopy(model)) if peer.package == "timm" else copy.deepcopy(model)

    monkeypatch.setattr(systems, "_peer_model", build)
    record = measure(against=["timm", "transformers"], workloads=["latency"])
    errors = {row["system"]: row["error"] for row in record["results"]}
    assert "differ from float64 by 0.5" in errors.pop("timm")
    assert set(errors.values()) == {""}
    assert [row["seconds"] is None for row in record["results"]] == [False, True, False]
    for table in comparison_output.tables(record):
        assert table.row_count == 3


def test_missing_libraries_and_models_are_noted(
    measure: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(systems.PEERS, "timm", systems.Peer("no_such_package", "timm"))
    monkeypatch.setattr(systems.Peer, "installed", property(lambda self: self.package != "no_such_package"))
    record = measure("Swin-Ti/2", against=["timm", "vit-pytorch"], workloads=["latency"], image_size=[28])
    assert [row["system"] for row in record["results"]] == [systems.OURS]
    first, second = record["notes"]
    assert "pip install timm" in first
    assert "vit-pytorch" in second
    assert record["results"][0]["speed"] is None


def test_time_limit_covers_all_workloads(measure: Callable[..., Record], copies: None) -> None:
    now = iter(range(0, 10**6, 50))  # every look at the clock takes 50 s
    record = measure(against=["timm"], seconds=100, clock=lambda: next(now))
    assert [row["error"] for row in record["results"] if row["system"] == "timm"] == ["skipped: time limit"] * 3


def test_every_weight_matters_in_the_comparison() -> None:
    """Layers that start at zero would hide wrong weights."""
    reference = systems.Models(systems.comparable(configure("ViT-Lite-6/4"))).reference(systems.OURS)
    assert all(weight.std() > 0.01 for weight in reference.parameters() if weight.numel() > 10)


def test_libraries_run_in_all_settings() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")

    def names(system: str, workload: systems.Workload, device: torch.device) -> list[str]:
        return [setting.name for setting in systems.settings_of(system, workload, device)]

    assert names("timm", "train", gpu) == names("timm", "latency", gpu) == ["eager", "compiled", "CUDA graphs"]
    assert names("timm", "inference", cpu) == ["eager", "compiled"]
    assert names(systems.OURS, "train", gpu) == [
        "eager",
        "default",
        "compiled",
    ]  # graphs need the memory of eager steps
    assert names(systems.OURS, "train", cpu) == names(systems.OURS, "latency", cpu) == ["default", "compiled"]
    assert names(systems.OURS, "latency", gpu) == ["default", "fp8", "compiled"]


@pytest.mark.parametrize("count", [1, 40])
def test_fp8_is_measured_after_the_scales_are_known(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.inference.engine.check_fp8", lambda *_: None)  # it needs a GPU
    model = systems.Models(configure("ViT-Lite-6/4")).copy_of(systems.OURS).eval()
    images, labels = torch.randn(count, 3, 32, 32), torch.zeros(count, dtype=torch.long)
    case = systems.Case("latency", torch.device("cpu"), torch.bfloat16, images, labels)
    run = systems.FP8.apply(model, case)
    predictor: Any = run.__self__  # type: ignore[attr-defined]
    assert any(isinstance(layer, Fp8Linear) for layer in predictor.network.modules())


@pytest.mark.parametrize(
    ("free", "needed", "largest", "reason"),
    [(100, 30, 60, None), (80, 30, 60, "the other systems"), (100, 50, 50, "more than 40%")],
)
def test_graphs_leave_memory_for_other_systems(
    monkeypatch: pytest.MonkeyPatch, free: int, needed: int, largest: int, reason: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100))
    if reason is None:
        systems._check_room(needed, largest)
    else:
        with pytest.raises(Skip, match=reason):
            systems._check_room(needed, largest)
