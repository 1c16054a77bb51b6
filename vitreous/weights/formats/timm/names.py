"""Names of timm's architectures, in a config.json, in the metadata of a file, or in its path, and what they settle.

Some of timm's models have the same tensors and compute otherwise with them; timm itself tells them apart by name.
"""

import re
from pathlib import Path

from vitreous.weights.formats.base import Found

WIDTHS: dict[str, tuple[int, ...]] = {
    "tiny": (192,),
    "wee": (256,),
    "dwee": (256,),
    "pwee": (256,),
    "dpwee": (256,),
    "xsmall": (256,),
    "little": (320,),
    "dlittle": (320,),
    "small": (384,),
    "medium": (512,),
    "mediumd": (512,),
    "betwixt": (640,),
    "base": (768, 896),  # and "plus"
    "so150m": (896,),
    "so150m2": (832,),
    "large": (1024,),
    "intern300m": (1024,),
    "so400m": (1152,),
    "huge": (1280,),
    "giant": (1408, 1536),
    "giantopt": (1536,),
    "gigantic": (1664,),
}
WORD = (
    r"patch\d+|\d{3}|\d+x\d|r\d*|s\d+|p\d+|resnet\d+d|mci|reg\d+|gap|map|distilled|plus|xp|miil"
    r"|clip|quickgelu|siglip|dinov2|tipsv2|rpn|rope|mixed|ape"
)
ARCHITECTURE = re.compile(
    rf"(?:vit|deit3?|eva)_(?P<size>{'|'.join(WIDTHS)})(?:_(?:{WORD}))+|flexivit_(?P<flexible>small|base|large)"
    r"|test_vit[234]?"
)
# Where a name ends in a file's: before the tag of its training, a hash or a suffix.
END = re.compile(r"[.@-]")
GENERIC = re.compile(r"(model|pytorch_model|weights|checkpoint|model_best|last|best)([.-].*)?")
NEAREST_FOLDERS = 3  # in the hub's cache: the revision, `snapshots`, the model


def is_architecture(name: str, width: int) -> bool:
    """True if this is a name of timm's, of models of this width.

    >>> is_architecture("vit_base_patch16_224", 768), is_architecture("vit_base_patch16_224", 192)
    (True, False)
    >>> is_architecture("vit_base_patch16_of_mine", 768)
    False
    """
    match = ARCHITECTURE.fullmatch(name)
    size = match and (match["size"] or match["flexible"])
    return match is not None and (size is None or width in WIDTHS[size])


def architecture_of(found: Found) -> str:
    """The architecture of a checkpoint: from its config.json, its metadata or its path; "" if none names it."""
    if isinstance(stated := found.config.get("architecture"), str):
        return stated
    width = found.shape("patch_embed.proj.weight", 4)[0]
    names = names_in(Path(found.model_name)) + names_in(found.path)  # timm/NAME.TAG is a model's name too
    return next((name for name in names if is_architecture(name, width)), "")


def names_in(path: Path) -> list[str]:
    """Parts of a path that may name a model: the file's name, or, where that is any model's, those of its folders.

    >>> names_in(Path("vit_base_patch16_siglip_224.webli.safetensors"))
    ['vit_base_patch16_siglip_224']
    >>> names_in(Path("hub/models--timm--deit3_base_patch16_224.fb_in1k/snapshots/0a1b/model.safetensors"))[-1]
    'deit3_base_patch16_224'
    """
    parts = [path.name]
    if GENERIC.fullmatch(path.name):
        parts += [folder.name for folder in path.parents[:NEAREST_FOLDERS]]
    return [END.split(part.rpartition("--")[2])[0] for part in parts]
