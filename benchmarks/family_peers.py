"""Other libraries with Swin Transformers and vision towers, for `benchmarks.family_parity`.

The code of the authors is imported from clones of their repositories: Swin-Transformer, dinov3, EVA, CLIP, open_clip.
"""

import contextlib
import functools
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu, SwiGlu
from vitreous.model.swin_config import SwinConfig, SwinV2
from vitreous.weights.io.safetensors_file import header_for

Size = tuple[int, int]
Config = ViTConfig | SwinConfig


class Peer(ABC):
    """Another library: creates a random model with the sizes of a config, saves it, and opens a file."""

    title: ClassVar[str]
    format: ClassVar[str]
    file: ClassVar[str] = "folder"  # name to save under

    @abstractmethod
    def create(self, config: Config, name: str, size: Size) -> nn.Module:
        """Create the model that the library calls `name`."""

    @abstractmethod
    def save(self, model: Any, path: Path) -> None: ...

    @abstractmethod
    def open(self, path: Path, config: Config, name: str, size: Size) -> nn.Module:
        """Load a file with strict keys into a model for images of this size."""

    def output(self, model: Any, images: Tensor) -> Tensor:
        return model(images)

    @abstractmethod
    def save_sparse(self, model: Any, path: Path, constants: Mapping[str, Tensor]) -> None:
        """Save a model on the meta device, with the data of `constants` only (see `write_sparse`)."""

    def fill(self, model: Any, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors of the meta device with strict keys and shapes."""
        model.load_state_dict(tensors, assign=True)


def write_sparse(tensors: Mapping[str, Tensor], constants: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file of full length that takes space on disk only for the data of `constants`."""
    start, places = header_for(tensors)
    with file.open("wb") as stream:
        stream.write(start)
        stream.truncate(len(start) + sum(tensor.nbytes for tensor in tensors.values()))
        for name in constants.keys() & tensors.keys():
            stream.seek(places[name])
            stream.write(constants[name].contiguous().numpy().tobytes())


class Timm(Peer):
    title, format = "timm", "timm"

    def create(self, config: Config, name: str, size: Size) -> nn.Module:
        import timm

        self.args: dict[str, Any] = {"num_classes": config.num_classes}
        if isinstance(config, SwinConfig):
            self.args["depths"] = config.depths
        elif isinstance(config, ViTConfig):
            self.args |= {"depth": config.depth, "num_classes": config.projection or config.num_classes}
            if config.class_token and config.registers:  # DINOv3: the published default of timm averages the patches
                self.args["global_pool"] = "token"
        model: nn.Module = timm.create_model(name, img_size=size, **self.args)
        return model

    def save(self, model: Any, path: Path) -> None:
        import timm

        timm.models.save_for_hf(model, path, model_args=self.args)

    def save_sparse(self, model: Any, path: Path, constants: Mapping[str, Tensor]) -> None:
        from timm.models import _hub

        path.mkdir()
        _hub.save_config_for_hf(model, path / "config.json", model_args=self.args)
        write_sparse(model.state_dict(), constants, path / "model.safetensors")

    def open(self, path: Path, config: Config, name: str, size: Size) -> nn.Module:
        import timm

        # Otherwise Swin V2 cannot be built for sizes that windows do not divide.
        more = {"strict_img_size": False} if isinstance(config, SwinConfig) else {}
        model: nn.Module = timm.create_model(f"local-dir:{path}", pretrained=True, img_size=size, **more)
        return model


class Transformers(Peer):
    title, format = "transformers", "huggingface"

    def create(self, config: Config, name: str, size: Size) -> nn.Module:
        import transformers

        fields: dict[str, Any] = {"patch_size": config.patch_size[0], "image_size": size[0]}
        if isinstance(config, SwinConfig):
            fields |= _stages(config) | {"num_labels": config.num_classes}
        elif isinstance(config, ViTConfig):
            fields |= {
                "hidden_size": config.width,
                "intermediate_size": config.mlp_width,
                "num_hidden_layers": config.depth,
                "num_attention_heads": config.num_heads,
                "hidden_act": _activation(config),
            }
            if config.projection:
                fields["projection_dim"] = config.projection
            if config.registers:
                bias = {"query_bias": config.qkv_bias, "value_bias": config.qkv_bias}
                gated = isinstance(config.mlp, SwiGlu)
                fields |= {"num_register_tokens": config.registers, "use_gated_mlp": gated} | bias
            if name == "Siglip2VisionModel":
                fields["num_patches"] = (size[0] // config.patch_size[0]) ** 2
        kind = name.removesuffix("ForImageClassification").removesuffix("WithProjection").removesuffix("Model")
        model: nn.Module = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**fields))
        return model

    def save(self, model: Any, path: Path) -> None:
        model.save_pretrained(path)

    def save_sparse(self, model: Any, path: Path, constants: Mapping[str, Tensor]) -> None:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(path)
        write_sparse(model.state_dict(), constants, path / "model.safetensors")

    def fill(self, model: Any, tensors: Mapping[str, Tensor]) -> None:
        loaded = type(model).from_pretrained(
            None, config=model.config, state_dict=tensors, device_map="meta", output_loading_info=True
        )
        _check_loaded(loaded[1])

    def open(self, path: Path, config: Config, name: str, size: Size) -> nn.Module:
        import transformers

        # Swin is built for one image size; the others resample their positions when called.
        more = {"image_size": size} if isinstance(config, SwinConfig) else {}
        model, about = getattr(transformers, name).from_pretrained(path, output_loading_info=True, **more)
        _check_loaded(about)
        return model

    def output(self, model: Any, images: Tensor) -> Tensor:
        kind, arguments = type(model).__name__, dict[str, Any](pixel_values=images)
        if kind == "Siglip2VisionModel":
            side, (b, c, height, width) = model.config.patch_size, images.shape
            rows, columns = height // side, width // side
            patches = images.reshape(b, c, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
            arguments = {
                "pixel_values": patches.reshape(b, rows * columns, -1),
                "pixel_attention_mask": torch.ones(b, rows * columns, dtype=torch.long),
                "spatial_shapes": torch.tensor([[rows, columns]] * b),
            }
        elif kind.startswith(("CLIP", "Siglip")):
            arguments["interpolate_pos_encoding"] = True
        found = model(**arguments)
        return next(x for name in ("logits", "image_embeds", "pooler_output") if (x := found.get(name)) is not None)


def _check_loaded(about: Mapping[str, Any]) -> None:
    if wrong := {kind: keys for kind, keys in about.items() if keys}:
        raise SystemExit(f"transformers found missing or unexpected keys: {wrong}")


class StateDicts(Peer):
    """A library whose files are state dicts."""

    file = "model.pth"
    ignored: ClassVar[tuple[str, ...]] = ()  # ends of the names of buffers that depend on the image size

    def save(self, model: Any, path: Path) -> None:
        torch.save(self.state(model), path)

    def save_sparse(self, model: Any, path: Path, constants: Mapping[str, Tensor]) -> None:
        write_sparse(self.state(model), constants, path)

    def state(self, model: Any) -> dict[str, Tensor]:
        return model.state_dict()

    def open(self, path: Path, config: Config, name: str, size: Size) -> nn.Module:
        model, state = self.create(config, name, size), torch.load(path)
        self.fill(model, state.get("model", state))
        return model

    def fill(self, model: Any, tensors: Mapping[str, Tensor]) -> None:
        kept = {name: x for name, x in self.tensors(tensors, model).items() if not name.endswith(self.ignored or " ")}
        found = model.load_state_dict(kept, strict=not self.ignored, assign=True)
        if found.unexpected_keys or any(not name.endswith(self.ignored) for name in found.missing_keys):
            raise SystemExit(f"{self.title} found missing or unexpected keys: {found}")

    def tensors(self, state: Mapping[str, Tensor], model: Any) -> Mapping[str, Tensor]:
        return state


class Torchvision(StateDicts):
    title, format = "torchvision", "torchvision"
    ignored = ("relative_position_index", "relative_coords_table")

    def create(self, config: Config, name: str, size: Size) -> nn.Module:
        from torchvision.models import swin_transformer as swin

        assert isinstance(config, SwinConfig)
        parts: dict[str, Any] = {}
        if isinstance(config.version, SwinV2):
            parts = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
        stages = config.width, list(config.depths), list(config.stage_heads), list(config.window)
        model: nn.Module = swin.SwinTransformer(list(config.patch_size), *stages, **parts)
        return model


# ---- The authors' code -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Original(StateDicts):
    """Code of the authors, imported from a folder of clones."""

    clones: Path

    def create(self, config: Config, name: str, size: Size) -> nn.Module:
        with _importing(self.clones):
            return self.build(config, size)

    @abstractmethod
    def build(self, config: Any, size: Size) -> nn.Module: ...


class Microsoft(Original):
    title, format = "Microsoft", "microsoft"
    ignored = ("attn_mask", "relative_position_index", "relative_coords_table")

    def build(self, config: SwinConfig, size: Size) -> nn.Module:
        sys.path.insert(0, str(self.clones / "Swin-Transformer"))
        from models import swin_transformer, swin_transformer_v2  # type: ignore[import-not-found]

        second = isinstance(config.version, SwinV2)
        kind = swin_transformer_v2.SwinTransformerV2 if second else swin_transformer.SwinTransformer
        return kind(img_size=size, **_stages(config))

    def save(self, model: Any, path: Path) -> None:
        torch.save({"model": model.state_dict()}, path)


class DinoV3(Original):
    title, format = "DINOv3", "dinov3"

    def build(self, config: ViTConfig, size: Size) -> nn.Module:
        sys.path.insert(0, str(self.clones / "dinov3"))
        from dinov3.models.vision_transformer import DinoVisionTransformer  # type: ignore[import-not-found]

        gated = isinstance(config.mlp, SwiGlu)
        model = DinoVisionTransformer(
            embed_dim=config.width,
            depth=config.depth,
            num_heads=config.num_heads,
            ffn_ratio=config.mlp_width / config.width * (1.5 if gated else 1),  # SwiGLU multiplies it by 2/3
            ffn_layer="swiglu64" if gated else "mlp",
            qkv_bias=config.qkv_bias,
            layerscale_init=1e-5,
            norm_layer="layernormbf16",
            n_storage_tokens=config.registers,
            mask_k_bias=True,
            pos_embed_rope_dtype="fp32",
            pos_embed_rope_rescale_coords=2,
            untie_global_and_local_cls_norm=not config.qkv_bias,  # in 7B
        )
        model.init_weights()
        model.rope_embed.periods = model.rope_embed.periods.bfloat16().float()  # as in the published files
        return model

    def tensors(self, state: Mapping[str, Tensor], model: Any) -> Mapping[str, Tensor]:
        """Add tensors that are not used after training."""
        unused = {name: x for name, x in model.state_dict().items() if "local_cls_norm" in name or name == "mask_token"}
        return {**unused, **state}


class Eva(Original):
    title, format = "EVA", "eva"

    def build(self, config: ViTConfig, size: Size) -> nn.Module:
        sys.path.insert(0, str(self.clones / "EVA/EVA-02/asuka"))
        with contextlib.redirect_stdout(None):
            from modeling_finetune import VisionTransformer  # type: ignore[import-not-found]

            norm = isinstance(config.mlp, SwiGlu) and config.mlp.norm
            return VisionTransformer(
                img_size=size[0],
                patch_size=config.patch_size[0],
                embed_dim=config.width,
                depth=config.depth,
                num_heads=config.num_heads,
                mlp_ratio=(config.mlp_width + 0.5) / config.width,
                qkv_bias=True,
                norm_layer=_norm,
                xattn=True,
                swiglu=not norm,
                naiveswiglu=norm,
                subln=norm,
                rope=True,
                intp_freq=True,
                use_checkpoint=False,
            )

    def tensors(self, state: Mapping[str, Tensor], model: Any) -> Mapping[str, Tensor]:
        """Resample positions as `utils.load_state_dict` and `run_class_finetuning.py` do, for another image size."""
        positions, count = state["pos_embed"], model.patch_embed.num_patches
        rotations = {name: x for name, x in model.state_dict().items() if ".rope." in name or name.startswith("rope.")}
        if count + 1 == positions.shape[1]:
            return state
        side, new = round((positions.shape[1] - 1) ** 0.5), round(count**0.5)
        table = positions[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=(new, new), mode="bicubic", align_corners=False)
        table = table.permute(0, 2, 3, 1).flatten(1, 2)
        return {**state, **rotations, "pos_embed": torch.cat([positions[:, :1], table], dim=1)}


class OpenAi(Original):
    title, format = "CLIP", "clip"

    def build(self, config: ViTConfig, size: Size) -> nn.Module:
        sys.path.insert(0, str(self.clones / "CLIP/clip"))
        from model import VisionTransformer  # type: ignore[import-not-found]

        model = nn.Module()
        sizes = config.patch_size[0], config.width, config.depth, config.num_heads, config.projection
        model.visual = VisionTransformer(size[0], *sizes)
        return model

    def state(self, model: Any) -> dict[str, Tensor]:
        number = {"input_resolution": torch.tensor(model.visual.input_resolution)}  # marks OpenAI's files
        return model.state_dict() | number

    def tensors(self, state: Mapping[str, Tensor], model: Any) -> Mapping[str, Tensor]:
        return {name: x for name, x in state.items() if name.startswith("visual.")}

    def output(self, model: Any, images: Tensor) -> Tensor:
        return model.visual(images)


class OpenClip(OpenAi):
    title = "OpenCLIP"

    def build(self, config: ViTConfig, size: Size) -> nn.Module:
        package = types.ModuleType("open_clip")  # without the packages that the text towers need
        package.__path__ = [str(self.clones / "open_clip/src/open_clip")]
        sys.modules.setdefault("open_clip", package)
        from open_clip.transformer import VisionTransformer  # type: ignore[import-not-found]

        model = nn.Module()
        model.visual = VisionTransformer(
            size, config.patch_size[0], config.width, config.depth, config.num_heads,
            (config.mlp_width + 0.5) / config.width, output_dim=config.projection,
        )  # fmt: skip
        return model

    def state(self, model: Any) -> dict[str, Tensor]:
        return model.state_dict()

    def tensors(self, state: Mapping[str, Tensor], model: Any) -> Mapping[str, Tensor]:
        """Resample positions as `open_clip.model.resize_pos_embed` does."""
        positions, grid = state["visual.positional_embedding"], model.visual.grid_size
        side = round((len(positions) - 1) ** 0.5)
        table = positions[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=tuple(grid), mode="bicubic", antialias=True, align_corners=False)
        resampled = positions if grid == (side, side) else torch.cat([positions[:1], table[0].flatten(1).T])
        return {**super().tensors(state, model), "visual.positional_embedding": resampled}


@contextlib.contextmanager
def _importing(clones: Path) -> Iterator[None]:
    """Let `build` extend sys.path. Stand-ins replace the CUDA packages that EVA's code imports.

    torch.linspace stays on the CPU if models are built on the meta device, because their code reads its numbers.
    """
    path = list(sys.path)
    stubs = {name: types.ModuleType(name) for name in ("xformers", "xformers.ops", "apex", "apex.normalization")}
    stubs["xformers"].ops = stubs["xformers.ops"]  # type: ignore[attr-defined]
    stubs["xformers.ops"].memory_efficient_attention = _attention  # type: ignore[attr-defined]
    stubs["xformers.ops"].SwiGLU = _SwiGlu  # type: ignore[attr-defined]
    stubs["apex.normalization"].FusedLayerNorm = nn.LayerNorm  # type: ignore[attr-defined]
    sys.modules.update(stubs)
    try:
        with mock.patch.object(torch, "linspace", functools.partial(torch.linspace, device="cpu")):
            yield
    finally:
        sys.path[:] = path
        for name in stubs:
            del sys.modules[name]


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


class _SwiGlu(nn.Module):
    def __init__(self, in_features: int, hidden_features: int) -> None:
        super().__init__()
        self.w12, self.w3 = nn.Linear(in_features, 2 * hidden_features), nn.Linear(hidden_features, in_features)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * up)


def _norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-6)


def _stages(config: SwinConfig) -> dict[str, Any]:
    """Return the arguments of Microsoft's and transformers' models."""
    found = {
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.stage_heads),
        "window_size": config.window[0],
    }
    before = list(config.pretrained_windows)
    return found | ({"pretrained_window_sizes": before} if any(before) else {})


def _activation(config: ViTConfig) -> str:
    names = {"quick": "quick_gelu", "erf": "gelu", "tanh": "gelu_pytorch_tanh"}
    return names[config.mlp.approximation] if isinstance(config.mlp, Gelu) else "silu"
