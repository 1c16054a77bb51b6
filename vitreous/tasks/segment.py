"""Semantic segmentation: one class per pixel.

b: batch; c: channels; h, w: height and width.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from vitreous.common.checks import fail
from vitreous.common.progress import Report, silent
from vitreous.common.rng import SampleRng
from vitreous.common.text import plural
from vitreous.data import Augmentation, Batch, DataSet, Source, open_masked
from vitreous.data.augment.batch import augment_with_masks
from vitreous.inference.mask_images import background_of, hex_colours, overlay
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model import Model, ModelConfig, Segmenter, SegmenterConfig
from vitreous.model.build import build_segmenter
from vitreous.model.config import EncoderConfig
from vitreous.model.inputs import denormalise, normalise
from vitreous.model.options import IGNORED, DecoderConfig, LinearDecoder, MaskDecoder, PyramidDecoder
from vitreous.report import plots
from vitreous.report.html import (
    Html,
    Section,
    TaskReport,
    bar,
    figures_section,
    inner,
    legend,
    name,
    percent,
    samples_section,
    swatch,
    table,
    tag,
)
from vitreous.tasks import base
from vitreous.tasks.base import EVALUATION_BATCH, FEW_IMAGES, SAMPLES, Choice, FineTuning, Finished, Task
from vitreous.tasks.config import Segmenting, TrainConfig
from vitreous.tasks.segmentation_metrics import SegmentEvaluation, segment_batches, segment_source
from vitreous.weights import Checkpoint, load_folder, provenance_of

SMALL = 96  # images up to this side in pixels use the small model and the padded crop
# Half the width of ViT-Lite, four layers and 8-pixel patches. On the shapes data set, this model reaches a mean IoU of
# 0.93 in two and a half minutes on two CPU cores.
FEW_PIXELS = {"patch_size": (8, 8), "width": 128, "depth": 4, "num_heads": 4, "mlp_width": 256} | FEW_IMAGES
FIGURES, PAIRS = 4, 10  # number of images per figure, and of rows in the table of confused classes


class Segment(Task):
    """Semantic segmentation with per-pixel cross-entropy and an optional Dice loss."""

    metric, train_metric = "miou", "pixel_accuracy"
    complete_checkpoint = masks = True
    cpu_batch, cpu_steps = 32, (300, 1_000)
    fine_tuning = FineTuning(side=336, batch_size=32, layer_decay=0.65, lr=1e-3)
    options = frozenset({*vars(Segmenting()), "mixup", "cutmix"})  # mask augmentation rejects mixup and cutmix
    next_steps = (
        "vitreous predict {best} {image} --out {folder}/predicted",
        "vitreous eval {best} --data {data}",
        "vitreous explain {best} {image} --out {folder}/explained",
    )

    model: Segmenter

    @classmethod
    def open_data(cls, config: TrainConfig, init: Checkpoint | None) -> DataSet:
        """Open images with masks. Classes keep the order of the checkpoint, so that the decoder can be reused."""
        checkpoint = base.checkpoint_config(config, init)
        order = checkpoint.labels if isinstance(checkpoint, SegmenterConfig) else ()
        where: dict[str, Any] = {"root": config.data_root, "val_fraction": config.val_fraction, "seed": config.seed}
        return open_masked(str(config.data), **where, ignore=config.segmenting.ignore, order=order)

    @classmethod
    def classes(cls, data: DataSet) -> tuple[str, ...]:
        return data.mask_classes

    @classmethod
    def choose_model(cls, config: TrainConfig, count: int, side: int, device: str) -> list[Choice]:
        if side > SMALL:
            return super().choose_model(config, count, side, device)
        choices = [Choice("model", "ViT-Lite-6/4", f"for images of about {side} pixels per side")]
        if not config.overrides:
            choices.append(Choice("overrides", FEW_PIXELS, "a narrow model with 8-pixel patches learns fastest"))
        return choices

    @classmethod
    def choose_options(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> list[Choice]:
        """Choose `cells` for a new linear decoder. If the checkpoint has a decoder, keep it."""
        options, planned = config.segmenting, base.planned_config(config, init)
        if options.decoder in ("mask", "pyramid") or options.cells or options.mask_blocks:
            return []
        if options.decoder is None and len(planned.backbone.pyramid_widths) > 1 and planned.backbone is planned:
            return [Choice("decoder", "pyramid", "for a model with several stages")]
        if init is None:
            return [Choice("cells", 8, "for outlines finer than a patch")]
        if options.decoder is None and isinstance(checkpoint := base.checkpoint_config(config, init), SegmenterConfig):
            known = checkpoint.labels == data.mask_classes
            reason = "from the checkpoint" if known else "as in the checkpoint; new weights because the classes differ"
            return [Choice("decoder", checkpoint.decoder, reason, apply=False)]
        return [Choice("cells", 4, "for outlines finer than a patch")]

    @classmethod
    def choose_augmentation(cls, config: TrainConfig, count: int, side: int) -> tuple[Augmentation, str]:
        crop = base.padded_if(side <= SMALL)
        return Augmentation(crop=crop, crop_scale=(0.35, 1.0), colour_jitter=0.3), "crop, flip and colour jitter"

    @classmethod
    def planned_config(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> ModelConfig:
        planned = base.planned_config(config, init)
        if not planned.backbone.has_attention:
            return planned.backbone
        encoder = segmenter_encoder(planned.backbone.with_classes(0), patch_dropout=0.0)
        return SegmenterConfig(encoder, decoder_for(config.segmenting, planned), len(data.mask_classes))

    @classmethod
    def build_model(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> Segmenter:
        """Build a segmenter. If the classes and the decoder match the checkpoint, reuse its segmenter."""
        classes, ids = data.mask_classes, data.train.mask_ids
        model = (
            base.build_preset(config, ())
            if init is None
            else init.model(base.image_size(config), overrides=base.model_fields(config)).float()
        )
        decoder = decoder_for(config.segmenting, model.config)
        if isinstance(model, Segmenter) and (model.config.labels, model.config.decoder) == (classes, decoder):
            model.config = dataclasses.replace(model.config, ids=ids)
            model.encoder.freeze_pooling()
            return model
        encoder = model.backbone
        if not encoder.config.has_attention:
            fail("model", config.model or str(config.init), "a Transformer for --task segment")
        encoder.replace_head(0)
        # All pixels are predicted, so do not centre-crop images, and drop patches only on request.
        preprocessing = dataclasses.replace(encoder.config.preprocessing, fit="crop", crop_fraction=1.0)
        encoder.config = segmenter_encoder(
            encoder.config, preprocessing=preprocessing, patch_dropout=config.patch_dropout or 0.0
        )
        segmenter = build_segmenter(SegmenterConfig(encoder.config, decoder, len(classes), classes, ids), encoder)
        vars(segmenter)["provenance"] = provenance_of(model)
        segmenter.encoder.freeze_pooling()  # the decoder reads patch features
        return segmenter

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        assert batch.masks is not None
        draws = SampleRng(self.config.seed, batch.epoch, batch.keys)
        images, masks = augment_with_masks(batch.images, batch.masks, draws, self.augmentation)
        return normalise(images, self.model.config.preprocessing), masks, (batch.labels >= 0).float()

    def loss(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        images, masks, weights = inputs
        scores = module(images)
        known = masks != IGNORED
        correct = ((scores.argmax(1) == masks) & known).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)
        losses = segmentation_loss(scores, masks, self.config.segmenting.dice)
        return (losses * weights).sum(), (correct * weights).sum()

    def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> SegmentEvaluation:
        config, device = self.model.config, next(module.parameters()).device
        return segment_batches(module, batches, device, config.preprocessing, config.labels, precision)

    def evaluate_best(
        self, model: Model, source: Source, rank: int, ranks: int, progress: Report = silent
    ) -> SegmentEvaluation:
        device = next(model.parameters()).device
        predictor = SegmentPredictor(model, device, batch_size=EVALUATION_BATCH)
        return segment_source(predictor, source, model.config.labels, rank, ranks, progress)

    @classmethod
    def eval_flags(cls, config: TrainConfig) -> list[str]:
        return ["--ignore", *config.segmenting.ignore] if config.segmenting.ignore else []

    def report(self, run: Finished) -> TaskReport:
        assert isinstance(run.results, SegmentEvaluation)
        metrics, classes, evaluation = run.results.metrics(), run.data.mask_classes, run.results
        colours = class_colours(classes)
        return TaskReport(
            f"mean IoU {metrics['miou']:.4f} on {plural(metrics['count'], 'image')}, pixel accuracy "
            f"{metrics['pixel_accuracy']:.4f}, boundary F {metrics['boundary_f']:.4f}",
            f"Segmentation into {len(classes)} classes, {run.evaluated_on}",
            {key: metrics[key] for key in ("miou", "pixel_accuracy", "boundary_f")},
            [
                Section("Classes", per_class(evaluation, colours)),
                _with_legend(samples_section(run.folder, self.samples(run.first_batch), draw=run.draw), colours),
                _with_legend(figures_section(_figures(run, evaluation) if run.draw else []), colours),
            ],
        )

    def samples(self, batch: Batch) -> UInt8[Tensor, "k c h w"]:
        """Return augmented training images with their masks overlaid."""
        images, masks, _ = self.prepare(batch)
        pixels = denormalise(images[:SAMPLES], self.model.config.preprocessing).cpu()
        background = background_of(self.model.config.labels)
        pairs = zip(pixels, masks[:SAMPLES].cpu().numpy(), strict=True)
        return torch.stack([_with_mask(_rgb(image), mask, background) for image, mask in pairs])


def segmenter_encoder(encoder: ModelConfig, **fields: Any) -> EncoderConfig:
    """Return the config of a segmenter's encoder with other values of those fields that it has."""
    known = {field.name for field in dataclasses.fields(encoder)}
    changed = dataclasses.replace(encoder, **{name: value for name, value in fields.items() if name in known})
    return cast(EncoderConfig, changed)  # SegmenterConfig checks the class


