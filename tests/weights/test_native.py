import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitreous
from vitreous.model import options
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.presets import PRESETS
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT
from vitreous.weights.native import (
    describe,
    is_checkpoint,
    load_folder,
    load_state,
    provenance_of,
    save_folder,
)
from vitreous.weights.tensors import BadCheckpoint


def thin(config: ViTConfig | ResNetConfig) -> ViTConfig | ResNetConfig:
    """The same parts, small: a few patches, two narrow layers, three named classes."""
    if isinstance(config, ResNetConfig):
        return dataclasses.replace(
            config, image_size=(32, 48), width=32, stages=(1, 1), num_classes=3, labels=("a", "b", "c")
        )
    stem = config.stem and dataclasses.replace(config.stem, stages=config.stem.stages and (1,) * 2, width=32)
    unit = [side * (stem.stride if stem else 1) for side in config.patch_size]
    return dataclasses.replace(
        config,
        image_size=(2 * unit[0], 3 * unit[1]),
        stem=stem,
        width=32,
        depth=2,
        num_heads=4,
        mlp_width=48,
        num_classes=config.num_classes and 3,
        labels=("a", "b", "c") if config.num_classes else (),
    )


KINDS = {repr(thin(config)): name for name, config in reversed(PRESETS.items())}  # one name for each kind of its own
MODELS = {name: thin(PRESETS[name]) for name in KINDS.values()}
MODELS |= {
    type(part).__name__: dataclasses.replace(MODELS["ViT-Ti/8"], **{field: part})
    for field, part in [
        ("position", options.Learned2d()),
        ("position", options.SinCos2d()),
        ("position", options.RelativeBias()),
        ("position", options.Rotary2d()),
        ("position", options.Conditional()),
        ("position", options.NoPosition()),
        ("pool", options.GlobalAverage("after")),
        ("pool", options.AttentionPool()),
        ("head", options.TanhHead(8)),
        ("head", options.MlpHead(8)),
    ]
}


def randomised(config: ViTConfig | ResNetConfig) -> ViT | ResNet:
    """No parameter is left at a value that another might have by chance."""
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model


def assert_same(one: ViT | ResNet, other: ViT | ResNet) -> None:
    assert one.config == other.config
    ones, others = one.state_dict(), other.state_dict()
    assert ones.keys() == others.keys()
    for name, tensor in ones.items():
        assert tensor.dtype == others[name].dtype
        assert torch.equal(tensor, others[name]), name


@pytest.fixture
def saved(tmp_path: Path, small: ViTConfig) -> Path:
    config = dataclasses.replace(small, labels=("a", "b", "c", "d", "e"))
    save_folder(randomised(config), tmp_path / "x", {"data": "digits", "metrics": {"top1": 0.5}})
    return tmp_path / "x"


def edit(folder: Path, change: Any) -> None:
    document = json.loads((folder / "config.json").read_text())
    change(document)
    (folder / "config.json").write_text(json.dumps(document))


# ---- There and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_is_bit_identical(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = randomised(MODELS[name]).to(dtype)
    save_folder(model, tmp_path / "x")
    loaded = load_folder(tmp_path / "x")
    assert_same(model, loaded)
    assert not loaded.training
    images = torch.randn(1, 3, *model.config.image_size, dtype=dtype)
    assert torch.equal(model(images), loaded(images))


def test_every_preset_belongs_to_a_kind_that_is_tested() -> None:
    assert {repr(thin(config)) for config in PRESETS.values()} <= {repr(config) for config in MODELS.values()}
    assert len(MODELS) < len(PRESETS)


def test_a_loaded_model_trains_and_its_file_stays(saved: Path) -> None:
    before = (saved / "model.safetensors").read_bytes()
    model = load_folder(saved)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.train()(torch.randn(2, 3, 24, 32)).square().sum().backward()
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in model.parameters())
    optimizer.step()
    assert not torch.equal(model.state_dict()["head.weight"], load_state(saved)["head.weight"])
    assert (saved / "model.safetensors").read_bytes() == before
    save_folder(model, saved)  # over the file that it is mapped from
    assert_same(model, load_folder(saved))


def test_the_files_are_for_everyone_who_may_read_their_folder(saved: Path) -> None:
    (saved.parent / "usual").write_text("")
    modes = {path.name: path.stat().st_mode for path in saved.iterdir()}
    assert modes == dict.fromkeys(
        ["model.safetensors", "config.json", "README.md"], (saved.parent / "usual").stat().st_mode
    )


