"""A mask is cut as its picture is: ids are painted into the picture's colours, and must agree after every crop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from pictures import encoded
from vitreous.data.augment.config import Augmentation
from vitreous.data.batch_reader import Batch, Reader, Request
from vitreous.data.image.decode import UnreadableImage
from vitreous.data.loader import EvalLoader, Place, ResidentLoader, StreamLoader, can_reside, hold
from vitreous.data.masks.folders import open_masked
from vitreous.data.sources.base import ArraySource, Picture, Source, Subset
from vitreous.data.sources.shapes import ShapesSource
from vitreous.model.options import IGNORED, Preprocessing

CPU = torch.device("cpu")
SHADES = np.array([30, 130, 230], np.uint8)  # of the ids 0, 1 and 2


class Masked(Source):
    """Pictures and masks as they are given. A mask that is an error is raised."""

    classes = ("picture",)
    mask_classes = ("a", "b", "c")

    def __init__(self, pictures: list[Picture], masks: list[np.ndarray | Exception]):
        self.pictures, self.masks = pictures, masks
        self.labels = np.zeros(len(pictures), np.int64)

    def picture(self, index: int) -> Picture:
        return self.pictures[index]

    def mask(self, index: int) -> np.ndarray:
        mask = self.masks[index]
        if isinstance(mask, Exception):
            raise mask
        return mask

    def name(self, index: int) -> str:
        return f"picture {index}"


def areas(height: int, width: int, seed: int) -> np.ndarray:
    """Ids in three broad stripes of any slope. Only neighbouring shades touch: between others a third one appears."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    turn = generator.uniform(0, 2 * np.pi)
    across = np.cos(turn) * x + np.sin(turn) * y
    low, high = across.min(), across.max()
    return np.digitize(across, low + (high - low) * generator.uniform([0.2, 0.6], [0.4, 0.8])).astype(np.uint8)


def painted(height: int, width: int, seeds: range, format: str = "array") -> Masked:
    masks = [areas(height, width, seed) for seed in seeds]
    pixels = [SHADES[mask][..., None].repeat(3, 2) for mask in masks]
    if format == "array":
        return Masked(pixels, masks)
    options = {"JPEG": {"quality": 95, "subsampling": 0}}.get(format, {})
    return Masked([encoded(picture, format, **options) for picture in pixels], masks)


def everything(reader: Reader, epoch: int = 0) -> Batch:
    all_ = torch.arange(len(reader.source))
    return reader[Request(epoch, all_, all_)]


def disagreement(batch: Batch) -> Tensor:
    """Which pixels show another shade than that of their id. Next to outlines a resize mixes shades."""
    assert batch.masks is not None
    shades = torch.from_numpy(SHADES).int()
    shown = (batch.images[:, :1].int() - shades[None, :, None, None]).abs().argmin(1)
    padding = batch.masks == IGNORED  # white, where the mean is 1
    assert (batch.images[:, 0][padding] == 255).all()
    return (shown != batch.masks) & ~padding


def inner(masks: Tensor, reach: int) -> Tensor:
    """Pixels with only their own id within reach, and not at an edge, where an outline may lie just beyond."""
    levels, side = masks[:, None].float(), 2 * reach + 1
    high = torch.nn.functional.max_pool2d(levels, side, 1, reach)
    low = -torch.nn.functional.max_pool2d(-levels, side, 1, reach)
    alone = torch.zeros_like(masks, dtype=torch.bool)
    alone[:, reach:-reach, reach:-reach] = (high == low)[:, 0, reach:-reach, reach:-reach]
    return alone


def check_together(source: Masked, size: tuple[int, int], reader: Reader, share: float) -> None:
    batch = everything(reader)
    assert batch.masks is not None
    assert batch.problems == []
    assert batch.masks.shape == (len(source), *size)
    wrong = disagreement(batch)
    assert not (wrong & inner(batch.masks, 1)).any()
    assert wrong.float().mean() < share


@given(
    picture=st.tuples(st.integers(16, 90), st.integers(16, 90)),
    size=st.tuples(st.integers(12, 40), st.integers(12, 40)),
    seed=st.integers(0, 10_000),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
)
@settings(deadline=None, max_examples=40)
def test_random_crops_agree(picture: tuple[int, int], size: tuple[int, int], seed: int, interpolation: str) -> None:
    source = painted(*picture, range(seed, seed + 4))
    how = Preprocessing(interpolation=interpolation)  # type: ignore[arg-type]
    reader = Reader(source, size, 3, how, Augmentation(crop_scale=(0.3, 1.0)), seed, masks=True)
    check_together(source, size, reader, share=0.15)


