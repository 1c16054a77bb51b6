"""Speed of JPEG decoding, random cropping and resizing on one core, compared with Pillow and torchvision.

JPEG files in memory become a uint8 batch of random resized crops, with the same interpolation in both systems. The peer
uses `Image.open(...).convert("RGB")`, `RandomResizedCrop`, `RandomHorizontalFlip`, `PILToTensor` and `torch.stack`, as
in timm. Vitreous decodes with simplejpeg, stops at the last row of the crop, resizes uint8 tensors with torch and
writes to a channels-last batch; as in training, images are flipped later on the device. The systems alternate, so that
machine noise affects both.

`vitreous --decode fast` decodes files much larger than the crop at a reduced scale. To see the effect, use
`--width 2000 --height 1500`.

JPEG entropy decoding, which no system can avoid, takes more than half of Vitreous's time. The speedup is smaller with
bilinear interpolation, which is faster than bicubic in Pillow but about equally fast in Vitreous.

    python -m benchmarks.jpeg_decoding
"""

import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor

from benchmarks.publish_table import publish
from vitreous.common.rng import SampleRng
from vitreous.data.image import random_resized_crop
from vitreous.weights.peers import repair_torchvision

PEER = "Pillow + torchvision"
Interpolation = Literal["bicubic", "bilinear"]
Load = Callable[[list[bytes], int], Tensor]  # (files, round) to uint8 [b, 3, h, w]


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    height: int = 375
    width: int = 500
    quality: int = 90
    size: int = 224
    pictures: int = 64
    rounds: int = 25
    out: Path = Path("runs/bench/jpeg_decoding.json")


@dataclass(frozen=True)
class Result:
    interpolation: str
    system: str
    milliseconds: float  # per image, median over rounds
    images_per_second: float
    speed: float  # relative to the peer; above 1 is faster


def draw_pictures(options: Options) -> list[bytes]:
    """Generate JPEG files with photograph-like statistics: power-law spectra, and less colour than luminance."""
    generator = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(options.height)[:, None], np.fft.rfftfreq(options.width))
    frequency[0, 0] = 1
    files = []
    for _ in range(options.pictures):
        phases = generator.normal(size=(2, 3, *frequency.shape))
        planes = np.fft.irfft2((phases[0] + 1j * phases[1]) / frequency**1.5, s=(options.height, options.width))
        light, red, blue = planes / planes.std(axis=(1, 2), keepdims=True)
        gradient = np.linspace(-40, 40, options.width) * generator.normal()
        rgb = 128 + (45 * light + gradient)[..., None] + np.stack([15 * red, 8 * blue, -10 * red], axis=-1)
        file = io.BytesIO()
        Image.fromarray(rgb.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=options.quality)
        files.append(file.getvalue())
    return files


def vitreous_load(size: int, interpolation: Interpolation, fast: bool) -> Load:
    def load(files: list[bytes], turn: int) -> Tensor:
        numbers = SampleRng(seed=0, epoch=turn, indices=torch.arange(len(files))).uniform("crop", 4).tolist()
        batch = torch.empty(len(files), size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        for i, file in enumerate(files):
            batch[i] = random_resized_crop(
                file, (size, size), numbers[i], (0.08, 1.0), interpolation=interpolation, fast=fast
            )
        return batch

    return load


def pillow_load(size: int, interpolation: Interpolation) -> Load:
    repair_torchvision()
    from torchvision import transforms

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, interpolation=transforms.InterpolationMode(interpolation)),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )

    def load(files: list[bytes], turn: int) -> Tensor:
        torch.manual_seed(turn)
        return torch.stack([transform(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])

    return load


def measure(systems: dict[str, Load], files: list[bytes], rounds: int) -> dict[str, float]:
    """Return the median CPU time per image. The systems alternate."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(rounds + 2):
        for name, load in systems.items():
            start = time.process_time()
            load(files, turn)
            if turn >= 2:  # skip warm-up rounds
                times[name].append((time.process_time() - start) / len(files))
    return {name: statistics.median(values) for name, values in times.items()}


def main(options: Options) -> None:
    torch.set_num_threads(1)
    files = draw_pictures(options)
    results = []
    for mode in get_args(Interpolation):
        systems = {
            "vitreous": vitreous_load(options.size, mode, fast=False),
            "vitreous --decode fast": vitreous_load(options.size, mode, fast=True),
            PEER: pillow_load(options.size, mode),
        }
        seconds = measure(systems, files, options.rounds)
        base = seconds[PEER]
        results += [Result(mode, name, 1e3 * value, 1 / value, base / value) for name, value in seconds.items()]

    kilobytes = statistics.mean(map(len, files)) / 1e3
    setting = f"{options.width} x {options.height} JPEG of {kilobytes:.0f} kB to {options.size} pixels, 1 thread"
    rows = [
        [row.interpolation, row.system, f"{row.milliseconds:.3f}", f"{row.images_per_second:.0f}", f"{row.speed:.2f}"]
        for row in results
    ]
    publish(setting, ["interpolation", "system", "ms", "images/s", "speed"], rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
