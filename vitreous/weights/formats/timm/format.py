"""timm's own checkpoints: a state dict, or a folder with the config.json that timm's hub has."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    AttentionPool,
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    LinearHead,
    PoolConfig,
    Preprocessing,
    SwiGlu,
)
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.limits import (
    absent,
    margin_differences,
    numeric_losses,
    resize_differences,
    unfit_positions,
    unfit_sizes,
)
from vitreous.weights.formats.mapping import Row, renamed
from vitreous.weights.formats.timm.config import HYBRIDS, TimmConfig, as_timm_reads_it, timm_config
from vitreous.weights.formats.timm.layout import infer_timm, plain_obstacles, timm_table
from vitreous.weights.formats.timm.names import is_architecture
from vitreous.weights.formats.timm.unsupported import refuse_unlike
from vitreous.weights.io.containers import write_file
from vitreous.weights.io.safetensors_file import BadCheckpoint, write_tensors

POOLS: dict[str, type[PoolConfig]] = {"token": ClassToken, "avg": GlobalAverage, "map": AttentionPool}


class Timm(Format):
    name = "timm"
    title = "timm"

    def recognises(self, found: Found) -> bool:
        return "patch_embed.proj.weight" in found.tensors and "blocks.0.attn.qkv.weight" in found.tensors

    def normalise(self, found: Found) -> Found:
        """DeiT-III's own files call LayerScale gamma_1 and gamma_2."""
        return dataclasses.replace(found, tensors=renamed(found.tensors, [(r"\.gamma_([12])$", r".ls\1.gamma")]))

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        said = TimmConfig.of(found)
        refuse_unlike(found, said.architecture)
        infer_timm(
            found,
            guess,
            image_size,
            native=said.image_size,
            num_heads=said.num_heads,
            entries=said.prefix_entries,
            published=is_architecture(said.architecture, found.shape("patch_embed.proj.weight", 4)[0]),
        )
        fields = guess.fields
        _infer_mlp(guess, said)
        _infer_pool(found, guess, said)
        guess.follow("timm's", norm_eps=1e-6)
        guess.follow("timm's", position=Learned1d(fields["position"].prefix_entries, "timm"))
        if not said.is_known:
            _assume_plain(guess)
        if said.shown:
            labels = said.labels(fields["num_classes"])
            guess.set(preprocessing=said.preprocessing(fields["channels"]), labels=labels)
            if said.unlike:
                guess.assume("; ".join(said.unlike), preprocessing=fields["preprocessing"])
        elif fields["distillation_token"]:
            guess.prepare("DeiT's", IMAGENET)
        elif fields["layer_scale"] is not None:
            whole = dataclasses.replace(IMAGENET, crop_fraction=1.0, geometry="timm")
            guess.prepare("that of timm's models with LayerScale: DeiT-III and DINOv2", whole)
        else:
            augreg = Preprocessing(crop_fraction=0.9, geometry="timm")
            guess.assume("that of timm's AugReg models", preprocessing=augreg)

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = plain_obstacles(config, "timm") + unfit_sizes(config, "timm") + _unfit_stem(config)
        if not isinstance(config.head, LinearHead):
            lines.append(f"head {type(config.head).__name__}: timm's heads are one linear layer")
        if isinstance(config.pool, AttentionPool) and config.num_prefix_tokens:
            lines.append("pool AttentionPool: timm's does not attend to the tokens before the patches")
        if isinstance(config.pool, AttentionPool) and isinstance(config.mlp, SwiGlu):
            lines.append("pool AttentionPool with SwiGLU: timm's has GELU")
        if config.distillation_token and config.registers:
            lines.append("registers: timm's distilled models have none")
        if config.distillation_token:
            lines += unfit_positions(config, "timm's distilled models")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = numeric_losses(config, "timm", norm_eps=1e-6, gelu=None if folder else "erf")
        if not folder and config.class_token and config.pool == GlobalAverage("before"):
            lines.append("the mean of normed patches is pooled, and by timm, with these tensors, the class token")
        if config.stem is not None and config.stem.numerics != "timm":
            lines.append("the ResNet divides by deviations with Google's small numbers, and timm with its own")
        return lines

    def remarks(self, config: ViTConfig) -> list[str]:
        theirs = as_timm_reads_it(config)
        return resize_differences(config, theirs, "timm") or margin_differences(config, theirs, "timm")

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        if path.is_dir():
            write_tensors(tensors, path / "model.safetensors")
            (path / "config.json").write_text(json.dumps(timm_config(config), indent=2) + "\n", encoding="utf-8")
        else:
            write_file(tensors, path)


