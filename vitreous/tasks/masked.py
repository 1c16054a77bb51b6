"""Self-supervised pre-training on masked patches: MAE and masked patch prediction (ViT paper, appendix B.1.2).

b: batch; n: patches.
"""

from dataclasses import replace
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import fail
from vitreous.common.rng import SampleRng
from vitreous.data import DataSet, Source
from vitreous.data.augment.batch import augment
from vitreous.data.loader import Batch, Reader, Request
from vitreous.inference.forward_pass import evaluation_mode
from vitreous.model import Model, ViTConfig
from vitreous.model.inputs import denormalise, normalise
from vitreous.model.masked import Filled, MaskedAutoencoder, MaskedPatchPrediction
from vitreous.model.patch import cut, uncut
from vitreous.report import plots
from vitreous.report.html import TaskReport, figures_section, samples_section
from vitreous.tasks.base import Choice, Finished
from vitreous.tasks.config import TrainConfig
from vitreous.tasks.unlabelled import Unlabelled
from vitreous.weights.load import Checkpoint

FIGURES = 6  # number of images in the reconstruction figure


class Masked(Unlabelled):
    """Base class of tasks that predict masked patches."""

    title: ClassVar[str]
    caption = "Validation images, their visible patches, and the model's predictions of the masked patches."
    random_sets = 1  # number of random numbers per patch
    muon = False

    def __init__(self, config: TrainConfig, model: Model):
        if not model.config.can_drop_patches:
            fail("model", config.model or str(config.init), f"a model that can drop patches for --task {config.task}")
        super().__init__(config, model)
        model.freeze_pooling()  # patches are predicted from patch features
        self.augmentation = replace(self.augmentation, mixup=0.0, cutmix=0.0)
        with next(model.parameters()).device:
            self._module = self.build_module()

    def build_module(self) -> nn.Module:
        """Build the module that contains the model and predicts masked patches."""
        raise NotImplementedError

    def predict(self, module: nn.Module, images: Tensor, unit: Tensor, numbers: Tensor) -> Filled:
        """Mask and predict patches. `unit`: images in [0, 1]; `numbers`: random numbers that select masked patches."""
        raise NotImplementedError

    def module(self) -> nn.Module:
        return self._module

    def prepare(self, batch: Batch) -> tuple[Tensor, ...]:
        rng = SampleRng(self.config.seed, batch.epoch, batch.keys)
        return self._inputs(augment(batch.images, rng, self.augmentation), rng, batch.labels)

    def prepare_evaluation(self, batch: Batch, device: torch.device) -> tuple[Tensor, ...]:
        """Return the inputs of `predict`. An image gets the same mask in every evaluation, so losses are comparable."""
        unit = batch.images.to(device, non_blocking=True).float() / 255
        return self._inputs(unit, SampleRng(self.config.seed, 0, batch.keys.cpu()), batch.labels)

    def _inputs(self, unit: Tensor, rng: SampleRng, labels: Tensor) -> tuple[Tensor, ...]:
        """Return the normalised images, the images in [0, 1], random numbers for the mask, and image weights."""
        (gh, gw), sets = self.model.config.grid, self.random_sets
        numbers = rng.to(unit.device).uniform("hidden", sets * gh * gw).view(-1, sets, gh * gw)
        readable = (labels >= 0).float().to(unit.device, non_blocking=True)
        return normalise(unit, self.model.config.preprocessing), unit, numbers, readable

    def losses(self, module: nn.Module, *inputs: Tensor) -> Float[Tensor, "b"]:
        return self.predict(module, *inputs).losses

    def report(self, run: Finished) -> TaskReport:
        metrics = run.results.metrics()
        images = self.reconstructions(run.module, run.source)
        figures = []
        if run.draw:
            figures = [(self.caption, run.folder / "reconstructions.png")]
            captions = ["image", "visible", "predicted"] * (len(images) // 3)
            plots.grid(run.folder / "reconstructions.png", images, captions, columns=6)
        return TaskReport(
            f"loss {metrics['loss']:.4f} on {metrics['count']:,} images",
            f"{self.title}, without labels, evaluated on the {run.split} split",
            {"loss": metrics["loss"]},
            [samples_section(run.folder, self.samples(run.first_batch), draw=run.draw), figures_section(figures)],
        )

    def reconstructions(self, module: nn.Module, source: Source) -> list[Tensor]:
        """Return a few images, each followed by its visible patches and its reconstruction."""
        config, device = self.model.config, next(module.parameters()).device
        indices = torch.arange(min(FIGURES, len(source)))
        reader = Reader(source, config.image_size, config.channels, config.preprocessing)
        images, unit, numbers, _ = self.prepare_evaluation(reader[Request(0, indices, indices)], device)
        with evaluation_mode(module):
            filled = self.predict(module, images, unit, numbers)
        size, grid, hidden = config.patch_size, config.grid, filled.hidden[..., None]
        patches, predicted = cut(unit, size), self.to_unit(filled.patches)
        visible, whole = patches.masked_fill(hidden, 0.5), torch.where(hidden, predicted, patches)
        rows = [unit, uncut(visible, size, grid), uncut(whole, size, grid)]
        shown = [(row.clamp(0, 1) * 255).round().to(torch.uint8).cpu() for row in rows]
        return [row[i] for i in range(len(indices)) for row in shown]

    def to_unit(self, patches: Tensor) -> Tensor:
        """Convert predicted patches to values in [0, 1]."""
        return patches


class Mae(Masked):
    """Masked autoencoder (arXiv 2111.06377): a lightweight decoder predicts the pixels of the masked patches."""

    title = "Masked autoencoding"
    caption = f"{Masked.caption} Predicted patches are normalised; their mean and contrast are taken from the image."
    options = frozenset({"mask_rate", "decoder_width", "decoder_depth"})

    @classmethod
    def choose_options(cls, config: TrainConfig, data: DataSet, init: Checkpoint | None) -> list[Choice]:
        model, given = cls.planned_config(config, data, init), config.masking
        if not model.can_drop_patches:  # rejected by the constructor of the task
            return []
        model = cast(ViTConfig, model)
        width, depth = given.decoder_shape(model)
        reason = f"for an encoder of width {model.width} and depth {model.depth}"
        choices = [Choice("decoder_width", width, reason)] if given.decoder_width is None else []
        return choices + ([Choice("decoder_depth", depth, reason)] if given.decoder_depth is None else [])

    def build_module(self) -> nn.Module:
        rate, (width, depth) = self.config.masking.mask_rate, self.config.masking.decoder_shape(self.model.config)
        return MaskedAutoencoder(self.model, 0.75 if rate is None else rate, width, depth, max(width // 32, 1))

    def predict(self, module: nn.Module, images: Tensor, unit: Tensor, numbers: Tensor) -> Filled:
        return module(images, numbers[:, 0])

    def to_unit(self, patches: Tensor) -> Tensor:
        size, grid, preprocessing = (getattr(self.model.config, key) for key in ("patch_size", "grid", "preprocessing"))
        return cut(denormalise(uncut(patches, size, grid), preprocessing).float() / 255, size)


class Mpp(Masked):
    """Masked patch prediction (ViT paper, appendix B.1.2): predicts the colours or pixels of masked patches."""

    title = "Masked patch prediction"
    random_sets = 3
    options = frozenset({"mask_rate", "mpp_target"})

    def build_module(self) -> nn.Module:
        masking = self.config.masking
        return MaskedPatchPrediction(self.model, masking.mpp_target, masking.mask_rate or 0.5)

    def predict(self, module: nn.Module, images: Tensor, unit: Tensor, numbers: Tensor) -> Filled:
        return module(images, unit, numbers)
