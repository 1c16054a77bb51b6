"""Model families and their parts.

`vit.py` composes patches, tokens, position, encoder, pooling and head into a Vision Transformer; `swin.py`,
`resnet.py` and `segmenter.py` are the other families, and `masked.py` adds decoders for pre-training. `config.py` and
`options.py` describe a model without importing torch, `presets.py` defines named configs, and `build.py` builds
modules from configs. Other packages use a model through `protocol.py`. Names are imported on first use; import the
options and the function `build` from their files. Equations, sections and appendices are those of the ViT paper (arXiv
2010.11929).
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from vitreous.model.base_config import ModelConfig as ModelConfig
    from vitreous.model.config import AnyConfig as AnyConfig
    from vitreous.model.config import ResNetConfig as ResNetConfig
    from vitreous.model.config import SegmenterConfig as SegmenterConfig
    from vitreous.model.config import ViTConfig as ViTConfig
    from vitreous.model.presets import PRESETS as PRESETS
    from vitreous.model.presets import configure as configure
    from vitreous.model.protocol import Model as Model
    from vitreous.model.protocol import UnsupportedModel as UnsupportedModel
    from vitreous.model.protocol import require_attention as require_attention
    from vitreous.model.resnet import ResNet as ResNet
    from vitreous.model.segmenter import Segmenter as Segmenter
    from vitreous.model.swin import Swin as Swin
    from vitreous.model.swin_config import SwinConfig as SwinConfig
    from vitreous.model.tokens import Features as Features
    from vitreous.model.vit import ViT as ViT

_HOMES = {
    "AnyConfig": "vitreous.model.config",
    "configure": "vitreous.model.presets",
    "Features": "vitreous.model.tokens",
    "Model": "vitreous.model.protocol",
    "ModelConfig": "vitreous.model.base_config",
    "PRESETS": "vitreous.model.presets",
    "require_attention": "vitreous.model.protocol",
    "ResNet": "vitreous.model.resnet",
    "ResNetConfig": "vitreous.model.config",
    "Segmenter": "vitreous.model.segmenter",
    "SegmenterConfig": "vitreous.model.config",
    "Swin": "vitreous.model.swin",
    "SwinConfig": "vitreous.model.swin_config",
    "UnsupportedModel": "vitreous.model.protocol",
    "ViT": "vitreous.model.vit",
    "ViTConfig": "vitreous.model.config",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:  # hidden from mypy, which would otherwise accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