def _assume_plain(guess: Inference) -> None:
    """Assume that this is none of timm's models that compute otherwise with the same tensors."""
    fields = guess.fields
    if fields["layer_scale"] is not None and fields["class_token"] and not fields["position"].prefix_entries:
        reason = "as in DeiT-III; rope_ape models have the same tensors, rotate queries and keys, and are not supported"
        guess.assume(reason, position=fields["position"])
    if not fields["qkv_bias"] and not fields["class_token"]:
        reason = (
            "and norms before the layers; rpn models have the same tensors, norms after them, and are not supported"
        )
        guess.assume(reason, qkv_bias=False)


def _infer_mlp(guess: Inference, said: TimmConfig) -> None:
    if isinstance(guess.fields["mlp"], SwiGlu):
        if "mlp" not in guess.overrides:
            said.check_gate()
        if not said.is_known:
            guess.assume("as in DINOv2; gated MLPs with GELU have the same shapes", mlp=SwiGlu())
    elif said.is_known:
        guess.set(mlp=Gelu(said.approximation))
    else:
        guess.assume("timm's default; some of SigLIP's models have 'tanh'", mlp=Gelu("erf"))


def _infer_pool(found: Found, guess: Inference, said: TimmConfig) -> None:
    pool = _pool(found, said.pool, guess.fields["pool"])
    # fc_norm beside a class token is none of a named model's but EVA's: somebody has changed its pooling.
    changed = pool == GlobalAverage("after") and guess.fields["class_token"] and "eva_" not in said.architecture
    if said.pool or isinstance(pool, AttentionPool) or (said.is_known and not changed):
        guess.set(pool=pool)
    elif isinstance(pool, ClassToken):
        guess.assume("usual with a class token; global_pool may be another", pool=pool)
    else:
        guess.assume("usual with these norms; global_pool token, avgmax and max may have them too", pool=pool)


def _pool(found: Found, said: str | None, seen: PoolConfig) -> PoolConfig:
    """What the config says where tensors leave a choice: a final norm may come before a class token, or a mean."""
    if isinstance(seen, AttentionPool) and {"cls_token", "reg_token"} & set(found.tensors):
        raise BadCheckpoint(f"{found.path} leaves the class token or registers out of attention pooling; we do not")
    if said == "avg" and isinstance(seen, ClassToken):
        return GlobalAverage("before")
    if said and said not in POOLS:
        raise BadCheckpoint(f"{found.path} has global_pool {said!r}, but must have one of {', '.join(POOLS)}")
    if said and not isinstance(seen, POOLS[said]):
        fitting = next(name for name, kind in POOLS.items() if isinstance(seen, kind))
        raise BadCheckpoint(
            f"{found.path} has global_pool {said!r}, but the tensors of {type(seen).__name__}: must be {fitting!r}"
        )
    return seen


def _unfit_stem(config: ViTConfig) -> list[str]:
    if config.stem is None:
        return []
    lines = absent(config, "timm's hybrid", ["SwiGLU", "distillation_token"])
    if config.stem.stages not in HYBRIDS:
        lines.append(f"stem with stages {config.stem.stages}: timm has {', '.join(map(str, HYBRIDS))}")
    if config.stem.width != 64:
        lines.append(f"stem {config.stem.width} wide: timm's is 64")
    return lines