def decoder_for(options: Segmenting, start: ModelConfig | None) -> DecoderConfig:
    """Return the decoder that the options select. The default is the checkpoint's decoder or, without one, linear."""
    if isinstance(start, SegmenterConfig) and (options.decoder, options.cells, options.mask_blocks) == (None,) * 3:
        return start.decoder
    if options.decoder == "mask" or (options.decoder is None and options.mask_blocks is not None):
        return MaskDecoder(options.mask_blocks or 2)
    if options.decoder == "pyramid":
        return PyramidDecoder()
    return LinearDecoder(options.cells or 1)


# ---- Report ----------------------------------------------------------------------------------------------------------


def _figures(run: Finished, evaluation: SegmentEvaluation) -> list[tuple[str, Path]]:
    device = next(run.module.parameters()).device
    predictor = SegmentPredictor(load_folder(run.folder / "best").to(device))
    labelled = [index for index, _ in evaluation.worst(len(run.source))]
    first = [index for index in range(FIGURES) if index in set(labelled)]
    caption = f"Images of the {run.split} split with their true and predicted masks."
    figures = []
    for file, text, indices in (
        ("segments.png", caption, first),
        ("mistakes.png", "The images with the lowest pixel accuracy.", labelled[:FIGURES]),
    ):
        images = [image for index in indices for image in _triple(predictor, run.source, index)]
        plots.grid(run.folder / file, images, ["image", "truth", "prediction"] * len(indices), columns=6)
        figures.append((text, run.folder / file))
    return figures


