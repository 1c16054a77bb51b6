"""Training step speed of Swin-T (window 7, 224 px) in Vitreous and in timm, with ViT-S/16 for reference.

All systems train in one process on the same random images: bf16 autocast, fused AdamW with the same groups, no
stochastic depth, random weights. They run with and without torch.compile, and alternate in each round; compare the
ratios. timm computes attention step by step by default; "timm-fused" uses PyTorch's fused kernel.

    python -m benchmarks.swin_step --device cuda
    python -m benchmarks.swin_step --device cpu --batch-size 2 --rounds 1 --no-compile
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from benchmarks.peers import repair_torchvision
from benchmarks.publish_table import publish
from vitreous.common.text import plural, single_spaced
from vitreous.model.build import build
from vitreous.model.presets import preset

CLASSES = 1000
SETUP_SHARE = 0.6  # of the time limit; variants that are not compiled by then are skipped


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    systems: tuple[str, ...] = ("vitreous", "timm", "timm-fused", "vit")
    batch_size: int = 256
    rounds: int = 5
    steps: int | None = None  # per round, without synchronisation in between; None is 20 on a GPU, else 1
    device: str = "cuda"
    compile: bool = True
    seconds: float = 120.0  # time limit: skip variants, then rounds
    out: Path = Path("runs/bench/swin_step.json")


@dataclass(frozen=True)
class Result:
    system: str
    compiled: bool
    setup_seconds: float  # build, compile, and warm up
    seconds: float | None = None  # per step, median over rounds
    fastest: float | None = None
    slowest: float | None = None
    images_per_second: float | None = None
    speed: float | None = None  # relative to the fastest timm variant; above 1 is faster
    memory_gib: float | None = None  # peak in a step, with weights and optimizer state, without images
    error: str = ""


def vitreous_model(name: str) -> nn.Module:
    return build(preset(name).override({"num_classes": CLASSES, "stochastic_depth": 0.0}))


def timm_swin(fused: bool) -> nn.Module:
    repair_torchvision()
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(fused, experimental=fused)
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=CLASSES, drop_path_rate=0.0)


SYSTEMS: dict[str, Callable[[], nn.Module]] = {
    "vitreous": lambda: vitreous_model("Swin-Ti/4"),
    "timm": lambda: timm_swin(fused=False),
    "timm-fused": lambda: timm_swin(fused=True),
    "vit": lambda: vitreous_model("ViT-S/16"),
}
NAMES = {"vitreous": "Vitreous Swin-T", "timm": "timm Swin-T", "timm-fused": "timm Swin-T, fused",
         "vit": "Vitreous ViT-S/16"}  # fmt: skip


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Build AdamW without weight decay for biases, norms and positions."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, weight in model.named_parameters():
        groups[weight.ndim >= 2 and "position" not in name].append(weight)
    decays = [{"params": groups[True], "weight_decay": 0.05}, {"params": groups[False], "weight_decay": 0.0}]
    return torch.optim.AdamW(decays, lr=1e-4, fused=True)


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Variant:
    """A system with or without torch.compile, and its measurements."""

    system: str
    compile: bool
    step: Callable[[], None] | None = None
    setup_seconds: float = 0.0
    own_bytes: int = 0  # weights and optimizer state
    peak_bytes: int = 0
    times: list[float] = field(default_factory=list)  # per step, one entry per round
    error: str = ""

    @property
    def label(self) -> str:
        return f"{NAMES[self.system]}, {'compiled' if self.compile else 'eager'}"

    def fail(self, error: Exception) -> None:
        self.step, self.error = None, single_spaced(f"{type(error).__name__}: {error}", 300)
        print(f"{self.label}: {self.error}", flush=True)

    def set_up(self, images: Tensor, labels: Tensor, warm_up: int) -> None:
        start, before, device = time.perf_counter(), allocated(images.device), images.device
        torch.manual_seed(0)
        model = SYSTEMS[self.system]().to(device).train()
        optimizer = optimizer_of(model)
        run = torch.compile(model, dynamic=False) if self.compile else model

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16):
                loss = F.cross_entropy(run(images), labels)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(warm_up):
            step()
        synchronise(device)
        self.step, self.own_bytes = step, allocated(device) - before
        self.setup_seconds = time.perf_counter() - start

    def measure(self, steps: int, device: torch.device) -> None:
        assert self.step is not None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        synchronise(device)
        before, start = allocated(device), time.perf_counter()
        for _ in range(steps):
            self.step()
        synchronise(device)
        self.times.append((time.perf_counter() - start) / steps)
        if device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(device) - before + self.own_bytes


def result_of(variant: Variant, batch_size: int, peer: float | None) -> Result:
    if variant.error or not variant.times:
        return Result(variant.system, variant.compile, variant.setup_seconds, error=variant.error or "not measured")
    seconds = statistics.median(variant.times)
    return Result(
        variant.system,
        variant.compile,
        variant.setup_seconds,
        seconds,
        min(variant.times),
        max(variant.times),
        batch_size / seconds,
        peer / seconds if peer is not None else None,
        variant.peak_bytes / 2**30 if variant.peak_bytes else None,
    )


def row_of(variant: Variant, result: Result) -> list[str]:
    if result.seconds is None or result.fastest is None or result.slowest is None:
        return [variant.label, result.error, "", "", "", "", f"{result.setup_seconds:.0f}"]
    return [
        variant.label,
        f"{result.seconds * 1e3:.1f}",
        f"{result.fastest * 1e3:.1f} to {result.slowest * 1e3:.1f}",
        f"{result.images_per_second:.0f}",
        "" if result.speed is None else f"{result.speed:.2f}",
        "" if result.memory_gib is None else f"{result.memory_gib:.2f}",
        f"{result.setup_seconds:.0f}",
    ]


def main(options: Options) -> None:
    start, device = time.perf_counter(), torch.device(options.device)
    cuda = device.type == "cuda"
    steps, warm_up = options.steps or (20 if cuda else 1), 5 if cuda else 1
    torch.manual_seed(0)
    images = torch.randn(options.batch_size, 3, 224, 224, device=device)
    labels = torch.randint(CLASSES, (options.batch_size,), device=device)
    ways = (True, False) if options.compile else (False,)
    variants = [Variant(system, way) for way in ways for system in options.systems]
    for variant in variants:
        if time.perf_counter() - start > SETUP_SHARE * options.seconds and variant.compile:
            variant.error = "skipped: time limit"
            continue
        try:
            variant.set_up(images, labels, warm_up)
            print(f"{variant.label}: ready after {variant.setup_seconds:.1f} s", flush=True)
        except Exception as error:  # the other variants must still run
            variant.fail(error)

    rounds, longest = 0, 0.0
    while rounds < options.rounds and (not rounds or time.perf_counter() - start + longest < options.seconds):
        began = time.perf_counter()
        for variant in variants[:: -1 if rounds % 2 else 1]:  # alternate the order
            if variant.step is None:
                continue
            try:
                variant.measure(steps, device)
            except Exception as error:
                variant.fail(error)
        rounds, longest = rounds + 1, max(longest, time.perf_counter() - began)
        print(f"round {rounds} of {options.rounds}: {time.perf_counter() - began:.1f} s", flush=True)

    peers = [statistics.median(v.times) for v in variants if v.system.startswith("timm") and v.times and not v.error]
    results = [result_of(variant, options.batch_size, min(peers, default=None)) for variant in variants]
    where = torch.cuda.get_device_name() if cuda else f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    setting = (
        f"{where}, bf16 autocast, batch {options.batch_size}, 224 px, no stochastic depth, "
        f"{plural(rounds, 'round')} of {plural(steps, 'step')}"
    )
    columns = ["system", "ms per step", "rounds", "images/s", "speed / best timm", "GiB", "setup, s"]
    rows = [row_of(variant, result) for variant, result in zip(variants, results, strict=True)]
    publish(setting, columns, rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
