"""Reader and writer for transformers' preprocessor_config.json.

A model is loaded with the image size of its position table. If the processor uses another size (for DINOv2, 224 instead
of 518), that size is recorded in the provenance; to use it, call `load(..., image_size=224)`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from vitreous.common.checks import Size
from vitreous.common.untrusted_files import read_json_object
from vitreous.model.base_config import ModelConfig
from vitreous.model.centre_crop import scaled
from vitreous.model.config import ViTConfig
from vitreous.model.options import CLIP, IMAGENET, Geometry, Preprocessing
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.huggingface.config import Family, JsonFields
from vitreous.weights.formats.write_checks import range_differences, resize_differences
from vitreous.weights.io.errors import BadCheckpoint

FILE = "preprocessor_config.json"

# Defaults of the processors, by the prefix of their class names.
HALVES = (0.5, 0.5, 0.5)
CROPPED = {"size": {"shortest_edge": 224}, "crop_size": 224, "do_center_crop": True, "resample": 3}
CROPPED |= {"image_mean": CLIP.mean, "image_std": CLIP.std}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2, "image_mean": HALVES, "image_std": HALVES},
    "DeiT": {"size": 256, "crop_size": 224, "do_center_crop": True, "resample": 3}
    | {"image_mean": HALVES, "image_std": HALVES},
    "Bit": CROPPED,
    "CLIP": CROPPED,
    "DINOv3ViT": {"size": 224, "resample": 2, "image_mean": IMAGENET.mean, "image_std": IMAGENET.std},
    "Siglip": {"size": 224, "resample": 3, "image_mean": HALVES, "image_std": HALVES},
    "Siglip2": {"size": 256, "resample": 2, "image_mean": HALVES, "image_std": HALVES},
}

# Preprocessing of the published models, for weights without a preprocessor_config.json.
PUBLISHED: dict[Family, Preprocessing] = {
    "vit": Preprocessing(fit="squash", crop_fraction=1.0, interpolation="bilinear", geometry="huggingface"),
    "deit": replace(IMAGENET, fit="squash-crop", geometry="huggingface"),
    "vit_mae": replace(IMAGENET, fit="squash", crop_fraction=1.0, geometry="huggingface"),
    "vit_msn": replace(IMAGENET, fit="squash", crop_fraction=1.0, interpolation="bilinear", geometry="huggingface"),
    "dinov2": replace(IMAGENET, geometry="huggingface"),
    "dinov2_with_registers": replace(IMAGENET, geometry="huggingface"),
}
RESAMPLING: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}  # by Pillow's filter number
PIXEL = 1 / 255


# ---- Reading ---------------------------------------------------------------------------------------------------------


def infer_preprocessing(state: StateDict, builder: ConfigBuilder, usual: str, published: Preprocessing) -> None:
    """Read the preprocessing, or assume `published`. `usual` is the prefix of the model's processor class."""
    file = state.path / FILE
    if not file.is_file():
        builder.assume_preprocessing(f"default of the published models, because there is no {FILE}", published)
        return
    document = read_json_object(file, BadCheckpoint)
    fields = JsonFields(file, document)
    processor = fields.get(str, "image_processor_type", fields.get(str, "feature_extractor_type", ""))
    kind = next((kind for kind in DEFAULTS if processor.startswith((f"{kind}Image", f"{kind}Feature"))), usual)
    document = DEFAULTS[kind] | {key: value for key, value in document.items() if value is not None}
    preprocessing, size, differences = read_processor(file, document, shortest=kind in ("Bit", "CLIP"))
    if differences:
        builder.assume("; ".join(differences), preprocessing=preprocessing)
    else:
        builder.set(preprocessing=preprocessing)
    if size is not None and size != (native := builder.fields["image_size"]):
        reason = f"size of the position table; the processor uses {size[0]} x {size[1]} (pass image_size to use it)"
        builder.default(reason, image_size=native)


