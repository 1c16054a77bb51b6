"""Studies, their runs, and the scales at which they can be measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitreous.common.atomic_files import atomic_file
from vitreous.data.open import open_data
from vitreous.data.sources.base import Source
from vitreous.model.presets import preset
from vitreous.training import Augment, Optim, TrainConfig

BASE = "ViT-Ti/4"  # 4 x 4 pixel patches; scales have their own width and depth


@dataclass(frozen=True)
class Scale:
    """Data, model and length of the runs of all studies."""

    name: str
    machine: str  # the kind of machine it is meant for
    data: str
    train: int  # number of training images
    image_size: int
    low_size: int  # image size of pre-training before fine-tuning at a higher resolution
    large_sizes: tuple[int, ...]  # other image sizes for testing and fine-tuning
    width: int
    depth: int
    num_heads: int
    hybrid_stages: tuple[int, ...]
    resnet_stages: tuple[tuple[int, ...], ...]
    resnet_size: int
    batch_size: int
    steps: int
    lr: float
    seeds: int
    train_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    flip: float
    rate: float  # assumed floating-point operations per second, to plan sessions
    overhead: float  # assumed seconds per training run for set-up, evaluation and report

    @property
    def overrides(self) -> dict[str, Any]:
        """Shape of the base model."""
        return {"width": self.width, "depth": self.depth, "num_heads": self.num_heads, "mlp_width": 4 * self.width}

    def config(self, seed: int, **overrides: Any) -> TrainConfig:
        """Train the base model with some fields replaced, from scratch, with AdamW and few augmentations."""
        base, fields = preset(BASE), self.overrides | overrides
        return TrainConfig(
            data=self.data,
            model=BASE,
            overrides={name: value for name, value in fields.items() if getattr(base, name) != value},
            image_size=(self.image_size,),
            steps=self.steps,
            batch_size=self.batch_size,
            evaluate_every=10**6,  # only after the last step, so that nothing is selected on the test images
            save_minutes=1.0,
            compile="graphs",
            seed=seed,
            optim=Optim(optimizer="adamw", lr=self.lr, weight_decay=0.05, warmup=0.1),
            augment=Augment(
                crop="padded" if self.flip else "none", flip=self.flip, policy="none", mixup=0.0, cutmix=0.0
            ),
        )


TINY = Scale(
    name="tiny", machine="a CPU, for tests", data="digits", train=200, image_size=8, low_size=8, large_sizes=(12,),
    width=32, depth=2, num_heads=1, hybrid_stages=(1,), resnet_stages=((1,),), resnet_size=8, batch_size=20, steps=3,
    lr=1e-3, seeds=1, train_sizes=(40, 200), depths=(1, 2), flip=0.0, rate=5e9, overhead=1.0,
)  # fmt: skip

# 896 of the 1,797 digits are for training, the others for testing.
DIGITS = Scale(
    name="digits", machine="one CPU thread", data="digits", train=896, image_size=16, low_size=12, large_sizes=(16, 24),
    width=48, depth=4, num_heads=3, hybrid_stages=(1,), resnet_stages=((1,), (1, 1), (1, 1, 1)), resnet_size=16,
    batch_size=64, steps=200, lr=4e-3, seeds=3, train_sizes=(100, 300, 896), depths=(2, 4, 8), flip=0.0, rate=2e10,
    overhead=3.0,
)  # fmt: skip

# The rate is an assumption. Vitreous trains a ViT-S/4, which is twice as wide, at 200 TFLOP/s (docs/en/measured.md).
H200 = Scale(
    name="h200", machine="one NVIDIA H200", data="cifar10", train=50_000, image_size=32, low_size=24,
    large_sizes=(32, 48), width=192, depth=6, num_heads=3, hybrid_stages=(2,),
    resnet_stages=((1, 1, 1, 1), (2, 2, 2, 2), (3, 4, 6, 3)), resnet_size=64, batch_size=500, steps=800, lr=1e-3,
    seeds=3, train_sizes=(1_000, 7_000, 50_000), depths=(3, 6, 12), flip=0.5, rate=6e13, overhead=1.0,
)  # fmt: skip

SCALES = {scale.name: scale for scale in (TINY, DIGITS, H200)}


@dataclass(frozen=True)
class Stage:
    """A training run on `images` images of the scale's training split."""

    config: TrainConfig
    images: int


@dataclass(frozen=True)
class Run:
    """A point of a plot: stages that start from the weights of the previous one. The last one is measured."""

    curve: str
    x: float | str
    seed: int
    stages: tuple[Stage, ...]

    @property
    def label(self) -> tuple[str, float | str, int]:
        return self.curve, self.x, self.seed


class Point(NamedTuple):
    """A measured value."""

    curve: str
    x: float | str
    value: float


@dataclass(frozen=True)
class Trained:
    """A trained run: the folder, the metrics and the data of its last stage."""

    scale: Scale
    run: Run
    folder: Path
    metrics: Mapping[str, Any]
    data: Path
    device: str


def measure_top1(trained: Trained) -> list[Point]:
    """Measure the top-1 accuracy on the test images after the last step."""
    return [Point(trained.run.curve, trained.run.x, trained.metrics["top1"])]


@dataclass(frozen=True)
class Study:
    """A claim of the paper: the runs that test it, their measurement, and the axes of the plot."""

    name: str
    paper: str  # figure, table or section
    runs: Callable[[Scale], list[Run]]
    x: str
    y: str = "top-1"
    measure: Callable[[Trained], list[Point]] = measure_top1
    log_x: bool = False
    percent: bool = True


# ---- Data ------------------------------------------------------------------------------------------------------------

TEST_FRACTION = 0.5  # of data without a test split


def write_images(scale: Scale, data_root: Path | None, count: int, seed: int, path: Path) -> None:
    """Write `count` training images, equally many of each class, and all test images to an .npz file."""
    data = open_data(scale.data, root=data_root, val_fraction=TEST_FRACTION)
    chosen = np.arange(len(data.train))
    if count > len(chosen):
        raise ValueError(f"{data.name} has {len(chosen):,} training images, but the study needs {count:,}")
    if count < len(chosen):
        chosen = np.sort(balanced(data.train.labels, count, seed))
    arrays = {"classes": np.array(data.classes)}
    for split, source, indices in (("train", data.train, chosen), ("test", data.val, np.arange(len(data.val)))):
        arrays |= {f"x_{split}": pixels(source, indices), f"y_{split}": source.labels[indices]}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as aside:
        np.savez(aside, **arrays)  # type: ignore[arg-type]


def balanced(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw `count` indices, in turn from each class."""
    order = np.random.default_rng(seed).permutation(len(labels))
    sorted_order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels)
    rank = np.concatenate([np.arange(size) for size in sizes])
    return sorted_order[np.argsort(rank, kind="stable")][:count]


def pixels(source: Source, indices: np.ndarray) -> np.ndarray:
    images = [source.image(int(index)) for index in indices]
    assert all(isinstance(image, np.ndarray) for image in images)
    return np.stack(images)


# ---- Parts that several studies share --------------------------------------------------------------------------------


def seeds(scale: Scale) -> range:
    return range(scale.seeds)


def machine(device: str) -> str:
    """Return the name of the processor."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    return f"{names[0] if names else 'CPU'}, {threads} thread{'s' * (threads > 1)}"
