import dataclasses
import io
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.decode import fit
from vitreous.infer import Predictor
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import IMAGENET, AttentionPool, GlobalAverage, NoPosition, Preprocessing
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT

COLOURS = {"red": (255, 30, 0), "green": (10, 200, 60), "blue": (0, 90, 140)}
RNG = np.random.default_rng(0)

RANDOM: dict[str, ViTConfig | ResNetConfig] = {
    "class token": ViTConfig(
        image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=64, num_classes=7
    ),
    "bit": ResNetConfig(image_size=(32, 48), stages=(1, 1), width=32, num_classes=7, preprocessing=IMAGENET),
}
RANDOM["grey"] = dataclasses.replace(RANDOM["class token"], channels=1)
RANDOM["distilled"] = dataclasses.replace(RANDOM["class token"], distillation_token=True)
RANDOM["mean"] = dataclasses.replace(RANDOM["class token"], pool=GlobalAverage("after"), preprocessing=IMAGENET)
RANDOM["attention pool"] = dataclasses.replace(RANDOM["class token"], pool=AttentionPool(), class_token=False)


def random_model(name: str) -> ViT | ResNet:
    model = build(RANDOM[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def planted(channels: int = 3, preprocessing: Preprocessing | None = None) -> ViT:
    """Names the strongest colour: the patches are their mean colours, the blocks do nothing, the head reads the norm.

    With one channel, "light" or "dark".
    """
    names = tuple(COLOURS) if channels == 3 else ("light", "dark")
    config = ViTConfig(
        image_size=(16, 24),
        channels=channels,
        patch_size=(8, 8),
        class_token=False,
        position=NoPosition(),
        width=4,
        depth=1,
        num_heads=1,
        mlp_width=4,
        pool=GlobalAverage(),
        num_classes=len(names),
        labels=names,
        preprocessing=preprocessing or Preprocessing(),
    )
    model = build(config)
    assert isinstance(model, ViT)
    with torch.no_grad():
        for parameter in (*model.encoder.parameters(), *model.patches.parameters(), *model.head.parameters()):
            parameter.zero_()
        weight = model.patches.projection.weight
        for i in range(channels):
            weight[i, i] = 1 / 64
        if channels == 1:
            weight[1, 0] = -1 / 64
        model.head.weight[:, : len(names)] = 4 * torch.eye(len(names))
    return model


def expected(colour: tuple[int, ...]) -> np.ndarray:
    """The planted model's probabilities for a picture of one colour."""
    x = np.array([(value / 255 - 0.5) / 0.5 for value in colour] + [0.0])
    normed = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    powers = np.exp(4 * normed[: len(colour)])
    return powers / powers.sum()


def save(array: np.ndarray, path: Path) -> Path:
    Image.fromarray(array).save(path, **({"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {}))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Noise in several sizes, shapes and formats."""
    sizes = [(50, 40), (40, 90), (24, 32), (200, 33), (13, 9), (64, 64), (31, 97)]
    return [
        save(RNG.integers(0, 256, (*size, 3), dtype=np.uint8), tmp_path / f"{i}{'.jpg' if i % 2 else '.png'}")
        for i, size in enumerate(sizes)
    ]


def probabilities(answers: list[Any]) -> np.ndarray:
    """In the order of the classes."""
    rows = [sorted(answer.predictions, key=lambda label: label.index) for answer in answers]
    return np.array([[label.probability for label in row] for row in rows])


# ---- The right answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".bmp"])
def test_the_right_answer_is_known(tmp_path: Path, ending: str) -> None:
    paths = [
        save(np.full((40 + 7 * i, 90, 3), colour, dtype=np.uint8), tmp_path / f"{name}{ending}")
        for i, (name, colour) in enumerate(COLOURS.items())
    ]
    answers = Predictor(planted())(paths)
    assert [answer.name for answer in answers] == [str(path) for path in paths]
    assert [answer.predictions[0].label for answer in answers] == list(COLOURS)
    assert [answer.predictions[0].index for answer in answers] == [0, 1, 2]
    for answer, colour in zip(answers, COLOURS.values(), strict=True):
        ranked = [label.probability for label in answer.predictions]
        assert ranked == sorted(ranked, reverse=True)
        np.testing.assert_allclose(
            probabilities([answer])[0], expected(colour), atol=0.03 if ending in (".jpg", ".webp") else 1e-5
        )


def test_a_grey_model_sees_grey(tmp_path: Path) -> None:
    light = save(np.full((30, 20, 3), (250, 220, 240), dtype=np.uint8), tmp_path / "light.jpg")
    dark = save(np.full((30, 20), 40, dtype=np.uint8), tmp_path / "dark.png")
    answers = Predictor(planted(channels=1), top=1)([light, dark])
    assert [[label.label for label in answer.predictions] for answer in answers] == [["light"], ["dark"]]


def test_preprocessing_is_the_models_own() -> None:
    """Red in the middle, broad blue edges: a crop sees red, the whole picture is mostly blue."""
    picture = np.zeros((16, 240, 3), dtype=np.uint8)
    picture[:] = (0, 0, 255)
    picture[:, 90:150] = (255, 0, 0)
    for fitting, answer in (("crop", "red"), ("squash", "blue")):
        preprocessing = Preprocessing(fit=fitting, crop_fraction=1.0)  # type: ignore[arg-type]
        [found] = Predictor(planted(preprocessing=preprocessing))(picture)
        assert found.predictions[0].label == answer


@pytest.mark.parametrize("name", RANDOM)
def test_as_the_model_says_by_hand(photos: list[Path], name: str) -> None:
    model = random_model(name).eval()
    config, how = model.config, model.config.preprocessing
    pixels = torch.stack([fit(p.read_bytes(), config.image_size, how, config.channels) for p in photos])
    shape = (1, -1, 1, 1)
    images = (pixels / 255 - torch.tensor(how.mean).view(shape)) / torch.tensor(how.std).view(shape)
    predictor = Predictor(model, device="cpu", top=100)
    with torch.no_grad():
        logits = model(images)
        pooled = (
            model.pool(model.features(images)) if isinstance(model, ViT) else model.feature_map(images).mean((2, 3))
        )
    torch.testing.assert_close(predictor.logits(photos), logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(predictor.embed(photos), pooled, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(probabilities(predictor(photos)), logits.softmax(-1), atol=1e-5)
    assert predictor.embed(photos).shape == (len(photos), predictor.width)


# ---- Alone, together, in any order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["class token", "grey", "bit"])
def test_the_same_alone_and_in_any_company(photos: list[Path], name: str) -> None:
    model = random_model(name)
    alone = probabilities(Predictor(model, top=7, batch_size=1)(photos))
    for batch_size, order in ((3, range(7)), (3, (4, 2, 6, 0, 1, 5, 3)), (32, (1, 1, 0))):
        together = probabilities(Predictor(model, top=7, batch_size=batch_size)([photos[i] for i in order]))
        np.testing.assert_allclose(together, alone[list(order)], atol=1e-5)


def test_every_way_to_hand_over_a_picture(photos: list[Path]) -> None:
    predictor = Predictor(random_model("class token"))
    path = photos[0]
    array = np.array(Image.open(path))
    ways: list[Any] = [path, str(path), path.read_bytes(), array, Image.open(path), Image.fromarray(array)]
    together = predictor(ways)
    for way, answer in zip(ways, together, strict=True):
        np.testing.assert_allclose(probabilities(predictor(way)), probabilities([answer]), atol=1e-6)
        np.testing.assert_allclose(probabilities([answer]), probabilities(together[:1]), atol=1e-6)
    names = [answer.name for answer in together]
    assert names == [str(path), str(path), "picture 2", "picture 3", str(path), "picture 5"]
    batch = np.stack([array, array[::-1]])
    assert len(predictor(batch)) == 2
    assert len(predictor(array[..., 0])) == 1
    assert predictor([]) == []
    assert predictor.embed([]).shape == (0, 32)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_an_image_of_pillows_is_seen_as_its_file_is(tmp_path: Path, mode: str, orientation: int) -> None:
    picture = RNG.integers(0, 256, (30, 50, 4), dtype=np.uint8)
    if mode == "I;16":
        image = Image.fromarray(RNG.integers(0, 65536, (30, 50), dtype=np.uint16))
    else:
        image = Image.fromarray(picture).convert("RGB" if mode in ("CMYK", "P") else "RGBA").convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    image.save(path, exif=exif)
    predictor = Predictor(random_model("class token"))
    from_file, from_image = predictor([path, Image.open(path)])
    assert from_file.error is None
    np.testing.assert_allclose(
        probabilities([from_image]), probabilities([from_file]), atol=0.02 if mode == "CMYK" else 1e-6
    )


# ---- What cannot be read ---------------------------------------------------------------------------------------------


def test_an_unreadable_picture_harms_no_other(tmp_path: Path, photos: list[Path]) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "cut.png").write_bytes(photos[0].read_bytes()[:200])
    cut = Image.open(io.BytesIO((tmp_path / "cut.png").read_bytes()))
    bad: list[Any] = [tmp_path / name for name in ("text.jpg", "empty.png", "folder.png", "cut.png", "missing.jpg")]
    bad += [b"", b"\xff\xd8\xff", np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8), cut]
    mixed: list[Any] = list(itertools.chain.from_iterable(itertools.zip_longest(bad, photos)))
    mixed = [picture for picture in mixed if picture is not None]
    predictor = Predictor(random_model("class token"), batch_size=3)
    answers = predictor(mixed)
    failed = [answer for answer in answers if answer.error is not None]
    assert len(failed) == len(bad)
    assert all(answer.predictions == () and answer.error and "\n" not in answer.error for answer in failed)
    reasons = {Path(answer.name).name: answer.error for answer in failed}
    assert reasons["missing.jpg"] == "No such file or directory"
    assert reasons["folder.png"] == "Is a directory"
    assert reasons["empty.png"] == "the file is empty"
    good = [answer for answer in answers if answer.error is None]
    np.testing.assert_allclose(probabilities(good), probabilities(predictor(photos)), atol=1e-5)
    assert all(answer.error for answer in predictor(bad))
    embeddings = list(predictor.stream_embeddings(mixed))
    assert [e.error for e in embeddings] == [answer.error for answer in answers]
    with pytest.raises(ValueError, match=r"empty.png: the file is empty"):
        predictor.embed([photos[0], tmp_path / "empty.png"])


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_picture_at_all_is_the_callers_mistake(photos: list[Path]) -> None:
    with pytest.raises(TypeError, match="a picture is int, but must be a path, bytes, a uint8 array or an image"):
        Predictor(random_model("class token"))([photos[0], 3])  # type: ignore[list-item]


def test_a_model_whose_answer_is_no_number_says_so(photos: list[Path]) -> None:
    model = planted()
    with torch.no_grad():
        model.head.bias[0] = float("nan")
        model.norm.bias[0] = float("inf")
    predictor = Predictor(model)
    assert {answer.error for answer in predictor(photos)} == {"the model's answer is not a number"}
    assert {answer.error for answer in predictor.stream_embeddings(photos)} == {"the model's answer is not a number"}


def test_what_cannot_work_is_said_at_once() -> None:
    config = RANDOM["class token"]
    headless = build(dataclasses.replace(config, num_classes=0))
    with pytest.raises(ValueError, match="no head to classify with"):
        Predictor(headless).stream([])
    assert Predictor(headless).embed(np.zeros((9, 9, 3), np.uint8)).shape == (1, 32)
    with pytest.raises(ValueError, match="takes 4 channels"):
        Predictor(build(dataclasses.replace(config, channels=4)))
    with pytest.raises(ValueError, match="batch_size is 0"):
        Predictor(headless, batch_size=0)
    with pytest.raises(ValueError, match="device is 'cuda:99'"):
        Predictor(headless, device="cuda:99")


# ---- Options ---------------------------------------------------------------------------------------------------------


def test_flip_averages_with_the_mirror_image() -> None:
    how = Preprocessing(crop_fraction=1.0)
    config = dataclasses.replace(RANDOM["class token"], preprocessing=how)
    model = build(config)
    model.load_state_dict(random_model("class token").state_dict())
    pictures = RNG.integers(0, 256, (5, 24, 32, 3), dtype=np.uint8)  # of the model's size: nothing is resized
    mirrored = pictures[:, :, ::-1]
    plain, flipped = Predictor(model, top=7), Predictor(model, top=7, flip=True)
    mean = (probabilities(plain(pictures)) + probabilities(plain(mirrored))) / 2
    assert np.abs(mean - probabilities(plain(pictures))).max() > 0.01
    np.testing.assert_allclose(probabilities(flipped(pictures)), mean, atol=1e-6)
    np.testing.assert_allclose(flipped.logits(pictures).softmax(-1), mean, atol=1e-6)
    torch.testing.assert_close(flipped.embed(pictures), (plain.embed(pictures) + plain.embed(mirrored)) / 2)


def test_bfloat16_is_close_and_leaves_the_callers_model(photos: list[Path]) -> None:
    for name in ("bit", "attention pool"):
        model = random_model(name).train()
        rough, exact = Predictor(model, precision="bf16"), Predictor(model)
        assert rough.embed(photos).dtype == torch.float32
        error = (rough.embed(photos) - exact.embed(photos)).norm() / exact.embed(photos).norm()
        assert 0 < error < 0.05
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        stored = random_model(name).bfloat16()
        assert Predictor(stored).dtype == torch.float32
        assert len(Predictor(stored)(photos)) == len(photos)
        assert {parameter.dtype for parameter in stored.parameters()} == {torch.bfloat16}


def test_evaluation_mode_in_every_run(photos: list[Path]) -> None:
    config = dataclasses.replace(RANDOM["class token"], patch_dropout=0.5)
    predictor = Predictor(model := build(config), device="cpu")
    before = predictor.logits(photos)
    model.train()  # as a training loop does between two evaluations
    assert torch.equal(predictor.logits(photos), before)
    assert predictor.model is model


@pytest.mark.usefixtures("unchecked")
def test_compiled_batches_have_one_size(photos: list[Path]) -> None:
    model = random_model("class token")
    sizes = set()
    model.register_forward_pre_hook(lambda _, arguments: sizes.add(len(arguments[0])))
    with torch.compiler.set_stance("force_eager"):  # as compiled, without waiting for a compiler
        compiled = Predictor(model, compile=True, batch_size=4, device="cpu")
        torch.testing.assert_close(
            compiled.logits(photos), Predictor(model, device="cpu").logits(photos), atol=1e-5, rtol=1e-5
        )
    assert sizes == {4, 7}


def test_labels_without_names() -> None:
    [answer] = Predictor(random_model("class token"), top=2)(np.zeros((9, 9, 3), np.uint8))
    assert [label.label for label in answer.predictions] == [f"class {label.index}" for label in answer.predictions]
    assert len(answer.predictions) == 2


# ---- Bulk ------------------------------------------------------------------------------------------------------------


def test_a_stream_holds_a_few_batches_and_ends_when_it_is_left() -> None:
    taken = 0

    def endless() -> Iterator[np.ndarray]:
        nonlocal taken
        while True:
            taken += 1
            yield np.zeros((9, 9, 3), np.uint8)

    predictor = Predictor(random_model("class token"), batch_size=4, workers=2)
    stream = predictor.stream(endless())
    for given, _ in enumerate(itertools.islice(stream, 50), start=1):
        assert taken <= given + 3 * 4
    stream.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitreous-decode")]
    assert predictor.throughput.images == 50


def test_one_array_may_be_filled_again_and_again() -> None:
    def frames() -> Iterator[np.ndarray]:
        frame = np.zeros((32, 32, 3), np.uint8)
        for colour in list(COLOURS.values()) * 5:
            frame[:] = colour
            yield frame

    answers = Predictor(planted(), batch_size=4)(frames())
    assert [answer.predictions[0].label for answer in answers] == list(COLOURS) * 5


def test_throughput(photos: list[Path]) -> None:
    predictor = Predictor(random_model("class token"))
    predictor(photos)
    images, seconds = predictor.throughput
    assert images == 7
    assert seconds > 0
    assert predictor.throughput.images_per_second == images / seconds


def test_features_can_be_learned_from(photos: list[Path]) -> None:
    predictor = Predictor(random_model("class token"))
    rows = [e.vector for e in predictor.stream_embeddings(photos) if e.vector is not None]
    for features in (predictor.embed(photos), torch.stack(rows)):
        probe = torch.nn.Linear(32, 2)
        probe(features).sum().backward()
        assert probe.weight.grad is not None
