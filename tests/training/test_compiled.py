"""Compilation of training steps, with CUDA graphs if no result outlives a step, and of evaluations if they are many."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch._dynamo.testing import CompileCounter

from train_runs import finish, skip_report, tiny
from vitreous.common.distributed import World
from vitreous.data.open import open_data
from vitreous.model.block import StochasticDepth
from vitreous.model.build import build
from vitreous.model.presets import configure
from vitreous.tasks.classify import Classify
from vitreous.training import Augment, Masking, TrainConfig, compiling, defaults, setup
from vitreous.training.compiling import WARM_UP
from vitreous.training.optimizer_step import Stepper, add_lora
from vitreous.training.run import train
from vitreous.training.run_folder import read_config
from vitreous.training.setup import Job

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ONE = TrainConfig(data="digits", compile=True)


class Counted(nn.Module):
    """Replacement of a compiled module that counts its calls."""

    def __init__(self, module: nn.Module, trains: bool = True):
        super().__init__()
        self.module, self.trains, self.calls = module, trains, 0

    def forward(self, *inputs: Any) -> Any:
        assert torch.is_grad_enabled() == self.module.training == self.trains
        self.calls += 1
        return self.module(*inputs)


@pytest.fixture(autouse=True)
def _unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)


def settings_of(task: str) -> dict[str, Any]:
    """With --flip-test, the first result must outlive the second call."""
    if task == "classify":
        return {"flip_test": True}
    light = Masking(decoder_width=32, decoder_depth=1) if task == "mae" else Masking()
    return {"masking": light, "augment": Augment(crop="padded")}


def job_of(out: Path, task: Any = None, **changes: Any) -> Job:
    data = open_data("digits")
    return setup.set_up(defaults.choose(tiny(out, **changes), data, "cpu").config, data, World(0, 1, CPU), task)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Counted, str | None]]:
    """Modules that were compiled, and their modes; nothing is compiled."""
    made: list[tuple[Counted, str | None]] = []

    def compile(module: nn.Module, mode: str | None = None, dynamic: bool | None = None) -> nn.Module:
        made.append((Counted(module, trains=dynamic is None), mode))
        return made[-1][0]

    monkeypatch.setattr(torch, "compile", compile)
    return made


@pytest.mark.parametrize(
    ("device", "size", "accumulate", "ours", "graphs"),
    [
        (CUDA, 1, 1, True, True),
        (CPU, 1, 1, True, False),
        (CUDA, 2, 1, True, False),  # gradients go into DDP's buckets
        (CUDA, 1, 2, True, False),  # those of the first part wait for the second
        (CUDA, 1, 1, False, False),  # a task that may call its module twice
    ],
)
def test_cuda_graphs_only_if_gradients_are_not_kept(
    device: torch.device, size: int, accumulate: int, ours: bool, graphs: bool, compiled: list[Any]
) -> None:
    config = dataclasses.replace(ONE, accumulate=accumulate)
    assert compiling.suits_graphs(config, World(0, size, device), ours) == graphs
    recomputed = dataclasses.replace(config, checkpoint_blocks=True)  # reads the state of the RNG
    assert not compiling.suits_graphs(recomputed, World(0, size, device), ours)
    assert compiling.compiled(nn.Identity(), graphs) is compiled[0][0]
    assert compiled[0][1] == ("reduce-overhead" if graphs else None)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "mae", "mpp"])
def test_only_steps_are_compiled(task: str, tmp_path: Path, compiled: list[Any]) -> None:
    """An evaluation has other batch sizes and no gradients, so it would be compiled again."""
    train(tiny(tmp_path, compile=True, steps=12, accumulate=2, task=task, **settings_of(task)))
    assert [module.calls for module, _ in compiled] == [2 * (12 + WARM_UP)]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "mae", "mpp"])
def test_evaluations_are_compiled_separately_if_there_are_many(
    task: str, tmp_path: Path, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "EVALUATED_IMAGES", 359)
    train(tiny(tmp_path, compile=True, steps=12, task=task, **settings_of(task)))
    (step, _), (evaluation, mode) = compiled
    assert (step.calls, mode) == (12 + WARM_UP, None)
    # Three batches in each evaluation; images are evaluated with their mirror images; MAE's decoder is not in best/.
    assert evaluation.calls == 3 * (2 * 2 if task == "classify" else 3)


class Block(nn.Module):
    """Block that records how it was compiled."""

    kind: str | None = None

    def compile(self, dynamic: bool) -> None:  # type: ignore[override]
        self.kind = f"dynamic={dynamic}"
        self._compiled_call_impl = self.forward


def choose(
    steps: float, blocks: list[Block], graphs: bool = False, failing: str = "", message: str = "failed"
) -> tuple[Any, Stepper]:
    """Choose how to prepare the steps of a module. Return the choice and the stepper.

    A step raises an error if the blocks are compiled or graphs are recorded and `failing` says so.
    """
    stepper = Stepper.__new__(Stepper)
    stepper.compiled = nn.Identity()

    def rehearse() -> None:
        compiled = any(block.kind and block._compiled_call_impl is not None for block in blocks)
        recorded = isinstance(stepper.compiled, compiling.GraphedModule)
        if (failing == "blocks" and compiled) or (failing == "graphs" and recorded):
            raise RuntimeError(message)

    return compiling.choose_compile(stepper, [rehearse], [round(steps)], blocks, graphs, World(0, 1, CPU)), stepper


@pytest.mark.parametrize("graphs", [False, True])
def test_blocks_are_compiled_if_that_makes_the_run_shorter(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "seconds_per_step", lambda *_: 0.1)
    enough = 10 * compiling.COMPILE_SECONDS / (1 - 1 / compiling.SPEED_UP)
    for steps, value in ((enough / 2, "graphs" if graphs else False), (enough * 2, "blocks")):
        blocks = [Block(), Block()]
        choice, stepper = choose(steps, blocks, graphs)
        assert choice.value == value
        assert [block.kind for block in blocks] == [("dynamic=False" if value == "blocks" else None)] * 2
        assert isinstance(stepper.compiled, compiling.GraphedModule) == graphs
        assert not graphs or isinstance(stepper.compiled.module, nn.Identity)  # not a graph of a graph


@pytest.mark.parametrize(("steps", "value"), [([500, 10], "blocks"), ([400, 10], False), ([10, 500], False)])
def test_the_time_of_a_run_depends_on_the_steps_of_each_image_size(
    steps: list[int], value: str | bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = (lambda: None), (lambda: None)
    monkeypatch.setattr(compiling, "seconds_per_step", lambda rehearse, device: 0.2 if rehearse is slow else 0.01)
    stepper = Stepper.__new__(Stepper)
    stepper.compiled = nn.Identity()
    choice = compiling.choose_compile(stepper, [slow, fast], steps, [Block()], False, World(0, 1, CPU))
    assert choice.value == value


@pytest.mark.parametrize("graphs", [False, True])
def test_run_continues_without_compilation_if_it_fails(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "seconds_per_step", lambda *_: 1.0)
    blocks = [Block()]
    blocks[0].parts = nn.Sequential(nn.Linear(1, 1), StochasticDepth(0.3))
    choice, stepper = choose(10**6, blocks, graphs, "blocks", "no C compiler found")
    assert choice.value == ("graphs" if graphs else False)
    assert "torch.compile failed: no C compiler found" in choice.reason
    assert blocks[0]._compiled_call_impl is None
    assert blocks[0].parts[1].rate_tensor is None
    assert isinstance(stepper.compiled, compiling.GraphedModule) == graphs


@pytest.mark.parametrize(("steps", "value"), [(1, False), (10**6, "blocks")])
def test_run_continues_without_graphs_if_they_fail(
    steps: int, value: str | bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "seconds_per_step", lambda *_: 1.0)
    choice, stepper = choose(steps, [Block()], True, "graphs", "a synchronizing operation")
    assert choice.value == value
    assert "no CUDA graphs: a synchronizing operation" in choice.reason
    assert isinstance(stepper.compiled, nn.Identity)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch's own compiler
@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_blocks_give_the_same_losses(recompute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block is compiled for training and one for evaluation, although dropout rates differ."""
    whole = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda block, **options: whole(block, backend="aot_eager", **options))
    torch._dynamo.reset()
    losses = []
    for compile in (False, "blocks"):
        out = tmp_path / str(compile)
        train(tiny(out, compile=compile, steps=22, checkpoint_blocks=recompute, dropout=0.0, stochastic_depth=0.0))
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses.append(torch.tensor([row[key] for row in rows for key in ("train_loss", "val_loss")]))
        assert json.loads((out / "config.json").read_text())["compile"] == compile
    torch.testing.assert_close(*losses, atol=1e-3, rtol=1e-3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch's own compiler
@pytest.mark.parametrize(("name", "count"), [("ViT-Ti/4", 1), ("Swin-Ti/4", 6)])  # two shifts in all but two stages
def test_blocks_with_other_rates_of_stochastic_depth_share_their_code(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, whole = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda block, **options: whole(block, backend=counter, **options))
    torch._dynamo.reset()
    shape = {"width": 8, "stage_heads": (1, 1, 1, 1)} if "Swin" in name else {"width": 8, "num_heads": 1}
    model = build(configure(name, 3, (112, 112) if "Swin" in name else (8, 8), shape | {"stochastic_depth": 0.5}))
    compiling.compile_blocks(model.blocks)
    images = torch.randn(2, 3, *model.config.image_size)
    for passes in (1, 2):  # in training and in evaluation
        for _ in range(2):
            torch.manual_seed(0)
            compiled = model(images)
        with torch.compiler.set_stance("force_eager"):
            torch.manual_seed(0)
            assert torch.equal(model(images), compiled)
        assert counter.frame_count == passes * count
        model.eval()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch's own compiler
def test_blocks_with_lora_share_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, whole = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda block, **options: whole(block, backend=counter, **options))
    torch._dynamo.reset()
    model = build(configure("ViT-Ti/4", 3, (8, 8), {"width": 8, "num_heads": 1, "depth": 4})).requires_grad_(False)
    add_lora(model, rank=2)
    for name, weight in model.named_parameters():
        if name.endswith(".b"):
            nn.init.normal_(weight)
    images = torch.randn(2, 3, 8, 8)
    expected = model(images)
    compiling.compile_blocks(model.blocks)
    assert torch.equal(model(images), expected)
    assert counter.frame_count == 2  # the tokens before the first block have no gradient