def test_the_folder_may_be_named_by_its_files(saved: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        assert_same(load_folder(saved / name), load_folder(str(saved)))


# ---- Changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["ViT-Ti/8", "DINOv2-g/14-reg", "R26+ViT-S/32", "BiT-R50x1", "RelativeBias", "Learned2d"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_another_image_size(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = randomised(MODELS[name]).to(dtype)
    size = (model.config.image_size[0] * 2, model.config.image_size[1])
    save_folder(model, tmp_path / "x")
    loaded = load_folder(tmp_path / "x", image_size=size)
    assert_same(loaded, model.resized(size))
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    save_folder(loaded, tmp_path / "y")
    assert describe(tmp_path / "y").provenance["changes"] == [
        {"field": "image_size", "from": list(model.config.image_size), "to": list(size)}
    ]


@pytest.mark.parametrize(
    "name", ["ViT-Ti/8", "TanhHead", "MlpHead", "DeiT-Ti/16-distilled", "DINOv2-S/14", "BiT-R50x1"]
)
@pytest.mark.parametrize("classes", [0, 3, 7])
def test_a_fresh_head(tmp_path: Path, name: str, classes: int) -> None:
    model = randomised(MODELS[name]).bfloat16()
    save_folder(model, tmp_path / "x")
    loaded = load_folder(tmp_path / "x", num_classes=classes)
    linear = {"head": options.LinearHead()} if name == "TanhHead" else {}  # pre-logits belong to pre-training
    assert loaded.config == dataclasses.replace(model.config, num_classes=classes, labels=(), **linear)
    new, old = loaded.state_dict(), model.state_dict()
    for key in old:
        if "head" in key:
            assert key not in new or not torch.equal(new[key], old[key])
        else:
            assert torch.equal(new[key], old[key])
    pictures = torch.randn(1, 3, *model.config.image_size, dtype=torch.bfloat16)
    assert loaded(pictures).shape[1] == (classes or loaded(pictures).shape[1])
    save_folder(loaded, tmp_path / "y")
    assert_same(loaded, load_folder(tmp_path / "y"))
    assert {"field": "head", "to": "new"} in describe(tmp_path / "y").provenance["changes"]


def test_overrides_change_what_has_no_shape(saved: Path) -> None:
    model = load_folder(saved, overrides={"num_heads": 2, "norm_eps": 1e-5, "dropout": options.Dropout(hidden=0.5)})
    assert (model.config.num_heads, model.config.norm_eps, model.config.dropout.hidden) == (2, 1e-5, 0.5)
    fields = [change["field"] for change in provenance_of(model)["changes"]]
    assert fields == ["num_heads", "norm_eps", "dropout"]
    with pytest.raises(ValueError, match=r"position.table is \[3, 4, 32\], but must be \[6, 4, 32\]"):
        load_folder(saved, overrides={"image_size": (48, 32)})
    with pytest.raises(ValueError, match=r"'num_head' is not a field of ViTConfig \(did you mean 'num_heads'\?\)"):
        load_folder(saved, overrides={"num_head": 2})


# ---- Provenance ------------------------------------------------------------------------------------------------------


def test_provenance_is_kept_and_added_to(saved: Path) -> None:
    model = load_folder(saved)
    assert provenance_of(model)["data"] == "digits"
    save_folder(model, saved, {"seed": 3})
    provenance = describe(saved).provenance
    assert (provenance["data"], provenance["seed"]) == ("digits", 3)
    assert provenance_of(build(model.config)) == {}


def test_no_figure_costs_a_checkpoint(tmp_path: Path, small: ViTConfig) -> None:
    odd = {
        "nan": float("nan"),
        "inf": [np.float32("inf"), torch.tensor(2.0)],
        "count": np.int64(3),
        "path": Path("a/b"),
        "pair": (1, 2),
        5: {"flag": True, "none": None},
    }
    save_folder(build(small), tmp_path / "x", odd)  # type: ignore[arg-type]
    provenance = describe(tmp_path / "x").provenance
    del provenance["vitreous"]
    assert provenance == {
        "nan": None,
        "inf": [None, 2.0],
        "count": 3,
        "path": "a/b",
        "pair": [1, 2],
        "5": {"flag": True, "none": None},
    }


def test_labels_in_any_language_and_in_none(tmp_path: Path, small: ViTConfig) -> None:
    labels = ("猫", 'a "b" \\', "caf\udce9", "\n", "")  # the third as Python reads a folder whose name is not UTF-8
    save_folder(build(dataclasses.replace(small, labels=labels)), tmp_path / "x")
    assert load_folder(tmp_path / "x").config.labels == labels
    save_folder(build(dataclasses.replace(small, labels=("猫",) * 5)), tmp_path / "x")
    assert "猫" in (tmp_path / "x" / "config.json").read_text(encoding="utf-8")


def test_description(saved: Path) -> None:
    model = load_folder(saved)
    seen = describe(saved)
    assert seen.config == model.config
    assert seen.parameters == sum(p.numel() for p in model.parameters())
    assert seen.bytes == (saved / "model.safetensors").stat().st_size
    assert seen.dtypes == ("F32",)
    save_folder(model.bfloat16(), saved)
    assert describe(saved).dtypes == ("BF16",)


def test_the_card_is_about_this_model(saved: Path) -> None:
    card = (saved / "README.md").read_text()
    assert "\n# x\n" in card
    assert f"{describe(saved).parameters:,} parameters" in card
    assert "| top1 | 0.5 |" in card


# ---- What is not a checkpoint ----------------------------------------------------------------------------------------


def test_a_folder_of_something_else_is_not_deleted(tmp_path: Path, small: ViTConfig, saved: Path) -> None:
    model = build(small)
    (tmp_path / "pictures").mkdir()
    save_folder(model, tmp_path / "pictures")  # empty
    (tmp_path / "pictures" / "cat.jpg").write_bytes(b"meow")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architectures": ["ViTForImageClassification"]}')
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"pictures holds cat.jpg, which saving would delete"):
        save_folder(model, tmp_path / "pictures")
    with pytest.raises(ValueError, match=r"other holds a config.json that is not ours"):
        save_folder(model, tmp_path / "other")
    with pytest.raises(OSError, match="file is not a folder"):
        save_folder(model, tmp_path / "file")
    assert (tmp_path / "pictures" / "cat.jpg").exists()
    assert not is_checkpoint(tmp_path / "other")
    assert is_checkpoint(saved)


