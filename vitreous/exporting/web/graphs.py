"""ONNX graphs of the page: one forward pass with everything that the page shows, and relevance with its gradients.

Both graphs take a preprocessed image of a fixed size. The page computes the other results from these outputs.

p: prefix tokens; n: patches; t = p + n: tokens; d: width.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture_steps, pooling_weights
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.exporting.graph import quiet
from vitreous.exporting.outputs import familiarity_scores
from vitreous.model.encoder import EncoderLayer
from vitreous.model.tokens import Features
from vitreous.model.vit import ViT
from vitreous.page.results import first_attended, patch_pixels

IMAGE, TARGET = "image", "target"  # names of the inputs


class PageOutputs(nn.Module):
    """Forward pass that also returns attention, the features of each layer, and the tensors of the tour."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model

    def forward(self, image: Float[Tensor, "1 c h w"]) -> dict[str, Tensor]:
        model = self.model
        projected, grid = model.patchify(image)
        tokens = model.prefix(projected)
        embedded, layout = model.embed(projected, grid)
        layers = [EncoderLayer(model.encoder, index, layout, model.position) for index in range(model.config.depth)]
        states, attention = [embedded], []
        for layer in layers:
            weights, after = layer.explicit_step(states[-1])
            attention.append(weights)
            states.append(after)
        captured = CapturedForward(model, image, tuple(layers), tuple(states[:-1]), tuple(states[1:]))
        features = model.output_features(torch.cat(states[1:]), layout)  # layers as a batch
        pooled = model.pool_features(features)[-1:]
        outputs = {
            "attention": torch.cat(attention),
            "features": torch.cat([features.prefix, features.patches], dim=1),
            "pooling": pooling_weights(model, last(features))[0],
            "patches": patch_pixels(captured)[0],
            "projection": projected[0],
            "prefix": tokens[0],
            "position": embedded[0],
            "residual": first_attended(captured)[0],
            "mlp": states[1][0],
            "answer": pooled[0],
        }
        if model.config.num_classes:
            outputs["lens"] = model.classify(features)  # the last row has the logits of the model
        if model.config.calibration is not None and model.familiarity is not None:
            outputs["familiarity"] = familiarity_scores(model.familiarity, pooled)
        return outputs


class Relevance(nn.Module):
    """Relevance of each patch for one class."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model

    def forward(self, image: Float[Tensor, "1 c h w"], target: Int[Tensor, "1"]) -> dict[str, Tensor]:
        return {"relevance": relevance(capture_steps(self.model, image), target).flatten()}


def last(features: Features) -> Features:
    return Features(features.prefix[-1:], features.patches[-1:], features.grid)


def export_outputs(model: ViT) -> Any:
    """Return the ONNX model of `PageOutputs`."""
    image = torch.zeros(1, model.config.channels, *model.config.image_size)
    return _export(PageOutputs(model).eval(), {IMAGE: image})


def export_relevance(model: ViT) -> Any:
    """Return the ONNX model of `Relevance`. The graph contains the gradients."""
    image = torch.zeros(1, model.config.channels, *model.config.image_size)
    target = torch.zeros(1, dtype=torch.int64)
    traced = make_fx(Relevance(model).eval())(image, target)
    return _export(traced.eval(), {IMAGE: image, TARGET: target})


def _export(module: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """Export a module that returns a dict of outputs.

    The exporter must not fold constants, because the two graphs could not share the folded weights. Runtimes fold them.
    """
    with quiet(), torch.no_grad():
        arguments = tuple(inputs.values())
        names = list(module(*arguments))
        program = torch.onnx.export(
            module, arguments, input_names=list(inputs), output_names=names, dynamo=True, optimize=False, verbose=False
        )
    return cast(Any, program).model_proto
