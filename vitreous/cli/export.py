"""The `vitreous export` command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table
from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.checks import fail
from vitreous.common.text import console as standard_output
from vitreous.exporting import OptionalOutput, PrecisionChoice, Target

if TYPE_CHECKING:
    from vitreous.exporting import Export


def export(
    checkpoint: Annotated[Positional[str], arg(metavar="CHECKPOINT")],
    *,
    to: Target | Literal["web"],
    out: Path,
    precision: PrecisionChoice = "fp32",
    outputs: tuple[OptionalOutput, ...] = (),
    dynamic_size: bool = False,
    tensor_input: bool = False,
    image_size: ImageSize = (),
    data: tuple[str, ...] = (),
    max_images: int = 100,
    examples: tuple[Path, ...] = (),
    runtime: Path | None = None,
    webgpu: bool = False,
) -> None:
    """Write a model and its preprocessing for another runtime or for the browser, and compare it with the original.

    Example: vitreous export runs/first/best --to onnx --out exported/ --data photos/

    Args:
        checkpoint: Checkpoint folder such as runs/first/best, weight file from another library, catalog name such as
            dinov2-s, or hf-hub:owner/name.
        to: onnx (model.onnx), openvino (model.xml and model.bin) or torch-export (model.pt2). The input is decoded
            images of any size; resize, crop and normalisation are in the file. web writes a folder with the web page of
            `vitreous serve`, whose model runs in the browser: it needs no server, only a static host.
        out: Folder for the model and export.json, which records the comparison.
        precision: fp32, fp16, bf16 (openvino, torch-export), int8 (calibrated on the training images of --data),
            int8-weights (smaller file, computed in float), or auto: compare all on the validation images of --data and
            write the fastest that keeps the labels.
        outputs: Outputs to add: pooled and patches (features), rollout (attention rollout).
        dynamic_size: Add an input for the size at which the model sees the image. Positions are resampled in the file.
        tensor_input: Also write model_tensor, whose input is preprocessed images.
        image_size: Input size of the model. Default: the image size of the checkpoint.
        data: Images for the comparison: files, folders, globs or a built-in data set. Default: photos in Vitreous.
            For int8 and auto, a data set, as for train --data.
        max_images: Maximum number of images to compare.
        examples: Images that replace the examples of the web page.
        runtime: Folder of an unpacked onnxruntime-web package for the web page. Default: npm downloads it once.
        webgpu: Add the files with which the web page can run the model on a GPU.
    """
    given = {"outputs": outputs, "dynamic_size": dynamic_size, "tensor_input": tensor_input, "data": data}
    web_only: dict[str, object] = {"examples": examples, "runtime": runtime, "webgpu": webgpu}
    for name, value in (given if to == "web" else web_only).items():
        if value:
            fail(name, value, f"omitted with --to {to}")
    if to == "web":
        _export_web(checkpoint, out, precision, image_size, examples, runtime, webgpu)
        return
    from vitreous.exporting import export as export_model

    result = export_model(
        checkpoint,
        out,
        to=to,
        precision=precision,
        outputs=outputs,
        dynamic_size=dynamic_size,
        tensor_input=tensor_input,
        image_size=image_size or None,
        data=data or None,
        max_images=max_images,
    )
    _print(result)


def _export_web(
    checkpoint: str,
    out: Path,
    precision: PrecisionChoice,
    image_size: tuple[int, ...],
    examples: tuple[Path, ...],
    runtime: Path | None,
    webgpu: bool,
) -> None:
    if precision not in ("fp32", "fp16"):
        fail("precision", precision, "fp32 or fp16 with --to web")
    from vitreous.exporting import export_web

    console = standard_output(soft_wrap=True)
    result = export_web(
        checkpoint,
        out,
        precision=precision,
        image_size=image_size or None,
        examples=examples,
        runtime=runtime,
        webgpu=webgpu,
        announce=console.print,
    )
    sizes = {"model": result.model_bytes, "runtime": result.runtime_bytes, "page": result.page_bytes}
    console.print(f"wrote {out}: {', '.join(f'{name} {size / 1e6:,.1f} MB' for name, size in sizes.items())}")
    differences = {
        "attention": result.attention_difference,
        "probabilities": result.probability_difference,
        "relevance": result.relevance_difference,
    }
    found = ", ".join(f"{name} {value:.1e}" for name, value in differences.items() if value is not None)
    console.print(f"largest differences from PyTorch on the examples: {found}")
    console.print(f"open it with: python3 -m http.server --directory {out}")


def _print(result: "Export") -> None:
    console = standard_output(soft_wrap=True)  # do not break paths
    sizes = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in result.files.items())
    console.print(f"wrote {result.path.parent}: {sizes}")
    table = Table(
        "file", "image size", "images", "same labels", "largest difference", "images/s", "torch images/s", box=None
    )
    for one in result.checks:
        name, difference = next(iter(one.differences.items()))
        agreement = "" if one.agreement is None else f"{one.agreement:.2%}"
        size = f"{one.image_size[0]} x {one.image_size[1]}"
        speeds = (f"{one.images_per_second:.1f}", f"{one.torch_images_per_second:.1f}")
        table.add_row(one.file, size, str(one.images), agreement, f"{difference:.1e} ({name})", *speeds)
    console.print(table)
    if result.comparisons:
        console.print(f"\nall precisions on {result.comparisons[0].images} validation images:")
        console.print(_precisions(result))


def _precisions(result: "Export") -> Table:
    table = Table("precision", "same labels", "accuracy", "error", "images/s", "speed", "MB", "", box=None)
    base = result.comparisons[0].images_per_second
    for row in result.comparisons:
        fractions = ("" if one is None else f"{one:.2%}" for one in (row.agreement, row.accuracy))
        speed, chosen = row.images_per_second, row.precision == result.metadata["precision"]
        remark = "recommended, written" if chosen else "" if row.accepted else "labels change"
        numbers = (f"{row.error:.4f}", f"{speed:.1f}", f"{speed / base:.2f}", f"{row.bytes / 1e6:.1f}")
        table.add_row(row.precision, *fractions, *numbers, remark)
    return table