def test_a_folder_that_is_none_says_so_and_points_to_one(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"there is no checkpoint .*nowhere"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(BadCheckpoint, match=r"is not a checkpoint: it has no config.json$"):
        load_folder(tmp_path)
    saved.rename(tmp_path / "best")
    with pytest.raises(BadCheckpoint, match=r"there is no checkpoint .*bset \(did you mean 'best'\?\)$"):
        load_folder(tmp_path / "bset")
    with pytest.raises(
        BadCheckpoint, match=r"there is no checkpoint .*bets/last: '.*bets' does not exist \(did you .*'best'"
    ):
        vitreous.load(tmp_path / "bets" / "last")
    with pytest.raises(BadCheckpoint, match=r"has no config.json \(did you mean '.*best'\?\)"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"].update(widht=3), r"model.widht is not a field of ViTConfig \(did you mean 'width'\?\)"),
        (lambda d: d["model"].update(width=10**9), r"width is 1000000000, but must be a whole number from 1 to"),
        (lambda d: d["model"].update(width=2**16, mlp_width=2**20, depth=1024), r"about .* parameters, but must have"),
        (lambda d: d["model"].update(depth=1024), r"41 tensors, too few for the 1024 layers"),
        (lambda d: d["model"].update(depth=3), r"16 missing: encoder.blocks.2"),
        (lambda d: d["model"].update(width="32"), r"model.width is '32', but must be of type int"),
        (lambda d: d["model"].update(kind="Vit"), r"model.kind is 'Vit', but must be one of ViTConfig, ResNetConfig"),
        (lambda d: d["model"].update(labels=["a"]), r"labels has 1 names, but must have num_classes \(5\)"),
        (lambda d: d["model"].update(norm_eps=float("nan")), r"norm_eps is nan, but must be a number"),
        (lambda d: d.pop("model"), r"model is None, but must be an object whose kind is one of"),
        (lambda d: d.update(model=[]), r"model is \[\], but must be an object whose kind is one of"),
        (lambda d: d.update(format="timm"), r"says format 'timm', but must say 'vitreous'"),
        (lambda d: d.update(version=2), r"has version 2, but this Vitreous reads version 1"),
        (lambda d: d.update(provenence={}), r"'provenence' is not a field .* \(did you mean 'provenance'\?\)"),
        (lambda d: d.update(provenance=1), r"provenance is 1, but must be an object"),
    ],
)
def test_a_wrong_config_is_explained(saved: Path, change: Any, message: str) -> None:
    edit(saved, change)
    with pytest.raises(BadCheckpoint, match=message) as error:
        load_folder(saved)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "vitreous", ', "[" * 100_000, "1" * 5000, "\x00"])
