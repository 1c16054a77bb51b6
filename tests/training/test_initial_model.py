"""The model that a run starts from, the commands it proposes, and checks of its config."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitreous
from automatic_choices import build_model
from vitreous.common.codec import from_dict, to_dict
from vitreous.data.open import open_data
from vitreous.data.sources.base import DataSet
from vitreous.model.calibration import Calibration
from vitreous.model.options import AttentionPool, Gelu, Preprocessing
from vitreous.model.segmenter import Segmenter
from vitreous.tasks.config import with_fields
from vitreous.tasks.masked import Mae
from vitreous.tasks.segment import Segment
from vitreous.training import Augment, Distillation, Optim, Segmenting, TrainConfig
from vitreous.training.defaults import choose
from vitreous.training.run_results import next_commands
from vitreous.weights.load import find_tensors

SMALL = {"width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2}


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"data": "unused", "model": "ViT-Lite-6/4", "overrides": SMALL, **changes})


@pytest.fixture(scope="module")
def shapes() -> DataSet:
    return open_data("shapes:size=16,count=8,val=4")


@pytest.mark.parametrize(("size", "fraction"), [((32,), 1.0), ((64, 48), 1.0), ((96,), Preprocessing().crop_fraction)])
def test_small_images_are_not_centre_cropped(size: tuple[int, ...], fraction: float, shapes: DataSet) -> None:
    assert build_model(config(image_size=size), shapes).config.preprocessing.crop_fraction == fraction
    assert fraction == 1.0 or fraction < 1


def test_segmentation_does_not_crop_images(shapes: DataSet) -> None:
    model = build_model(config(task="segment", image_size=(96,)), shapes)
    assert isinstance(model, Segmenter)
    assert (model.config.preprocessing.fit, model.config.preprocessing.crop_fraction) == ("crop", 1.0)
    assert model.config.labels == shapes.mask_classes


def test_pooling_of_a_segmenter_is_frozen(shapes: DataSet) -> None:
    """The decoder reads patches, so pooling weights get no gradient and would only decay."""
    how = config(task="segment", image_size=(16,), overrides=SMALL | {"pool": AttentionPool(), "class_token": False})
    model = build_model(how, shapes)
    assert isinstance(model, Segmenter)
    assert isinstance(model.encoder.config.pool, AttentionPool)
    assert not any(weight.requires_grad for weight in model.encoder.pool.parameters())
    assert all(weight.requires_grad for weight in model.encoder.encoder.parameters())
    assert all(weight.requires_grad for weight in model.decoder.parameters())


def test_next_commands_ignore_the_same_classes(shapes: DataSet) -> None:
    how = config(task="segment", data="my shapes", seed=3, segmenting=Segmenting(ignore=("big square", "disc")))
    [evaluate] = [shlex.split(line) for line in next_commands(Path("run"), how, shapes, Segment) if " eval " in line]
    assert evaluate[evaluate.index("--ignore") + 1 :] == ["big square", "disc"]
    assert evaluate[evaluate.index("--data") + 1] == "my shapes"
    assert evaluate[evaluate.index("--seed") + 1] == "3"
    plain = next_commands(Path("run"), config(task="segment"), shapes, Segment)
    assert not any("--ignore" in line for line in plain)


def test_next_commands_do_not_use_unlabelled_data_as_labelled(tmp_path: Path) -> None:
    for i in range(4):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{i}.png")
    flat = open_data(str(tmp_path), labelled=False)
    how = config(task="mae", data=str(tmp_path))
    assert not any(str(tmp_path) in line for line in next_commands(Path("run"), how, flat, Mae))
    digits = next_commands(Path("run"), config(task="mae", data="digits"), open_data("digits", labelled=False), Mae)
    assert sum("--data digits" in line for line in digits) == 2


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_of_a_config_are_str_or_path(kind: type[str] | type[Path]) -> None:
    how = TrainConfig(data=kind("d"), init=kind("i.pt"), data_root=kind("r"), out=kind("o"))
    assert (how.data, how.init, how.data_root, how.out) == ("d", "i.pt", Path("r"), Path("o"))
    changed = with_fields(
        TrainConfig(), {"data": kind("d"), "init": kind("i.pt"), "data_root": kind("r"), "out": kind("o")}
    )
    assert changed == how
    assert from_dict(TrainConfig, to_dict(how)) == how
    assert Distillation(teacher=kind("t")).teacher == "t"


def test_other_types_of_paths_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"^init must be str or Path, got 3$"):
        with_fields(TrainConfig(), {"init": 3})


@pytest.mark.slow
@pytest.mark.parametrize("kind", [str, Path])
def test_train_accepts_str_and_path(kind: type[str] | type[Path], tmp_path: Path) -> None:
    vitreous.save(vitreous.create("ViT-Lite-6/4", overrides=SMALL), tmp_path / "start")
    how = TrainConfig(
        data=kind("digits"), init=kind(tmp_path / "start"), out=kind(tmp_path / "run"), image_size=(8,), steps=1
    )
    run = vitreous.train(how)
    assert run.folder == tmp_path / "run"
    metrics = vitreous.evaluate(
        kind(run.folder / "best"), "digits", probe="knn", data_root=kind(tmp_path), cache=kind(tmp_path / "cache")
    )
    assert metrics.count == 359
    assert list((tmp_path / "cache").iterdir())


WRONG_WORDS: list[tuple[type, dict[str, Any], str]] = [
    (TrainConfig, {"task": "clasify"}, r"task is 'clasify', .*did you mean 'classify'"),
    (TrainConfig, {"precision": "float32"}, r"precision is 'float32', but must be one of 'auto', 'fp32'"),
    (TrainConfig, {"parallel": "fspd"}, r"parallel is 'fspd', .*did you mean 'fsdp'"),
    (TrainConfig, {"batch_size": "automatic"}, r"batch_size is 'automatic', but must be one of 'auto'"),
    (Optim, {"optimizer": "adam"}, r"optimizer is 'adam', .*did you mean 'adamw'"),
    (Optim, {"schedule": "cosin"}, r"schedule is 'cosin'"),
    (Augment, {"crop": "pad"}, r"crop is 'pad'"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("part", "words", "message"), WRONG_WORDS, ids=[message[:12] for *_, message in WRONG_WORDS])
def test_invalid_choices_are_rejected_in_python_too(part: type, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**(words if part is TrainConfig else {part.__name__.lower(): part(**words)})).check()


def test_overrides_give_the_heads_of_a_foreign_checkpoint(shapes: DataSet, tmp_path: Path) -> None:
    """A width of 48 has no usual number of heads."""
    fields = {"width": 48, "num_heads": 6, "mlp_width": 48, "depth": 1, "mlp": {"kind": "Gelu", "approximation": "erf"}}
    vitreous.save(vitreous.create("ViT-Ti/4", overrides=fields), tmp_path / "x.pth", format="timm")
    how = config(data="shapes", model=None, init=tmp_path / "x.pth", overrides={"num_heads": 6})
    chosen = choose(how, shapes, "cpu").config
    assert build_model(chosen, shapes).config.num_heads == 6
    with pytest.raises(ValueError, match="number of heads"):
        choose(config(data="shapes", model=None, init=tmp_path / "x.pth", overrides={}), shapes, "cpu")


@pytest.mark.parametrize("task", ["classify", "segment", "mae"])
def test_checkpoint_is_described_and_read_once_per_run(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, opened = tmp_path / "x.pth", []
    overrides = {"width": 64, "num_heads": 1, "mlp_width": 64, "depth": 1, "mlp": Gelu("erf")}
    vitreous.save(vitreous.create("ViT-Ti/4", image_size=16, overrides=overrides), file, format="timm")

    def counted(path: Path, lazy: bool = False, part: str = "") -> Any:
        opened.append("describe" if lazy else "read")
        return find_tensors(path, lazy, part)

    monkeypatch.setattr("vitreous.weights.load.find_tensors", counted)
    flags = {"task": task, "steps": 1, "batch_size": 4, "workers": 0, "device": "cpu", "out": tmp_path / "run"}
    vitreous.train(data="shapes:size=16,count=8,val=4", init=file, **flags)
    assert opened == ["describe", "read"]


def test_a_calibration_belongs_to_the_weights_that_it_was_fitted_to(tmp_path: Path, shapes: DataSet) -> None:
    start = build_model(config(image_size=(16,)), shapes)
    calibrated = start.config.override({"calibration": Calibration(2.0, 100)})
    start.config = calibrated
    vitreous.save(start, tmp_path / "start")
    model = build_model(config(model=None, overrides={}, init=tmp_path / "start"), shapes)
    assert (model.config.labels, model.config.calibration) == (calibrated.labels, None)
