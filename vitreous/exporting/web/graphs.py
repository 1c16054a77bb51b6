"""ONNX graphs of the page: one forward pass, relevance with its gradients, and the walk of one patch.

All graphs take a preprocessed image of a fixed size. The page computes the other results from these outputs.

p: prefix tokens; n: patches; t = p + n: tokens; d: width.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from vitreous.explanation.attention_and_logit_lens import capture_steps, pooling_weights
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.exporting.outputs import familiarity_scores
from vitreous.model.encoder import EncoderLayer
from vitreous.model.tokens import Features
from vitreous.model.vit import ViT
from vitreous.page.walk import layer_tensors, shared_tensors
from vitreous.runtimes.trace import quiet

IMAGE, TARGET, PATCH = "image", "target", "patch"  # names of the inputs


class PageOutputs(nn.Module):
    """Forward pass that also returns attention and the features of each layer."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model

    def forward(self, image: Float[Tensor, "1 c h w"]) -> dict[str, Tensor]:
        model = self.model
        projected, grid = model.patchify(image)
        embedded, layout = model.embed(projected, grid)
        layers = [EncoderLayer(model.encoder, index, layout, model.position) for index in range(model.config.depth)]
        states, attention = [embedded], []
        for layer in layers:
            weights, after = layer.explicit_step(states[-1])
            attention.append(weights)
            states.append(after)
        features = model.output_features(torch.cat(states[1:]), layout)  # layers as a batch
        pooled = model.pool_features(features)[-1:]
        outputs = {
            "attention": torch.cat(attention),
            "features": torch.cat([features.prefix, features.patches], dim=1),
            "pooling": pooling_weights(model, last(features))[0],
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


class Walk(nn.Module):
    """Tensors of one patch. Those of the layers are stacked."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model

    def forward(self, image: Float[Tensor, "1 c h w"], patch: Int[Tensor, "1"]) -> dict[str, Tensor]:
        captured = capture_steps(self.model, image)
        layers = [layer_tensors(captured, layer, patch) for layer in range(self.model.config.depth)]
        stacked = {name: torch.stack([tensors[name] for tensors in layers]) for name in layers[0]}
        return shared_tensors(captured, patch) | stacked


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
    steps: Any = get_decompositions([torch.ops.aten.silu_backward])  # ONNX has no such operator
    traced = make_fx(Relevance(model).eval(), decomposition_table=steps)(image, target)
    return _export(traced.eval(), {IMAGE: image, TARGET: target})


def export_walk(model: ViT) -> Any:
    """Return the ONNX model of `Walk`."""
    image = torch.zeros(1, model.config.channels, *model.config.image_size)
    return _export(Walk(model).eval(), {IMAGE: image, PATCH: torch.zeros(1, dtype=torch.int64)})


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
