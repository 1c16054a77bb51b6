"""The model that a run starts from: a preset with random weights, or the checkpoint of --init."""

from typing import Any

from vitreous.common.checks import Size, as_size, fail
from vitreous.model.build import build
from vitreous.model.options import Dropout, Preprocessing
from vitreous.model.presets import configure
from vitreous.model.protocol import Model, ModelConfig
from vitreous.tasks.config import TaskConfig
from vitreous.weights.hub import is_hub
from vitreous.weights.load import describe, load_encoder


def build_encoder(config: TaskConfig, classes: tuple[str, ...]) -> Model:
    """Build or load a model with a head for these classes, or without a head if there are none."""
    if config.init is None:
        return build_preset(config, classes)
    model = load_encoder(config.init, image_size(config), model_fields(config)).float()
    if model.config.labels != classes or model.config.num_classes != len(classes):
        model.replace_head(len(classes), classes)
    return model


def build_preset(config: TaskConfig, classes: tuple[str, ...]) -> Model:
    """Build the preset of --model with random weights."""
    if config.model is None:
        fail("model", None, "the name of a preset, or --init a checkpoint")
    size, fields = image_size(config), {"labels": classes} | model_fields(config)
    if size is not None and max(size) <= 64:  # small images lose too much in a centre crop
        fields = {"preprocessing": Preprocessing(crop_fraction=1.0)} | fields
    return build(configure(config.model, len(classes), size, fields))


def checkpoint_config(config: TaskConfig) -> ModelConfig | None:
    """Config of the checkpoint of --init with the run's overrides; None without --init."""
    return None if config.init is None else describe(config.init, config.overrides).config


def planned_config(config: TaskConfig) -> ModelConfig:
    """Config of the model to be built, as far as it decides about memory."""
    size, checkpoint = image_size(config), checkpoint_config(config)
    if checkpoint is None:
        return configure(config.model or "", image_size=size, overrides=config.overrides)
    return checkpoint if size is None else checkpoint.resized(size)


def check_model(config: TaskConfig) -> None:
    """Raise if --model, --init or their overrides are invalid. This needs no data, so it comes first."""
    if config.init is not None:
        if not is_hub(config.init) and not config.init.exists():
            describe(config.init)  # raises an error that names the missing file
    elif config.model is not None:
        configure(config.model, None, image_size(config), model_fields(config))


def image_size(config: TaskConfig) -> Size | None:
    return as_size(config.image_size) if config.image_size else None


def model_fields(config: TaskConfig) -> dict[str, Any]:
    """Fields of the model's config that the run sets."""
    rates = {"stochastic_depth": config.stochastic_depth, "patch_dropout": config.patch_dropout}
    fields: dict[str, Any] = {name: rate for name, rate in rates.items() if rate is not None}
    if config.dropout is not None:
        fields["dropout"] = Dropout(embedding=config.dropout, hidden=config.dropout)
    return fields | dict(config.overrides)
