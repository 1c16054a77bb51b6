"""The `vitreous info` command: list all presets or pretrained weights, or describe one model."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.checks import BadValue, as_size, fail, suggestion
from vitreous.common.codec import to_dict
from vitreous.common.text import console, listed, plural
from vitreous.weights.catalog import CATALOG, HUB_PREFIX, Pretrained

if TYPE_CHECKING:
    from vitreous.model.base_config import ModelConfig
    from vitreous.model.fused_encoder import Kernels


def info(
    name: Annotated[Positional[str], arg(metavar="NAME|CHECKPOINT")] = "",
    *,
    pretrained: bool = False,
    num_classes: int | None = None,
    image_size: ImageSize = (),
    json: bool = False,
) -> None:
    """Print a model's architecture and cost: parameters, FLOPs, tokens and memory.

    Example: vitreous info ViT-B/16 --image-size 384

    Args:
        name: Preset, checkpoint, or catalog name of pretrained weights. If omitted, all presets are listed.
        pretrained: List all pretrained weights, whose names --init and all CHECKPOINT arguments accept.
        num_classes: Number of classes, by default that of the model; 0 for no head.
        image_size: Input size, by default that of the model.
        json: Print JSON instead of a table.
    """
    if name in CATALOG and not Path(name).exists():
        if num_classes is not None or image_size:
            raise BadValue(f"--num-classes and --image-size have no effect for the catalog name {name}; omit them")
        _print_pretrained(name, as_json=json)
        return
    if pretrained:
        if name:
            raise BadValue(f"name {name!r} and --pretrained cannot be combined, because {name!r} is not a catalog name")
        _list_pretrained(as_json=json)
        return
    if not name:
        _print_presets(as_json=json)
        return
    from vitreous.model.cost import cost

    config, provenance = _find(name, num_classes, image_size)
    total, kernels = cost(config), _kernels(config)
    tokens = {"tokens": config.attention_shapes[0].tokens} if config.has_attention else {}
    costs = {"parameters": total.parameters, "flops": total.flops, **tokens, "activation_bytes": total.activation_bytes}
    if json:
        record = {
            "name": name,
            **costs,
            "kernels": kernels._asdict(),
            "config": to_dict(config),
            "provenance": provenance,
        }
        print(json_module.dumps(record, indent=2))
        return
    table = Table(box=None, show_header=False, title=name, title_justify="left")
    here = ("on this machine", f"{kernels}, in 16-bit precision" if kernels.scope != "none" else str(kernels))
    for label, value in [*_rows(config, costs), here, *((key, _text(value)) for key, value in provenance.items())]:
        table.add_row(label, value)
    console().print(table)


def _print_presets(as_json: bool) -> None:
    from vitreous.model.presets import PRESETS

    if as_json:
        print(json_module.dumps({name: to_dict(config) for name, config in PRESETS.items()}, indent=2))
        return
    table = Table(
        "name", "image", "patch", "features", "layers", "heads", box=None, title="presets", title_justify="left"
    )
    for name, config in PRESETS.items():
        row = [config.image_size[0], config.patch_stride[0], config.feature_width, config.num_layers]
        table.add_row(name, *map(str, row), str(config.num_heads or "-"))
    console().print(table)


def _list_pretrained(as_json: bool) -> None:
    if as_json:
        print(json_module.dumps({name: _record(entry) for name, entry in CATALOG.items()}, indent=2))
        return
    columns = ("name", "image", "parameters", "top-1", "license", "preset")
    table = Table(*columns, box=None, title="pretrained weights", title_justify="left")
    for name, entry in CATALOG.items():
        top1 = "-" if entry.top1 is None else f"{entry.top1:.1f}"
        row = (str(entry.image_size), f"{entry.parameters:,.1f} M", top1, entry.license, entry.preset or "-")
        table.add_row(name, *row)
    console().print(table)
    console().print("top-1: accuracy on ImageNet-1k; `vitreous info NAME` shows how it was measured", soft_wrap=True)


def _print_pretrained(name: str, as_json: bool) -> None:
    entry = CATALOG[name]
    if as_json:
        print(json_module.dumps({"name": name, **_record(entry)}, indent=2))
        return
    table = Table(box=None, show_header=False, title=name, title_justify="left")
    text = " and a text tower" if "/" in entry.model else ""
    rows = {
        "source": f"{entry.source} (about {entry.parameters * 4:,.0f} MB{text}, not downloaded by this command)",
        "license": entry.license,
        "paper": f"https://arxiv.org/abs/{entry.paper}",
        "preset": entry.preset or "none",
        "image": f"{entry.image_size} x {entry.image_size}",
        "parameters": f"{entry.parameters:,.1f} million, with the head",
        "top-1": "not reported" if entry.top1 is None else f"{entry.top1:.1f} % ({entry.measured})",
        "use": f'vitreous train --data DIR --init {name}, or vitreous.load("{name}")',
    }
    for label, value in rows.items():
        table.add_row(label, value)
    console().print(table)


def _record(entry: Pretrained) -> dict[str, Any]:
    """Return a catalog entry for JSON output. Millions become counts, and percentages become fractions."""
    top1 = None if entry.top1 is None else round(entry.top1 / 100, 4)
    return {"source": entry.source, **vars(entry), "parameters": round(entry.parameters * 1e6), "top1": top1}


def _find(name: str, num_classes: int | None, image_size: tuple[int, ...]) -> tuple["ModelConfig", dict[str, Any]]:
    """Return the config and provenance of a preset or a checkpoint without reading weights."""
    from vitreous.model.presets import PRESETS, configure

    if name not in PRESETS and (name.startswith(HUB_PREFIX) or Path(name).exists()):
        from vitreous.weights.load import open_checkpoint

        described = open_checkpoint(name).describe()
        config: ModelConfig = described.config.resized(as_size(image_size)) if image_size else described.config
        if num_classes is not None:
            if config.backbone is not config:
                fail("num_classes", num_classes, "omitted for a segmenter")
            config = config.override({"num_classes": num_classes, "labels": ()})
        return config, described.provenance
    if Path(name).is_absolute() or Path(name).suffix:  # a path, because no preset has a suffix
        from vitreous.weights.native import missing_checkpoint

        raise missing_checkpoint(Path(name))
    if name not in PRESETS and name == name.lower() and (hint := suggestion(name, CATALOG)):  # presets have capitals
        raise BadValue(f"unknown preset or catalog name {name!r}{hint}; `vitreous info --pretrained` lists the catalog")
    return configure(name, num_classes, image_size or None), {}


def _kernels(config: "ModelConfig") -> "Kernels":
    """Return which parts of the model fused kernels compute on this machine in 16-bit precision, or why they do not."""
    import torch

    from vitreous.common.device import choose_device
    from vitreous.model.meta_build import build_blank

    return build_blank(config).backbone.kernels(choose_device("auto"), torch.bfloat16)


def _rows(config: "ModelConfig", costs: dict[str, int]) -> list[tuple[str, str]]:
    giga, mib, how = costs["flops"] / 1e9, costs["activation_bytes"] / 2**20, config.preprocessing
    output = config.output_kind.output.format(classes=config.num_classes)
    return [
        ("parameters", f"{costs['parameters']:,}"),
        ("operations", f"{giga:,.2f} GFLOPs per image, forward only ({giga / 2:,.2f} GMACs)"),
        ("training memory", f"{_mib(mib)} MiB of activations per image in float32, {_mib(mib / 2)} in bfloat16"),
        ("image", f"{config.image_size[0]} x {config.image_size[1]}, {plural(config.channels, 'channel')}"),
        ("output", f"{output}: {listed(config.labels)}" if config.labels else output),
        *config.details(),
        (
            "preprocessing",
            f"mean {how.mean}, std {how.std}, {how.interpolation}, {how.fit}, rounding as in {how.geometry}",
        ),
    ]


def _mib(number: float) -> str:
    """Format a number of MiB, with one more digit if it is small.

    >>> _mib(1234.5), _mib(0.43)
    ('1,234', '0.4')
    """
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def _text(value: Any) -> str:
    """Format a JSON value for the table.

    >>> _text({"top1": 0.98333333, "count": 360}), _text(["mlp: timm's, usually", "pool: timm's"])
    ('top1 0.9833, count 360', "mlp: timm's, usually; pool: timm's")
    """
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