def test_a_config_that_is_no_config(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"config.json (is not JSON|says format None)"):
        load_folder(saved)
    (saved / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadCheckpoint, match=r"config.json is not JSON"):
        load_folder(saved)


def test_a_huge_config_is_not_read(saved: Path) -> None:
    os.truncate(saved / "config.json", 1 << 40)
    with pytest.raises(BadCheckpoint, match="must have at most"):
        load_folder(saved)


def test_other_tensors_are_listed(saved: Path) -> None:
    state = load_state(saved)
    state["head.weight"] = torch.zeros(6, 32)
    state["head.bais"] = state.pop("head.bias")
    state["norm.bias"] = state["norm.bias"].long()
    save_file(state, saved / "model.safetensors")
    with pytest.raises(
        BadCheckpoint, match=r"1 missing: head.bias; 1 unexpected: head.bais .*; 1 of another shape: head"
    ) as e:
        load_folder(saved)
    assert "norm.bias is I64" in str(e.value)


def test_damaged_bytes_fail_by_name_or_not_at_all(saved: Path) -> None:
    """Whatever happens to the header: an error of ours, or a model of the right shapes."""
    whole = (saved / "model.safetensors").read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8
    generator = random.Random(0)
    problems = []
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(header)] = generator.randrange(256)
        (saved / "model.safetensors").write_bytes(
            damaged[: generator.choice([len(damaged), header, len(damaged) // 2])]
        )
        try:
            load_folder(saved)
        except BadCheckpoint as error:
            problems.append(str(error))
    assert len(problems) > 100
    assert all("\n" not in problem for problem in problems)


# ---- Crashes ---------------------------------------------------------------------------------------------------------

# One process that imports torch once and forks the writers that it kills; each version's tensors all hold its number.
KILLER = """
import itertools, os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.weights.native import load_folder, save_folder

path = sys.argv[1]
model = build(ViTConfig(image_size=(16, 16), width=64, depth=2, num_heads=2, mlp_width=64, num_classes=3))

def save(version):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(version)
    save_folder(model, path, {"version": version})

generator, seen = random.Random(0), set()
for round in range(20):
    told, tell = os.pipe()
    writer = os.fork()
    if writer == 0:
        for version in itertools.count(round * 1000):
            save(version)
            os.write(tell, b"saved")
    os.read(told, 1)
    time.sleep(generator.uniform(0, 0.05))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    loaded = load_folder(path)
    (value,) = {x for parameter in loaded.parameters() for x in parameter.unique().tolist()}
    assert loaded.provenance["version"] == value
    seen.add(value)
save(-1)
assert len(seen) == 20, seen
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
"""


def test_killed_while_saving(tmp_path: Path) -> None:
    """Twenty times at random moments: the checkpoint always loads, and is one that was saved, whole."""
    path = tmp_path / "folder" / "x"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLER, path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_killed_between_two_renames(saved: Path) -> None:
    before = load_folder(saved)
    saved.rename(saved.with_name(".x.old"))
    assert_same(load_folder(saved), before)


def test_a_disk_that_is_full(saved: Path, small: ViTConfig) -> None:
    """A limit on the size of files fails like a full disk; in a process of its own, as it holds for all of it."""
    before = load_folder(saved)
    code = (
        "import resource, sys; from vitreous.weights.native import *; model = load_folder(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, -1))\n"
        "try: save_folder(model, sys.argv[1])\n"
        "except OSError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code, saved], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("what was there before is intact\n"), run
    assert "could not write" in run.stdout
    assert run.stdout.count("\n") == 1
    assert_same(load_folder(saved), before)
    assert [path.name for path in saved.parent.iterdir()] == ["x"]
