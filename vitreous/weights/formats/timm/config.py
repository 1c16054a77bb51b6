"""Reader and writer for timm's config.json, and timm's architecture names.

config.json contains an architecture name, changes to that architecture (`model_args`) and preprocessing
(`pretrained_cfg`). Some timm models have the same tensors but compute different outputs. They are distinguished by the
architecture name in config.json, in the metadata of the weight file, or in the path.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from vitreous.common.checks import Size
from vitreous.model import options
from vitreous.model.base_config import ModelConfig
from vitreous.model.centre_crop import scaled
from vitreous.model.config import ViTConfig
from vitreous.weights.formats.base import StateDict, how_to_set
from vitreous.weights.io.errors import BadCheckpoint

# ---- Architecture names ----------------------------------------------------------------------------------------------

# Size names by width.
SIZES = {
    192: ("tiny",),
    256: ("wee", "dwee", "pwee", "dpwee", "xsmall"),
    320: ("little", "dlittle"),
    384: ("small",),
    512: ("medium", "mediumd"),
    640: ("betwixt",),
    768: ("base",),
    832: ("so150m2",),
    896: ("base", "so150m"),  # base "plus"
    1024: ("large", "intern300m"),
    1152: ("so400m",),
    1280: ("huge",),
    1408: ("giant",),
    1536: ("giant", "giantopt"),
    1664: ("gigantic",),
    4096: ("7b",),
}
SIZE = "|".join(size for sizes in SIZES.values() for size in sizes)
WORD = (
    r"patch\d+|\d{3}|\d+x\d|r\d*|s\d+|p\d+|resnet\d+d|mci|reg\d+|gap|map|distilled|plus|xp|miil"
    r"|clip|quickgelu|siglip|dinov2|dinov3|qkvb|lingbot|tipsv2|rpn|rope|mixed|ape"
)
ARCHITECTURE = re.compile(
    rf"(?:vit|deit3?|eva(?:02)?)_(?P<size>{SIZE})(?:_(?:{WORD}))+|flexivit_(?P<flexible>small|base|large)|test_vit[234]?"
)
# End of the architecture in a file name, before a training tag, a hash or a suffix.
END = re.compile(r"[.@-]")
GENERIC = re.compile(r"(model|pytorch_model|weights|checkpoint|model_best|last|best)([.-].*)?")
NEAREST_FOLDERS = 3  # in the hub's cache: revision, `snapshots`, model


def is_architecture(name: str, width: int) -> bool:
    """Return True for the name of a timm architecture with this width.

    >>> is_architecture("vit_base_patch16_224", 768), is_architecture("vit_base_patch16_224", 192)
    (True, False)
    >>> is_architecture("vit_base_patch16_of_mine", 768)
    False
    """
    match = ARCHITECTURE.fullmatch(name)
    size = match and (match["size"] or match["flexible"])
    return match is not None and (size is None or size in SIZES.get(width, ()))


def architecture_of(state: StateDict) -> str:
    """Return the architecture name from config.json, the metadata or the path. Return "" if none names it."""
    if isinstance(stated := state.config.get("architecture"), str):
        return stated
    width = state.shape("patch_embed.proj.weight", 4)[0]
    names = names_in(Path(state.model_name)) + names_in(state.path)  # metadata may contain timm/NAME.TAG
    return next((name for name in names if is_architecture(name, width)), "")


# Architectures of timm's class `Eva`. All others in this file belong to `VisionTransformer`.
EVA = re.compile(r"vit_.*_(dinov3|dinov3_qkvb|lingbot)|eva02_.*|eva_giant_.*|vit_.*_rope_.*")


def is_eva(state: StateDict) -> bool:
    """Return True for a checkpoint of timm's class `Eva`. rope_ape, which has DeiT-III's names, needs its name."""
    names, block = state.tensors, "blocks.0"
    own = (f"{block}.attn.q_bias", f"{block}.attn.q_proj.weight", "rope.freqs")
    scaled = f"{block}.gamma_1" in names and "pos_embed" not in names
    if scaled or any(name in names for name in own):
        return True
    patch = names.get("patch_embed.proj.weight")  # needed for the name
    return patch is not None and patch.ndim == 4 and patch.numel() > 0 and bool(EVA.fullmatch(architecture_of(state)))


def names_in(path: Path) -> list[str]:
    """Return parts of a path that may name a model: the file name, plus folder names if the file name is generic."""
    parts = [path.name]
    if GENERIC.fullmatch(path.name):
        parts += [folder.name for folder in path.parents[:NEAREST_FOLDERS]]
    return [END.split(part.rpartition("--")[2])[0] for part in parts]


# Architectures whose tensors do not determine all properties. All others use exact GELU and the usual number of heads.
QUICK = re.compile(r"vit_.*_clip_quickgelu_\d+")
TANH = re.compile(r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*|vit_large_patch16_siglip_(gap_)?512")
SIXTEEN_HEADS = re.compile(r"vit_giantopt_.*|vit_base_patch16_gap_224")
TWO_HEADS = re.compile(r"test_vit2?")
# Architectures without positions for prefix tokens.
NO_ENTRIES = re.compile(r"(deit3|flexivit)_.*|vit_(?!so150m).*_(reg\d+|xp|ape)_.*")
# Unsupported architectures with the same tensors: norms after the layers, or rotary positions (Perception Encoder).
UNSUPPORTED = re.compile(r"vit_.*_rpn_.*|vit_pe_.*")
SWIGLU = re.compile(r"vit_giant_patch14_(reg\d+_)?(dinov2|tipsv2)")
ACTIVATIONS: dict[str, options.GeluApproximation] = {"gelu": "erf", "gelu_tanh": "tanh", "quick_gelu": "quick"}
# `Preprocessing.fit` for each `crop_mode` of timm.
FITS: dict[str, Literal["crop", "squash-crop", "pad"]] = {"center": "crop", "squash": "squash-crop", "border": "pad"}


# ---- Reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimmConfig:
    """timm's config.json. Without this file, properties follow from the architecture name."""

    path: Path
    architecture: str
    document: Mapping[str, Any]
    args: Mapping[str, Any]
    pretrained_cfg: Mapping[str, Any]

    @classmethod
    def of(cls, state: StateDict) -> "TimmConfig":
        document = state.config if isinstance(state.config.get("architecture"), str) else {}
        older = document if "mean" in document else {}  # older files have one flat object
        args, cfg = document.get("model_args") or {}, document.get("pretrained_cfg") or older
        for name, part in (("model_args", args), ("pretrained_cfg", cfg)):
            if not isinstance(part, dict):
                raise BadCheckpoint(f"{state.path}: {name} in config.json must be an object, got {part!r}")
        names = {
            "act_layer": args.get("act_layer"),
            "global_pool": args.get("global_pool", document.get("global_pool")),
        }
        names |= {name: cfg.get(name) for name in ("crop_mode", "interpolation")}
        for name, value in names.items():
            if value is not None and not isinstance(value, str):
                raise BadCheckpoint(f"{state.path}: {name} in config.json must be a string, got {value!r:.80}")
        if UNSUPPORTED.fullmatch(architecture := architecture_of(state)):
            raise BadCheckpoint(f"{state.path} is timm's {architecture}, which is not supported")
        if args.get("pool_include_prefix"):
            raise BadCheckpoint(
                f"{state.path} includes prefix tokens in its pooling (pool_include_prefix), which is not supported"
            )
        return cls(state.path, architecture, document, args, cfg)

    @property
    def is_known(self) -> bool:
        """True for a known timm architecture, whose name determines everything that `model_args` does not change."""
        return ARCHITECTURE.fullmatch(self.architecture) is not None

    @property
    def image_size(self) -> Size | None:
        """Native image size: `img_size` in `model_args` or, if missing, the input size of the preprocessing."""
        shape = self.pretrained_cfg.get("input_size") or []
        size = self.args.get("img_size", shape[1:] if isinstance(shape, list) else shape)
        sides = [size, size] if type(size) is int else size
        if not isinstance(sides, list) or len(sides) not in (0, 2) or not all(type(side) is int for side in sides):
            raise BadCheckpoint(f"{self.path}: img_size must be one or two integers, got {size!r}")
        return (sides[0], sides[1]) if sides else None

    @property
    def num_heads(self) -> int | None:
        known = {16: SIXTEEN_HEADS, 2: TWO_HEADS}
        usual = next((heads for heads, names in known.items() if names.fullmatch(self.architecture)), None)
        heads = self.args.get("num_heads", usual)
        if heads is not None and type(heads) is not int:
            raise BadCheckpoint(f"{self.path}: num_heads must be an integer, got {heads!r}")
        return heads

    @property
    def prefix_entries(self) -> bool | None:
        """True if prefix tokens have position embeddings, False if they have none, None if unknown."""
        if isinstance(without := self.args.get("no_embed_class"), bool):
            return not without
        return False if NO_ENTRIES.fullmatch(self.architecture) else None

    def check_gate(self) -> None:
        """Reject a gated MLP if the architecture does not use SwiGLU, because other gated MLPs have the same shapes."""
        if self.architecture and not SWIGLU.fullmatch(self.architecture):
            raise BadCheckpoint(
                f"{self.path} has a gated MLP, but timm's {self.architecture} has none, so the gate and its activation "
                f"are unknown. If it is SwiGLU, {how_to_set('mlp')}"
            )
        if (name := self.args.get("act_layer")) not in (None, "silu", "swish"):
            raise BadCheckpoint(f"{self.path}: act_layer of a gated MLP must be 'silu', got {name!r}")

    @property
    def approximation(self) -> options.GeluApproximation:
        """GELU variant, from `act_layer` or the architecture name."""
        special = {"gelu_tanh": TANH, "quick_gelu": QUICK}
        usual = next((name for name, names in special.items() if names.fullmatch(self.architecture)), "gelu")
        name = self.args.get("act_layer") or usual
        if name not in ACTIVATIONS:
            raise BadCheckpoint(f"{self.path}: act_layer must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
        return ACTIVATIONS[name]

    @property
    def pool(self) -> str | None:
        """Name of the pooling (`token`, `avg`, `map` or an unsupported name), or None if unspecified."""
        return self.args.get("global_pool", self.document.get("global_pool"))

    @property
    def preprocessing_differences(self) -> list[str]:
        """One line per preprocessing step that differs between timm and Vitreous."""
        how, crop = self.pretrained_cfg.get("interpolation", "bicubic"), self.pretrained_cfg.get("crop_mode", "center")
        lines = [] if how in ("bilinear", "bicubic") else [f"timm resizes with {how!r:.40}; Vitreous uses bicubic"]
        return lines + ([] if crop in FITS else [f"timm uses crop_mode {crop!r:.40}; Vitreous crops the centre"])

    def preprocessing(self, channels: int) -> options.Preprocessing:
        """Return the preprocessing of timm's `create_transform`, with timm's defaults for missing fields."""
        try:
            fraction = float(self.pretrained_cfg.get("crop_pct", 0.875))
            mean, std = (
                tuple(map(float, self.pretrained_cfg.get(name, usual)))
                for name, usual in (("mean", options.IMAGENET.mean), ("std", options.IMAGENET.std))
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise BadCheckpoint(f"{self.path}: invalid number in pretrained_cfg of config.json: {error}") from error
        how = options.Preprocessing(
            mean=_per_channel(mean, channels),
            std=_per_channel(std, channels),
            fit=FITS.get(self.pretrained_cfg.get("crop_mode", "center"), "crop"),
            crop_fraction=fraction,
            interpolation="bilinear" if self.pretrained_cfg.get("interpolation") == "bilinear" else "bicubic",
            geometry="timm",
        )
        if how.fit == "squash-crop" and fraction == 1:
            how = dataclasses.replace(how, fit="squash", crop_fraction=options.Preprocessing.crop_fraction)
        if (size := self.image_size) is None:
            return how
        return self._exact_preprocessing(size, how) or _timm_interpolation(size, how)

    def _exact_preprocessing(self, size: Size, how: options.Preprocessing) -> options.Preprocessing | None:
        """Return the preprocessing that Vitreous recorded, or None if there is no record or crop_pct was changed."""
        own, fraction = self.document.get("geometry"), self.document.get("crop_fraction")
        if own not in get_args(options.Geometry) or not isinstance(fraction, int | float) or not 0.01 <= fraction <= 1:
            return None
        ours = dataclasses.replace(how, geometry=cast(options.Geometry, own), crop_fraction=fraction)
        return ours if _crop_pct(size, ours) == self.pretrained_cfg.get("crop_pct") else None

    def labels(self, num_classes: int) -> tuple[str, ...]:
        """Return the class names, or () if their number is not `num_classes`."""
        names = self.document.get("label_names") or self.pretrained_cfg.get("label_names") or []
        if isinstance(names, dict):  # {"0": name, ...}
            names = [names.get(str(i)) for i in range(len(names))]
        if not names and num_classes == 1000 and str(self.pretrained_cfg.get("tag")).endswith("in1k"):
            names = imagenet_classes()  # timm's configs do not contain them
        if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(x, str) for x in names):
            return ()
        return tuple(names)


def imagenet_classes() -> list[str]:
    """Return the class names of ImageNet-1k: the first WordNet lemma of each class, longer where that is ambiguous."""
    return (Path(__file__).parent / "imagenet_classes.txt").read_text(encoding="utf-8").splitlines()


def _per_channel(numbers: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return one number if all `numbers` are equal, otherwise one per channel.

    If their number is not `channels`, return their mean, as timm does.
    """
    if len(set(numbers)) == 1:
        return numbers[:1]
    return numbers if len(numbers) == channels else (sum(numbers) / max(len(numbers), 1),)


# ---- Writing ---------------------------------------------------------------------------------------------------------


# timm architectures by the stages of the ResNet stem; `model_args` specify everything else.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def timm_config(config: ViTConfig) -> dict[str, Any]:
    """Return the config.json from which `timm.create_model("local-dir:FOLDER", pretrained=True)` builds the model."""
    args: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size[0] if len(set(config.patch_size)) == 1 else list(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        # timm truncates mlp_ratio * embed_dim, which includes both halves of SwiGLU
        "mlp_ratio": ((2 if isinstance(config.mlp, options.SwiGlu) else 1) * config.mlp_width + 0.5) / config.width,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
    }
    if not config.distillation_token:
        own = isinstance(config.position, options.Learned1d) and config.position.prefix_entries
        args |= {"class_token": config.class_token, "reg_tokens": config.registers, "no_embed_class": not own}
        args["global_pool"], args["fc_norm"] = _pool_names(config)
    if isinstance(config.mlp, options.Gelu) and config.mlp.approximation != "erf":
        args["act_layer"] = next(name for name, way in ACTIVATIONS.items() if way == config.mlp.approximation)
    architecture = "vit_giant_patch14_dinov2" if isinstance(config.mlp, options.SwiGlu) else "vit_base_patch16_224"
    first_conv = "patch_embed.proj"
    if config.stem is not None:
        architecture = HYBRIDS[config.stem.stages]
        first_conv = "patch_embed.backbone.stem.conv" if config.stem.stages else "patch_embed.backbone.conv"
    elif config.distillation_token:
        architecture = "deit_base_distilled_patch16_224"
    elif config.pre_norm:
        architecture = "vit_base_patch16_clip_224"
    return config_document(config, architecture, args, first_conv)


def config_document(
    config: ViTConfig, architecture: str, args: Mapping[str, Any], first_conv: str = "patch_embed.proj"
) -> dict[str, Any]:
    """Return a config.json for an architecture whose arguments `args` replace."""
    num_classes = config.num_classes or config.projection or 0
    classifier: str | list[str] = ["head", "head_dist"] if config.distillation_token else "head"
    return {
        "architecture": architecture,
        "num_classes": num_classes,
        "num_features": config.width,
        "global_pool": _pool_names(config)[0],
        **({"label_names": list(config.labels)} if config.labels else {}),
        "model_args": args,
        "pretrained_cfg": pretrained_cfg(config, num_classes, first_conv, classifier),
        # Only read by Vitreous: timm rounds differently, so crop_pct is chosen to give the same sizes.
        "crop_fraction": config.preprocessing.crop_fraction,
        "geometry": config.preprocessing.geometry,
    }


def _pool_names(config: ViTConfig) -> tuple[str, bool]:
    if isinstance(config.pool, options.GlobalAverage):
        return "avg", config.pool.norm == "after"
    return "map" if isinstance(config.pool, options.AttentionPool) else "token", False


def _timm_interpolation(size: Size, how: options.Preprocessing) -> options.Preprocessing:
    """Use bilinear interpolation for non-square centre crops, as timm does regardless of its config."""
    height, width = scaled(size, how)
    return dataclasses.replace(how, interpolation="bilinear") if how.fit == "crop" and height != width else how


def timm_preprocessing(config: ModelConfig) -> options.Preprocessing:
    """Return the preprocessing that timm applies with the `pretrained_cfg` written here."""
    size, how = config.image_size, config.preprocessing
    how = dataclasses.replace(how, crop_fraction=_crop_pct(size, how), geometry="timm")
    return _timm_interpolation(size, how)


def _crop_pct(size: Size, how: options.Preprocessing) -> float:
    """Return a crop_pct with which timm, which rounds down, resizes to the same size as Vitreous."""
    if how.fit == "squash":
        return 1.0
    target = scaled(size, how)
    if scaled(size, dataclasses.replace(how, geometry="timm")) == target:
        return how.crop_fraction
    return max(size) / (max(target) + 0.5)


def pretrained_cfg(
    config: ModelConfig, num_classes: int, first_conv: str, classifier: str | list[str]
) -> dict[str, Any]:
    """Return the preprocessing and other defaults of a model, with timm's names of its first and last layers."""
    how, channels = config.preprocessing, config.channels
    return {
        "num_classes": num_classes,
        "input_size": [channels, *config.image_size],
        "fixed_input_size": True,
        "interpolation": how.interpolation,
        "crop_pct": _crop_pct(config.image_size, how),
        "crop_mode": {"crop": "center", "pad": "border"}.get(how.fit, "squash"),
        "mean": list(how.mean) * (channels if len(how.mean) == 1 else 1),
        "std": list(how.std) * (channels if len(how.std) == 1 else 1),
        # If first_conv is set, timm assumes filters for three channels and converts them to the model's channels.
        **({"first_conv": first_conv} if channels == 3 else {}),
        "classifier": classifier,
    }
