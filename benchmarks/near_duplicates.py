"""Recall and precision of near duplicates that `vitreous data check --checkpoint` finds, with planted copies.

Every image of a folder gets one altered copy: resized, recompressed, cropped or mirrored. A group that contains a copy
and its original counts as found. A pair that was not planted is a false positive or an existing duplicate; `--out`
lists these pairs for inspection.

    python -m benchmarks.near_duplicates dinov2s_reg4.pt PHOTOS --image-size 224
"""

import io
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from PIL import Image

from benchmarks.publish_table import publish
from vitreous.data.sources.base import Source, StoredImage, is_image_file
from vitreous.evaluation.check_data import embed_splits, open_whole_image_encoder
from vitreous.evaluation.near_duplicates import CORRELATION, candidate_pairs, correlations
from vitreous.inference.predictor import Predictor


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    folder: Annotated[Path, tyro.conf.Positional]
    image_size: int = 224
    count: int | None = None  # images, chosen at random; all by default
    device: str = "auto"
    seed: int = 0
    out: Path = Path("runs/bench/near_duplicates.json")


@dataclass(frozen=True)
class Result:
    change: str
    copies: int
    candidates: float  # fraction of copies whose pair is among the nearest neighbours
    found: float  # fraction of copies whose pair is accepted
    lowest: float  # correlation of the least similar candidate


@dataclass(frozen=True)
class Unplanted:
    first: str
    second: str
    correlation: float


def jpeg(image: Image.Image, quality: int = 92) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def resized(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((max(round(image.width * factor), 1), max(round(image.height * factor), 1)))


def cropped(image: Image.Image, area: float, rng: random.Random) -> Image.Image:
    """Crop a rectangle at a random position, with an aspect ratio that differs by up to a fifth."""
    high = min(max((area * rng.uniform(0.8, 1.25)) ** 0.5, area), 1.0)
    width, height = int(image.width * area / high), int(image.height * high)
    left, top = rng.randint(0, image.width - width), rng.randint(0, image.height - height)
    return image.crop((left, top, left + width, top + height))


CHANGES: dict[str, Callable[[Image.Image, random.Random], bytes]] = {
    "resized to 0.5-2 x": lambda image, rng: jpeg(resized(image, 2 ** rng.uniform(-1, 1))),
    "JPEG quality 30-90": lambda image, rng: jpeg(image, rng.randint(30, 90)),
    "cropped to 85-95 %": lambda image, rng: jpeg(cropped(image, rng.uniform(0.85, 0.95), rng)),
    "cropped to 70-85 %": lambda image, rng: jpeg(cropped(image, rng.uniform(0.7, 0.85), rng)),
    "all three": lambda image, rng: jpeg(
        resized(cropped(image, rng.uniform(0.7, 0.95), rng), 2 ** rng.uniform(-1, 1)), rng.randint(30, 90)
    ),
    "mirrored": lambda image, _: jpeg(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
}


class Planted(Source):
    """Photos followed by one altered copy of each."""

    classes = ("",)

    def __init__(self, paths: list[Path], seed: int):
        self.paths, self.changes = paths, [list(CHANGES)[number % len(CHANGES)] for number in range(len(paths))]
        self.labels, self.seed = np.zeros(2 * len(paths), np.int64), seed

    def image(self, index: int) -> StoredImage:
        data = self.paths[index % len(self.paths)].read_bytes()
        if index < len(self.paths):
            return data
        number = index - len(self.paths)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return CHANGES[self.changes[number]](image, random.Random(self.seed * 1_000_003 + number))

    def name(self, index: int) -> str:
        return self.paths[index % len(self.paths)].name


def main(options: Options) -> None:
    paths = sorted(path for path in options.folder.rglob("*") if is_image_file(path.name))
    paths = random.Random(options.seed).sample(paths, min(options.count or len(paths), len(paths)))
    source, total = Planted(paths, options.seed), len(paths)
    encoder = open_whole_image_encoder(options.checkpoint, options.image_size)
    predictor = Predictor(encoder, options.device, 64, "auto")
    images = embed_splits(predictor, {"all": source}, labelled=False)
    assert len(images.places) == 2 * total, "unreadable images"
    pairs = candidate_pairs(images.vectors, predictor.device)
    scores = correlations(pairs, source.image, predictor.device)
    score = {(a, b): value for (a, b), value in zip(pairs.tolist(), scores.tolist(), strict=True)}
    results, seen = [], Counter(source.changes)
    for change, copies in seen.items():
        own = [score.get((row, row + total)) for row in range(total) if source.changes[row] == change]
        known = [value for value in own if value is not None]
        found = sum(value >= CORRELATION for value in known)
        results.append(Result(change, copies, len(known) / copies, found / copies, min(known, default=-1.0)))
    accepted = {pair: value for pair, value in score.items() if value >= CORRELATION}
    unplanted = [
        Unplanted(source.name(a), source.name(b), value)
        for (a, b), value in sorted(accepted.items(), key=lambda item: -item[1])
        if b != a + total
    ]
    highest = max((value for (a, b), value in score.items() if b != a + total and value < CORRELATION), default=-1.0)
    rows = [[row.change, str(row.copies), *(f"{v:.1%}" for v in (row.candidates, row.found)), f"{row.lowest:.2f}"]
            for row in results]  # fmt: skip
    title = (
        f"{total:,} photos and as many copies, {encoder.config.image_size[0]} px: {len(pairs):,} candidate pairs, "
        f"{len(accepted):,} accepted, {len(unplanted):,} not planted; highest rejected correlation {highest:.2f}"
    )
    publish(title, ["change", "copies", "candidates", "found", "lowest"], rows, [*results, *unplanted], options.out)
    for pair in unplanted[:20]:
        print(f"not planted: {pair.first} = {pair.second} ({pair.correlation:.2f})")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main(tyro.cli(Options, description=__doc__))