def _triple(predictor: SegmentPredictor, source: Source, index: int) -> list[Tensor]:
    [result] = predictor([source.image(index)])
    assert result.pixels is not None
    assert result.mask is not None
    image = _rgb(torch.from_numpy(result.pixels).permute(2, 0, 1))
    masks = [_with_mask(image, mask, predictor.background) for mask in (source.mask(index), result.mask)]
    return [torch.from_numpy(image).permute(2, 0, 1), *masks]


def _rgb(image: Tensor) -> np.ndarray:
    return image.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _with_mask(image: np.ndarray, mask: np.ndarray, background: int | None) -> Tensor:
    return torch.from_numpy(overlay(image, mask, 0.6, background)).permute(2, 0, 1)


def class_colours(classes: Sequence[str]) -> dict[str, str]:
    """Return the colour of each class as `#rrggbb`."""
    return dict(zip(classes, hex_colours(classes), strict=True))


def _with_legend(section: Section, colours: Mapping[str, str]) -> Section:
    return Section(section.title, [*section.content, legend(colours)]) if section.content else section


def per_class(evaluation: SegmentEvaluation, colours: Mapping[str, str]) -> list[Html]:
    """Return a table of per-class metrics, sorted by IoU, and a table of the most confused class pairs."""
    text = (
        "IoU: correctly predicted pixels of a class, as a fraction of all pixels that belong to the class or were "
        "assigned to it. Accuracy: fraction of the pixels of a class that were predicted correctly. Boundary F: "
        "agreement of the outlines, within a few pixels. The worst classes come first."
    )
    rows = [
        [
            inner(swatch(colours[row.name]), name(row.name)),
            f"{row.pixels:,}",
            inner(bar(row.iou or 0), tag("span", percent(row.iou))),
            percent(row.accuracy),
            percent(row.boundary_f),
        ]
        for row in sorted(evaluation.per_class(), key=lambda row: (row.iou is None, row.iou))
    ]
    counts, names = evaluation.confusion(), evaluation.classes
    totals = counts.sum(1).clamp(min=1)
    pairs = [(int(counts[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j]
    worst = sorted((pair for pair in pairs if pair[0]), reverse=True)[:PAIRS]
    confused = [[name(names[i]), name(names[j]), f"{n:,}", f"{n / int(totals[i]):.1%}"] for n, i, j in worst]
    columns = ["true class", "predicted", "pixels", "% of true class"]
    return [
        tag("p", text),
        table(["class", "pixels", "IoU", "accuracy", "boundary F"], rows),
        *([table(columns, confused, 2, "Most confused")] if confused else []),
    ]


# ---- Loss ------------------------------------------------------------------------------------------------------------

Masks = UInt8[Tensor, "b h w"] | Int[Tensor, "b h w"]


def segmentation_loss(logits: Float[Tensor, "b k h w"], masks: Masks, dice: float = 0.0) -> Float[Tensor, "b"]:
    """Return the mean cross-entropy over the labelled pixels of each image, plus `dice` times the Dice loss."""
    pixels = F.cross_entropy(logits.float(), masks.long(), ignore_index=IGNORED, reduction="none")
    losses = pixels.sum((1, 2)) / (masks != IGNORED).sum((1, 2)).clamp(min=1)
    return losses + dice * dice_loss(logits, masks) if dice else losses


def dice_loss(logits: Float[Tensor, "b k h w"], masks: Masks) -> Float[Tensor, "b"]:
    """Return the soft Dice loss of each image, averaged over the classes that occur in its mask."""
    probabilities = logits.float().softmax(1) * (masks != IGNORED)[:, None]
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    member = masks[:, None] == classes
    shared = (probabilities * member).sum((2, 3))
    truth = member.sum((2, 3))
    scores = 2 * shared / (probabilities.sum((2, 3)) + truth).clamp(min=1e-6)
    present = (truth > 0).float()
    missing = (1 - scores) * present
    return missing.sum(1) / present.sum(1).clamp(min=1)
