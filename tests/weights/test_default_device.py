"""Loading, saving, creating and running models with a default device other than the CPU ("meta")."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vitreous
from every_model import CONFIGS, EVERY, VITS, every_model, inputs_of, output_of
from foreign_models import EVERY as FILES
from foreign_models import loaded, written
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.model.build import build
from vitreous.model.vit import ViT
from vitreous.weights.load import describe
from vitreous.weights.native import provenance_of

pytestmark = pytest.mark.slow


@pytest.fixture
def _default_meta() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("case", FILES)
def test_models_are_loaded_onto_the_default_device(case: str, tmp_path: Path) -> None:
    file = written(case, tmp_path)
    real = vitreous.load(file)
    with torch.device("meta"):
        blank = vitreous.load(file)
        with torch.device("cpu"):
            again = vitreous.load(file)
    assert all(tensor.is_meta for tensor in blank.state_dict().values())
    assert not blank.training
    assert (blank.config, provenance_of(blank)) == (real.config, provenance_of(real))
    blank.load_state_dict(real.state_dict(), assign=True)  # rejects missing tensors and other shapes
    images = torch.randn(1, 3, *real.config.image_size)
    assert torch.equal(blank(images), real(images))
    assert torch.equal(again(images), real(images))


@pytest.mark.usefixtures("_default_meta")
def test_set_default_device_is_respected(tmp_path: Path) -> None:
    with torch.device("cpu"):
        file = written("timm, a pickle", tmp_path)
    model = vitreous.load(file, image_size=64, num_classes=3)
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert model(torch.empty(2, 3, 64, 64)).shape == (2, 3)
    assert describe(file).config == vitreous.load(file).config


@pytest.mark.parametrize("case", FILES)
def test_saved_files_do_not_depend_on_the_default_device(case: str, tmp_path: Path) -> None:
    model, name = loaded(case, tmp_path), FILES[case][1]
    for folder, device in (("one", "cpu"), ("other", "meta")):
        (tmp_path / folder).mkdir()
        with torch.device(device):
            vitreous.save(model, tmp_path / folder / name, format=case.split(",")[0], lossy=True)
    one, other = (vitreous.load(tmp_path / folder / name).state_dict() for folder in ("one", "other"))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())


@pytest.mark.parametrize("name", CONFIGS)
def test_models_are_created_on_the_default_device(name: str) -> None:
    real = build(CONFIGS[name])
    with torch.device("meta"):
        blank = build(CONFIGS[name])
    meta_state, real_state = blank.state_dict(), real.state_dict()
    assert all(tensor.is_meta for tensor in meta_state.values())
    assert {key: (x.shape, x.dtype) for key, x in meta_state.items()} == {
        key: (x.shape, x.dtype) for key, x in real_state.items()
    }
    assert blank(torch.empty(2, 3, 24, 32, device="meta")).shape == real(torch.zeros(2, 3, 24, 32)).shape


@pytest.mark.parametrize("name", EVERY)
def test_models_compute_on_their_own_device(name: str) -> None:
    model, inputs = every_model(name), inputs_of(name)
    outputs = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            found = [output_of(model.eval()(*inputs))]
            if name in VITS:
                assert isinstance(model, ViT)
                resized = model.resized((48, 32))
                found += [*model.features(*inputs)[:2], *model.attention(*inputs), *capture(model, *inputs).states]
                found += [resized(torch.nn.functional.interpolate(inputs[0], (48, 32)))]
            torch.manual_seed(1)
            found += [output_of(model.train()(*inputs))]
            outputs.append(found)
    assert all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))
