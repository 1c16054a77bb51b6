"""Data sets of any size and small checkpoints, for tests of automatically chosen settings."""

from pathlib import Path
from typing import Any

import numpy as np

from vitreous import create
from vitreous.data.sources.base import ArraySource, DataSet
from vitreous.model.build import build_segmenter
from vitreous.model.config import SegmenterConfig
from vitreous.model.options import DecoderConfig
from vitreous.model.protocol import Model
from vitreous.model.vit import ViT
from vitreous.tasks.all_tasks import TASKS
from vitreous.tasks.base import open_init
from vitreous.training import TrainConfig
from vitreous.training.defaults import Chosen, choose
from vitreous.weights.load import save

TINY = {"depth": 1, "width": 32, "mlp_width": 32, "num_heads": 2}


def sample_images(count: int, side: int, name: str = "pictures", validation: int | None = None) -> DataSet:
    """Return a data set of `count` black images that share memory. By default, they are also the validation images."""
    images = np.broadcast_to(np.zeros((side, side, 3), dtype=np.uint8), (count, side, side, 3))
    source = ArraySource(images, np.zeros(count), ("cat", "dog"), name)
    source.mask_classes = ("ground", "cat", "dog")
    val = source if validation is None else ArraySource(images[:validation], np.zeros(validation), source.classes, name)
    return DataSet(name, source, val, None, "")


def chosen(
    count: int = 100,
    side: int = 64,
    device: str = "cpu",
    processes: int | None = None,
    validation: int | None = None,
    **fields: Any,
) -> Chosen:
    config = TrainConfig(**{"data": "pictures", "out": Path("run"), **fields})
    data = sample_images(count, side, validation=validation)
    return choose(config, data, device, *(() if processes is None else (processes,)))


def build_model(config: TrainConfig, data: DataSet) -> Model:
    """Build the model that a run with this config starts from."""
    return TASKS[config.task].build_model(config, data, open_init(config))


def checkpoint(folder: Path, decoder: DecoderConfig | None = None, side: int = 48, patch: int = 16) -> Path:
    """Save a small encoder, or a segmenter with this decoder, for the classes of `pictures`."""
    model: Model = create("ViT-Ti/16", num_classes=0, image_size=side, overrides=TINY | {"patch_size": patch})
    if decoder is not None:
        assert isinstance(model, ViT)
        model = build_segmenter(SegmenterConfig(model.config, decoder, 3, ("ground", "cat", "dog")))
    save(model, folder)
    return folder
