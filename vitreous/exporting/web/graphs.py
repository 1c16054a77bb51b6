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

from vitreous.explanation.attention_and_logit_lens import (
    CapturedForward,
    capture,
    capture_traced,
    first_tokens,
    lens_layers,
    pooling_weights,
)
from vitreous.explanation.rollout_relevance_occlusion import relevance
from vitreous.exporting.outputs import familiarity_scores
from vitreous.model.pooling import all_tokens
from vitreous.model.protocol import Model
from vitreous.model.tokens import Features
from vitreous.page.walk import layer_tensors, shared_tensors
from vitreous.runtimes.trace import quiet

IMAGE, TARGET, PATCH = "image", "target", "patch"  # names of the inputs


class PageGraph(nn.Module):
    """A graph for images of one size. Tensors that depend only on the size are computed once, before it is traced."""

    def __init__(self, model: Model):
        super().__init__()
        self.model, self.layers = model, capture(model, example_image(model)).layers

    def capture(self, image: Float[Tensor, "1 c h w"]) -> CapturedForward:
        return capture_traced(self.model, image, self.layers)


class PageOutputs(PageGraph):
    """Forward pass that also returns attention and the features of each layer, one layer after the other."""

    def forward(self, image: Float[Tensor, "1 c h w"]) -> dict[str, Tensor]:
        model, attention, features = self.model, list[Tensor](), list[Features]()
        tokens = first_tokens(model, image)
        for layer in self.layers:
            if layer.merge is not None:
                tokens = layer.merge.merged(tokens)
            weights, tokens = layer.explicit_step(tokens)
            attention.append(layer.rows(weights).flatten())
            features.append(model.output_features(tokens, layer.layout))
        outputs = {
            "attention": torch.cat(attention),
            "features": torch.cat([all_tokens(each).flatten() for each in features]),
            "pooling": pooling_weights(model, features[-1])[0],
        }
        if model.config.num_classes:
            read = [features[layer] for layer in lens_layers(model.config, None)]
            outputs["lens"] = torch.cat([model.classify(each) for each in read])  # last row: the logits of the model
        if model.config.calibration is not None and model.familiarity is not None:
            outputs["familiarity"] = familiarity_scores(model.familiarity, model.pool_features(features[-1]))
        return outputs


class Relevance(PageGraph):
    """Relevance of each patch for one class."""

    def forward(self, image: Float[Tensor, "1 c h w"], target: Int[Tensor, "1"]) -> dict[str, Tensor]:
        return {"relevance": relevance(self.capture(image), target).flatten()}


class Walk(PageGraph):
    """Tensors of one patch. Those of the layers are flattened, one layer after the other; see `walk_shapes`."""

    def forward(self, image: Float[Tensor, "1 c h w"], patch: Int[Tensor, "1"]) -> dict[str, Tensor]:
        captured = self.capture(image)
        layers = [layer_tensors(captured, layer, patch) for layer in range(len(captured.layers))]
        joined = {
            name: torch.cat([tensors[name].flatten() for tensors in layers if name in tensors])
            for name in dict.fromkeys(name for tensors in layers for name in tensors)
        }
        return shared_tensors(captured, patch) | joined


def walk_shapes(captured: CapturedForward) -> list[dict[str, list[int]]]:
    """Return the shapes of the tensors of each layer in the outputs of `Walk`."""
    patch = torch.zeros(1, dtype=torch.int64)
    layers = (layer_tensors(captured, layer, patch) for layer in range(len(captured.layers)))
    return [{name: list(tensor.shape) for name, tensor in tensors.items()} for tensors in layers]


def example_image(model: Model) -> Float[Tensor, "1 c h w"]:
    return torch.zeros(1, model.config.channels, *model.config.image_size)


def export_outputs(model: Model) -> Any:
    """Return the ONNX model of `PageOutputs`."""
    return _export(PageOutputs(model).eval(), {IMAGE: example_image(model)})


def export_relevance(model: Model) -> Any:
    """Return the ONNX model of `Relevance`. The graph contains the gradients."""
    inputs = {IMAGE: example_image(model), TARGET: torch.zeros(1, dtype=torch.int64)}
    steps: Any = get_decompositions([torch.ops.aten.silu_backward])  # ONNX has no such operator
    traced = make_fx(Relevance(model).eval(), decomposition_table=steps)(*inputs.values())
    traced.graph.eliminate_dead_code()  # the outputs of layers that only their gradients use
    traced.recompile()
    return _export(traced.eval(), inputs)


def export_walk(model: Model) -> Any:
    """Return the ONNX model of `Walk`."""
    return _export(Walk(model).eval(), {IMAGE: example_image(model), PATCH: torch.zeros(1, dtype=torch.int64)})


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