@given(
    picture=st.tuples(st.integers(16, 90), st.integers(16, 90)),
    size=st.tuples(st.integers(12, 40), st.integers(12, 40)),
    seed=st.integers(0, 10_000),
    fit=st.sampled_from(["crop", "squash", "squash-crop", "pad"]),
    geometry=st.sampled_from(["torchvision", "timm", "huggingface"]),
    fraction=st.sampled_from([0.7, 0.875, 1.0]),
    crop=st.sampled_from([None, "padded", "none"]),
)
@settings(deadline=None, max_examples=40)
def test_fitted_pictures_agree(
    picture: tuple[int, int],
    size: tuple[int, int],
    seed: int,
    fit: str,
    geometry: str,
    fraction: float,
    crop: str | None,
) -> None:
    source = painted(*picture, range(seed, seed + 3))
    how = Preprocessing((1.0,), fit=fit, crop_fraction=fraction, geometry=geometry)  # type: ignore[arg-type]
    augmentation = None if crop is None else Augmentation(crop=crop)  # type: ignore[arg-type]
    check_together(source, size, Reader(source, size, 3, how, augmentation, masks=True), share=0.15)


@pytest.mark.parametrize("picture", [(300, 400), (397, 289)], ids=str)
@pytest.mark.parametrize("augmentation", [None, Augmentation()], ids=["fit", "crop"])
@pytest.mark.parametrize("exact_from", [0, 1], ids=["exact", "fast"])
def test_jpegs_decoded_at_a_reduced_size_agree(
    picture: tuple[int, int], augmentation: Augmentation | None, exact_from: int
) -> None:
    source = painted(*picture, range(8), "JPEG")
    reader = Reader(source, (40, 32), 3, Preprocessing(), augmentation, masks=True, exact_from=exact_from)
    check_together(source, (40, 32), reader, share=0.06)


def test_decoding_depends_on_the_epoch_alone() -> None:
    """Fast before `exact_from`, exact from there on, whatever was read before: a resumed run sees the same pixels."""
    noise = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    large = Image.fromarray(noise).resize((600, 500), Image.Resampling.BILINEAR)
    source = Masked([encoded(large, "JPEG", quality=95)], [np.zeros((500, 600), np.uint8)])
    for augmentation in (Augmentation(), Augmentation(crop="none")):
        mixed, exact, fast = (
            Reader(source, (16, 16), 3, Preprocessing(), augmentation, exact_from=first) for first in (2, 0, 9)
        )
        for epoch in (3, 0, 1, 2, 0):
            found = everything(mixed, epoch).images
            same, other = (fast, exact) if epoch < 2 else (exact, fast)
            assert torch.equal(found, everything(same, epoch).images)
            assert not torch.equal(found, everything(other, epoch).images)


@pytest.mark.parametrize("picture", [(4, 900), (900, 4)], ids=str)
def test_very_long_pictures_agree(picture: tuple[int, int]) -> None:
    """Their pictures are trimmed before they are resized, the masks are not."""
    source = painted(*picture, range(4))
    batch = everything(Reader(source, (16, 16), 3, Preprocessing(), masks=True))
    assert batch.masks is not None
    assert disagreement(batch).float().mean() < 0.1


def test_a_shifted_mask_would_be_noticed() -> None:
    source = painted(60, 70, range(8))
    source.masks = [np.roll(mask, 4, 1) for mask in source.masks if isinstance(mask, np.ndarray)]
    batch = everything(Reader(source, (32, 32), 3, Preprocessing(), masks=True))
    assert batch.masks is not None
    assert (disagreement(batch) & inner(batch.masks, 1)).any()


def test_equal_sizes_are_copied_exactly() -> None:
    source = painted(24, 20, range(3))
    batch = everything(Reader(source, (24, 20), 3, Preprocessing(fit="squash"), masks=True))
    assert batch.masks is not None
    assert np.array_equal(batch.masks.numpy(), np.stack(source.masks))  # type: ignore[arg-type]
    assert batch.masks.dtype == torch.uint8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_agrees_with_the_mask_of_the_upright_one(orientation: int) -> None:
    mask = areas(60, 80, 3)
    stored = SHADES[mask]
    if orientation in (2, 3, 6, 7):
        stored = stored[:, ::-1]
    if orientation in (3, 4, 7, 8):
        stored = stored[::-1]
    if orientation >= 5:
        stored = stored.T
    tag = Image.Exif()
    tag[0x0112] = orientation
    source = Masked([encoded(np.ascontiguousarray(stored), "JPEG", quality=95, exif=tag)], [mask])
    for augmentation in (None, Augmentation()):
        check_together(source, (30, 30), Reader(source, (30, 30), 3, Preprocessing(), augmentation, masks=True), 0.1)


# ---- Batches ---------------------------------------------------------------------------------------------------------