def read_processor(
    file: Path, document: Mapping[str, Any], shortest: bool
) -> tuple[Preprocessing, Size | None, list[str]]:
    """Return the preprocessing, image size and differences. If `shortest`, an integer `size` is the shorter side."""
    fields, differences = JsonFields(file, document), []
    number = fields.get(int, "resample", 3)
    if number not in RESAMPLING:
        differences.append(f"the processor uses Pillow filter {number}; Vitreous uses bicubic")
    mean, std = _scaled(fields)
    edge, resized = _resized(fields, shortest)
    crop = fields.size("crop_size", None) if fields.get(bool, "do_center_crop", False) else None
    fit: Literal["crop", "squash", "squash-crop"] = "crop" if edge else "squash-crop" if crop else "squash"
    if not fields.get(bool, "do_resize", True):
        differences.append("the processor does not resize images; Vitreous does")
    elif edge and not crop:
        differences.append("the processor does not crop images; Vitreous does")
    fraction = 1.0
    if crop:
        fraction = max(crop) / (edge or max(resized or crop))
        if not 0.01 <= fraction <= 1:
            differences.append(
                f"the processor crops from {document['size']} to {crop[0]} x {crop[1]}; Vitreous uses crop_fraction=1"
            )
            fraction = 1.0
    how = Preprocessing(mean, std, fit, fraction, RESAMPLING.get(number, "bicubic"), "huggingface")
    # Files written by Vitreous contain the exact fraction and geometry. They are used if they give the same sizes.
    exact, geometry = fields.get(float, "crop_fraction", fraction), fields.get(str, "geometry", "huggingface")
    if 0.01 <= exact <= 1 and geometry in get_args(Geometry):
        own = replace(how, crop_fraction=exact, geometry=cast(Geometry, geometry))
        how = own if not crop or scaled(crop, own) == scaled(crop, how) else how
    return how, crop or resized, differences


def _resized(fields: JsonFields, shortest: bool) -> tuple[int | None, Size | None]:
    """Return (shorter side, None) if the aspect ratio is kept, otherwise (None, (height, width))."""
    given = fields.document["size"]
    if isinstance(given, dict) and "shortest_edge" in given:
        edge = JsonFields(fields.path, given).get(int, "shortest_edge", 0)
    elif shortest and type(given) is int:
        edge = given
    else:
        return None, fields.size("size", None)
    if edge < 1:
        raise BadCheckpoint(f"{fields.path}: size must be at least 1, got {given!r}")
    return edge, None


def _scaled(fields: JsonFields) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std for pixels in [0, 1], regardless of the range that the processor uses."""
    factor = fields.get(float, "rescale_factor", PIXEL) if fields.get(bool, "do_rescale", True) else 1.0
    normed = fields if fields.get(bool, "do_normalize", True) else JsonFields(fields.path, {})
    mean, std = normed.numbers("image_mean", (0.0,)), normed.numbers("image_std", (1.0,))
    if factor <= 0 or min(std) <= 0:
        raise BadCheckpoint(f"{fields.path}: rescale_factor and image_std must be positive, got {factor:g} and {std}")
    if abs(factor / PIXEL - 1) > 1e-6:
        mean, std = tuple(x * PIXEL / factor for x in mean), tuple(x * PIXEL / factor for x in std)
    return mean[:1] if len(set(mean)) == 1 else mean, std[:1] if len(set(std)) == 1 else std


# ---- Writing ---------------------------------------------------------------------------------------------------------


def transformers_processor(config: ModelConfig) -> dict[str, Any]:
    """Return the preprocessor_config.json with which `AutoImageProcessor` applies the same preprocessing."""
    how, (height, width) = config.preprocessing, config.image_size
    kind = {"squash": "ViT", "squash-crop": "DeiT", "crop": "Bit", "pad": "Bit"}[how.fit]
    sides: dict[str, int] = {"height": height, "width": width}
    document: dict[str, Any] = {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": sides,
        "resample": next(number for number, name in RESAMPLING.items() if name == how.interpolation),
        "do_center_crop": how.fit != "squash",
        "do_rescale": True,
        "rescale_factor": PIXEL,
        "do_normalize": True,
        "image_mean": list(how.mean) * (config.channels if len(how.mean) == 1 else 1),
        "image_std": list(how.std) * (config.channels if len(how.std) == 1 else 1),
        "do_convert_rgb": config.channels == 3,
    }
    if how.fit != "squash":
        before = scaled((height, width), how)
        whole = {"height": before[0], "width": before[1]}
        document["size"] = whole if how.fit == "squash-crop" else {"shortest_edge": max(before)}
        document["crop_size"] = sides
    # Only read by Vitreous: the sizes above are rounded, and transformers rounds crop offsets differently.
    document |= {"crop_fraction": how.crop_fraction, "geometry": how.geometry}
    return document


def processor_preprocessing(config: ViTConfig) -> Preprocessing:
    """Return the preprocessing that transformers applies with the preprocessor_config.json written here."""
    how, size = config.preprocessing, config.image_size
    return replace(how, crop_fraction=max(size) / max(scaled(size, how)), geometry="huggingface")


def processor_differences(config: ViTConfig) -> list[str]:
    """Return one line per difference between the preprocessing of the config and that of transformers."""
    if config.preprocessing.fit == "pad":
        return ["images are padded in Vitreous and cropped in transformers' processors"]
    processors = "transformers' processors"
    resizing = resize_differences(config, processor_preprocessing(config), processors)
    return range_differences(config, processors) + resizing