def test_compiled_blocks_drop_branches_at_their_own_rates() -> None:
    model = build(configure("ViT-Ti/4", 3, (8, 8), {"width": 8, "num_heads": 1, "depth": 3, "stochastic_depth": 0.5}))
    tokens = torch.ones(20_000, 1, 1)
    compiling.compile_blocks(model.blocks)
    dropped = [(block.stochastic_depth(tokens) == 0).float().mean().item() for block in model.blocks]
    assert dropped == pytest.approx([0, 0.25, 0.5], abs=0.02)
    assert model.blocks[1].stochastic_depth(tokens).amax().item() == pytest.approx(4 / 3)


@pytest.mark.slow
def test_rehearsed_steps_do_not_change_the_run(tmp_path: Path, compiled: list[Any]) -> None:
    for compile in (False, True):
        train(tiny(tmp_path / str(compile), compile=compile, steps=12))
    first, second = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("False", "True"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_parallel_wrapper_is_compiled_with_the_module(
    tmp_path: Path, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling only the inner module would bypass DDP."""
    shared = Counted(nn.Identity())
    monkeypatch.setattr(World, "many", True)
    monkeypatch.setattr(setup, "parallelise", lambda *_: shared)
    monkeypatch.setattr(setup, "repeat", lambda *_: None)
    job = job_of(tmp_path, compile=True)
    assert job.stepper.module is shared
    assert job.stepper.compiled is compiled[0][0]
    assert compiled[0][0].module is shared


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("task", [None, type("Custom", (Classify,), {})])
def test_custom_tasks_are_compiled_without_cuda_graphs(
    task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    seen = []
    monkeypatch.setattr(setup, "suits_graphs", lambda config, world, once: seen.append(once) or False)
    job_of(tmp_path, task, compile=True)
    assert seen == [task is None]


def test_no_gradient_is_kept_after_a_step(tmp_path: Path) -> None:
    """The next replay of the graph would overwrite it."""
    job = job_of(tmp_path)
    job.stepper(next(iter(job.loader.batches(0, 1))))
    assert all(weight.grad is None for weight in job.state.module.parameters())


@pytest.mark.slow
def test_nothing_is_compiled_by_default(tmp_path: Path, compiled: list[Any]) -> None:
    train(tiny(tmp_path, steps=1))
    assert compiled == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("task", "accumulate"), [("classify", 1), ("classify", 2), ("mae", 1), ("mpp", 1)])
def test_compiled_run_has_the_same_losses(task: str, accumulate: int, tmp_path: Path) -> None:
    losses = {}
    for compile in (False, True):
        out = tmp_path / str(compile)
        changes: dict[str, Any] = {"task": task, "accumulate": accumulate, "compile": compile, "device": "cuda"}
        train(tiny(out, **changes, dropout=0.0, stochastic_depth=0.0, **settings_of(task)))
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses[compile] = torch.tensor([row["train_loss"] for row in rows] + [row["val_loss"] for row in rows])
    torch.testing.assert_close(losses[True], losses[False], atol=0.02, rtol=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dropout": 0.0},  # fused kernels
        {"progressive": 0.7},  # a graph for each image size
        {"precision": "fp32"},
        {"precision": "fp16"},
        {"task": "segment", "data": "shapes"},
        {"task": "mae", "masking": Masking(decoder_width=32, decoder_depth=1), "augment": Augment(crop="padded")},
        {"task": "mpp", "augment": Augment(crop="padded")},
        {"train_only": "lora"},
    ],
    ids=str,
)
def test_cuda_graphs_do_not_change_the_weights(settings: dict[str, Any], tmp_path: Path) -> None:
    """Dropout and stochastic depth draw the same numbers, also after resuming, and evaluations see the new weights."""
    if "train_only" in settings:
        train(tiny(tmp_path / "init", device="cuda", compile=False, steps=12))
        settings = settings | {"init": str(tmp_path / "init" / "best"), "model": None, "overrides": {}}
    if settings.get("task") == "segment":
        overrides = {"patch_size": 8, "width": 32, "mlp_width": 32, "depth": 2, "num_heads": 2}
        settings = settings | {"overrides": overrides, "image_size": (64,), "augment": Augment()}
    rows, weights = [], []
    for compile in (False, "graphs"):
        out = tmp_path / str(compile)
        train(tiny(out, device="cuda", compile=compile, **settings))
        rows.append([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])
        weights.append(load_file(out / "last" / "model.safetensors"))
        assert json.loads((out / "config.json").read_text())["compile"] == compile
    losses = [[row[name] for row in each for name in ("train_loss", "val_loss") if name in row] for each in rows]
    assert losses[0] == losses[1]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    config = read_config(tmp_path / "graphs")
    killed = finish(dataclasses.replace(config, out=tmp_path / "killed"), die_after=7)
    assert killed is not None
    train(TrainConfig(out=tmp_path / "killed", resume=True))
    again = load_file(tmp_path / "killed" / "last" / "model.safetensors")
    assert all(torch.equal(weights[1][name], again[name]) for name in again)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_are_recorded_by_default(tmp_path: Path) -> None:
    train(tiny(tmp_path, device="cuda", compile=None, steps=12))
    assert json.loads((tmp_path / "config.json").read_text())["compile"] == "graphs"
