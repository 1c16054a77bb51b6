"""Explanations of a model's predictions: patch importance maps, faithfulness tests, and figures of the weights.

`attention_and_logit_lens` captures a forward pass. `rollout_relevance_occlusion` uses the tokens for importance maps,
and tests the faithfulness of the maps. `pca_and_similarity` compares patches, positions and filters. `switch_off`
removes heads, layers or positions. `result` computes the requested methods. `draw` overlays maps on the image,
`explain_report` writes figures and report.html, and `explain_image` implements `vitreous.explain`. Only the names in
`methods` are imported immediately, because `vitreous --help` needs them and must not import torch.
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names
from vitreous.explanation.methods import CLASS_MAPS, HEAD_METHODS, IMAGE_METHODS, MAPS, METHODS, MapName, Method

if TYPE_CHECKING:
    from vitreous.explanation.explain_image import explain as explain
    from vitreous.explanation.result import Explanation as Explanation

_HOMES = {
    "explain": "vitreous.explanation.explain_image",
    "Explanation": "vitreous.explanation.result",
}
__all__ = [
    "CLASS_MAPS", "HEAD_METHODS", "IMAGE_METHODS", "MAPS", "METHODS", "Explanation", "MapName", "Method", "explain",
]  # fmt: skip
if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
