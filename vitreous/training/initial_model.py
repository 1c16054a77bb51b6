"""The model that a run starts from, and which of its weights it learns."""

import dataclasses
from typing import Any

from vitreous.common.checks import Size, as_size, fail
from vitreous.common.codec import parse_fields
from vitreous.data.sources.base import DataSet
from vitreous.model.build import build, build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig
from vitreous.model.kinds import AnyConfig, AnyModel
from vitreous.model.options import DecoderConfig, LinearDecoder, MaskDecoder, Preprocessing
from vitreous.model.presets import configure
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter
from vitreous.model.vit import ViT
from vitreous.training.config import Segmenting, TrainConfig
from vitreous.training.lora import add_lora
from vitreous.weights.adapt import provenance_of
from vitreous.weights.hub import is_hub
from vitreous.weights.load import describe, load, load_encoder


def build_model(config: TrainConfig, data: DataSet) -> AnyModel:
    """A preset or a checkpoint, with a head for the classes at hand, or with none where there is nothing to name."""
    if config.task == "segment":
        return _segmenter(config, data.mask_classes, data.train.mask_ids)
    classes = data.classes if config.task == "classify" else ()
    if config.init is None:
        return _preset(config, classes)
    model = load_encoder(config.init, _size(config), _regularisation(config)).float()
    if model.config.labels != classes or model.config.num_classes != len(classes):
        model.replace_head(len(classes), classes)
    return model


def start_config(config: TrainConfig) -> AnyConfig | None:
    """Of the checkpoint that the run starts from, with what the run says of it."""
    return None if config.init is None else describe(config.init, parse_fields(config.set)).config


def check_start(config: TrainConfig) -> None:
    """What can be wrong with the model, before the data is looked at."""
    if config.init is not None:
        if not is_hub(config.init) and not config.init.exists():
            describe(config.init)  # which says what is not there
    elif config.model is not None:
        configure(config.model, None, _size(config), _regularisation(config))


def _preset(config: TrainConfig, classes: tuple[str, ...]) -> ViT | ResNet:
    if config.model is None:
        fail("model", None, "the name of a preset, or --init a checkpoint")
    size, fields = _size(config), {"labels": classes} | _regularisation(config)
    if size is not None and max(size) <= 64:  # small pictures have no edges to spare
        fields = {"preprocessing": Preprocessing(crop_fraction=1.0)} | fields
    return build(configure(config.model, len(classes), size, fields))  # type: ignore[return-value]


def _segmenter(config: TrainConfig, classes: tuple[str, ...], ids: tuple[int, ...]) -> Segmenter:
    """A segmenter with the same classes goes on as it is, unless another decoder is asked for; others get a new one."""
    if config.init is None:
        model: AnyModel = _preset(config, ())
    else:
        model = load(config.init, image_size=_size(config), overrides=_regularisation(config)).float()
    decoder = decoder_for(config.segmenting, model.config)
    if isinstance(model, Segmenter) and (model.config.labels, model.config.decoder) == (classes, decoder):
        model.config = dataclasses.replace(model.config, ids=ids)
        return model
    encoder = encoder_of(model)
    if not isinstance(encoder, ViT):
        fail("model", config.model or str(config.init), "a ViT for --task segment: a ResNet has no patches to decode")
    encoder.replace_head(0)
    # A pixel at the edge counts as much as any other, so nothing is cut off there; nor is any patch left out.
    preprocessing = dataclasses.replace(encoder.config.preprocessing, fit="crop", crop_fraction=1.0)
    left_out = config.patch_dropout or 0.0
    encoder.config = dataclasses.replace(encoder.config, preprocessing=preprocessing, patch_dropout=left_out)
    segmenter = build_segmenter(SegmenterConfig(encoder.config, decoder, len(classes), classes, ids), encoder)
    vars(segmenter)["provenance"] = provenance_of(model)
    return segmenter


def model_config(config: TrainConfig, start: AnyConfig | None, data: DataSet) -> AnyConfig:
    """Of the model that the run will build, as far as its memory goes."""
    size = _size(config)
    if start is None:
        model: AnyConfig = configure(config.model or "", image_size=size, overrides=parse_fields(config.set))
    else:
        model = start if size is None else start.resized(size)
    encoder = model.encoder if isinstance(model, SegmenterConfig) else model
    if config.task != "segment" or not isinstance(encoder, ViTConfig):
        return encoder
    plain = dataclasses.replace(encoder, num_classes=0, labels=(), patch_dropout=0.0)
    return SegmenterConfig(plain, decoder_for(config.segmenting, model), len(data.mask_classes))


def decoder_for(how: Segmenting, start: AnyConfig | None) -> DecoderConfig:
    """What was asked for; else a segmenter's own. From scratch, each patch is told apart in 8 x 8 parts."""
    if isinstance(start, SegmenterConfig) and (how.decoder, how.cells, how.mask_blocks) == (None, None, None):
        return start.decoder
    if how.decoder == "mask" or (how.decoder is None and how.mask_blocks is not None):
        return MaskDecoder(how.mask_blocks or 2)
    return LinearDecoder(how.cells or 1)


def _size(config: TrainConfig) -> Size | None:
    return as_size(config.image_size) if config.image_size else None


def _regularisation(config: TrainConfig) -> dict[str, Any]:
    """Fields of a model's config that the run decides."""
    fields: dict[str, Any] = {
        name: value
        for name, value in (("stochastic_depth", config.stochastic_depth), ("patch_dropout", config.patch_dropout))
        if value is not None
    }
    if config.dropout is not None:
        fields["dropout"] = {"kind": "Dropout", "embedding": config.dropout, "hidden": config.dropout}
    return fields | parse_fields(config.set)


def encoder_of(model: AnyModel) -> ViT | ResNet:
    """The part of a model that sees."""
    return model.encoder if isinstance(model, Segmenter) else model


def choose_weights(model: AnyModel, config: TrainConfig) -> None:
    """Which weights are learned."""
    if isinstance(model, Segmenter):
        model.encoder.pool.requires_grad_(False)  # of no use to pixels
    if config.train_only == "all":
        return
    if config.init is None:
        fail("train_only", config.train_only, "used with --init: random weights are not worth keeping as they are")
    encoder = encoder_of(model)
    encoder.requires_grad_(False)
    if config.train_only == "lora":
        if not isinstance(encoder, ViT) or config.parallel == "fsdp":
            fail("train_only", "lora", "used with a ViT and without --parallel fsdp")
        add_lora(encoder, config.lora_rank)
    encoder.head.requires_grad_(True)
    if isinstance(encoder, ViT) and encoder.distillation_head is not None:
        encoder.distillation_head.requires_grad_(True)