def test_masks_come_only_when_asked_for_and_change_nothing_else() -> None:
    source = painted(30, 40, range(5))
    plain, masked = (
        everything(Reader(source, (16, 16), 3, Preprocessing(), Augmentation(), masks=m)) for m in (False, True)
    )
    assert plain.masks is None
    assert torch.equal(plain.images, masked.images)
    with pytest.raises(ValueError, match="masks are asked for, but this data set has none"):
        Reader(
            ArraySource(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2), ("a",), "x"),
            (4, 4),
            3,
            Preprocessing(),
            masks=True,
        )
    with pytest.raises(ValueError, match=r"x\[1\] has no mask: this data set has labels for pictures"):
        ArraySource(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2), ("a",), "x").mask(1)


def test_a_part_of_a_source_has_its_masks() -> None:
    source = painted(20, 20, range(5))
    part = Subset(source, np.array([3, 1]))
    assert part.mask_classes == source.mask_classes
    assert np.array_equal(part.mask(0), source.mask(3))
    assert np.array_equal(part.mask(1), source.mask(1))


def test_workers_and_other_batches_do_not_change_a_mask() -> None:
    source = painted(30, 40, range(9), "PNG")
    reader = Reader(source, (16, 16), 3, Preprocessing(), Augmentation(), seed=3, masks=True)
    alone, helped = (list(StreamLoader(reader, Place(4), workers, CPU).batches(1, 5)) for workers in (0, 2))
    for ours, theirs in zip(alone, helped, strict=True):
        assert ours.masks is not None
        assert theirs.masks is not None
        assert torch.equal(ours.masks, theirs.masks)
        again = reader[Request(ours.epoch, ours.indices[2:3], ours.keys[2:3])]
        assert again.masks is not None
        assert torch.equal(again.masks[0], ours.masks[2])
    for workers in (0, 1):
        [batch] = EvalLoader(Reader(source, (16, 16), 3, Preprocessing(), masks=True), Place(9), workers)
        assert not (disagreement(batch) & inner(batch.masks, 1)).any()


def test_what_resides_is_what_workers_would_read() -> None:
    source = Subset(ShapesSource(18, 24, 0, "train"), np.arange(11))
    assert can_reside(source, (24, 24), 3)
    assert not can_reside(ShapesSource(10**6, 24, 0, "train"), (24, 24), 3)
    reader = Reader(source, (16, 20), 3, Preprocessing(), Augmentation(crop="padded", repeats=2), seed=2, masks=True)
    held = hold(reader, CPU)
    resident = ResidentLoader(held.images, held.labels, 2, Place(4), 2, held.masks)
    stream = StreamLoader(reader, Place(4), workers=0, device=CPU)
    for ours, theirs in zip(resident.batches(0, 4), stream.batches(0, 4), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours[:4], theirs[:4], strict=True))
        assert ours.masks is not None
        assert theirs.masks is not None
        assert torch.equal(ours.masks, theirs.masks)
    evaluation = Reader(source, (16, 20), 3, Preprocessing(), masks=True)
    for ours, theirs in zip(EvalLoader(evaluation, Place(4), 0, CPU), EvalLoader(evaluation, Place(4), 0), strict=True):
        assert torch.equal(ours.masks, theirs.masks)  # type: ignore[arg-type]


def test_what_cannot_be_read_is_named_and_ignored() -> None:
    source = painted(20, 30, range(6), "PNG")
    whole = everything(Reader(source, (16, 16), 3, Preprocessing(), masks=True))
    source.pictures[1] = b""
    source.masks[2] = UnreadableImage("not a PNG file")
    source.masks[4] = FileNotFoundError(2, "No such file or directory")
    source.masks[5] = areas(30, 20, 5)
    batch = everything(Reader(source, (16, 16), 3, Preprocessing(), masks=True))
    assert batch.masks is not None
    assert whole.masks is not None
    assert batch.labels.tolist() == [0, -1, -1, 0, -1, -1]
    assert batch.problems == [
        "picture 1: the file is empty",
        "picture 2: its mask: not a PNG file",
        "picture 4: its mask: [Errno 2] No such file or directory",
        "picture 5: its mask is 30 x 20 pixels, but the picture 20 x 30",
    ]
    assert (batch.masks[[1, 2, 4, 5]] == 255).all()
    assert torch.equal(batch.masks[[0, 3]], whole.masks[[0, 3]])
    assert torch.equal(batch.images[2], whole.images[2])


def test_a_folder_is_read_as_it_is(tmp_path: Path) -> None:
    source = painted(24, 20, range(5), "PNG")
    for i in range(5):
        for kind, data in (("images", source.pictures[i]), ("masks", encoded(source.mask(i) * 7))):
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{i}.png").write_bytes(data)  # type: ignore[arg-type]
    (tmp_path / "classes.txt").write_text("0 a\n7 b\n14 c\n")
    data = open_masked(str(tmp_path), val_fraction=0.4)
    for part in (data.train, data.val):
        check_together(part, (24, 20), Reader(part, (24, 20), 3, Preprocessing(), masks=True), share=0.1)  # type: ignore[arg-type]
