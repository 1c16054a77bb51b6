"""`vitreous.export`: writes a model as a file for another runtime, and compares the file with the model."""

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from vitreous.common.atomic_files import atomic_folder
from vitreous.common.checks import Size, check_choice, check_whole, fail
from vitreous.exporting.compare_precisions import Comparison, prepare
from vitreous.exporting.options import FILES, PRECISIONS, OptionalOutput, PrecisionChoice, Target
from vitreous.exporting.runtimes import needs, open_session, write
from vitreous.exporting.validate import TENSOR, Check, ExportFailed, Pixels, check
from vitreous.inference.engine import Images
from vitreous.inference.predict_images import open_model
from vitreous.model.protocol import Model

# Files of an earlier export to replace; others in the folder are kept.
OURS = ("model.*", "model_tensor.*", "export.json")


@dataclass(frozen=True)
class Export:
    """Result of `vitreous.export`."""

    path: Path  # the written model
    files: dict[str, int]  # all written files with their sizes in bytes
    metadata: dict[str, Any]
    checks: tuple[Check, ...]  # comparisons with the model
    comparisons: tuple[Comparison, ...] = ()  # of all precisions, for precision "auto"


def export(
    model: Model | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: Target = "onnx",
    precision: PrecisionChoice = "fp32",
    outputs: Sequence[OptionalOutput] = (),
    dynamic_size: bool = False,
    tensor_input: bool = False,
    image_size: int | Sequence[int] | None = None,
    data: Images | Sequence[str] | str | None = None,
    max_images: int = 100,
) -> Export:
    """Write a model and its preprocessing as one file, run the file on real images, and compare it with the model.

    The file takes decoded images of any size: uint8, [batch, height, width, channels], RGB. It contains resize, crop
    and normalisation. If it does not reproduce the outputs of the model, ExportFailed is raised and nothing is written.

    Args:
        model: A model or a checkpoint (folder, weight file, catalog name, hf-hub:owner/name).
        out: Folder to write: model.onnx, model.xml and model.bin, or model.pt2, and export.json with the comparison.
        to: "onnx", "openvino" or "torch-export".
        precision: Precision of the weights and of the computation after preprocessing: "fp32", "fp16", "bf16",
            "int8" (calibrated on training images of `data`), "int8-weights" (computes in float) or "auto", which
            compares all precisions of a target on `data` and writes the fastest that keeps the labels.
        outputs: Outputs to add: "pooled" and "patches" (features), "rollout" (attention rollout).
        dynamic_size: Give the file a second input, `size`, for the height and width at which the model sees the image.
        tensor_input: Also write a file that takes preprocessed images: float32, [batch, channels, height, width].
        image_size: Input size of the model. Default: the image size of the checkpoint.
        data: Images for the comparison: paths of files or folders, globs, a built-in data set, or images. Default:
            photos that Vitreous contains. For "int8" and "auto", a data set as for `vitreous.train`; its validation
            images are compared.
        max_images: Maximum number of images to compare.
    """
    check_choice("to", to, get_args(Target))
    check_choice("precision", precision, (*PRECISIONS[to], "auto"))
    check_whole("max_images", max_images, 1, 2**31)
    needs(to)
    model = open_model(model, image_size).cpu().eval()
    if model.config.channels not in (1, 3):
        fail("channels", model.config.channels, "1 (greyscale) or 3 (RGB) for an exported model")
    if dynamic_size and model.config.output_kind.per_pixel:
        fail(
            "dynamic_size",
            dynamic_size,
            "omitted for a segmenter, which already segments images of any size in windows",
        )
    if dynamic_size and not model.config.same_steps_for_all_sizes:
        fail("dynamic_size", dynamic_size, f"omitted for a {model.config.summary}; export one file per image_size")
    ready = prepare(model, to, precision, outputs, data, max_images)
    with atomic_folder(out, ours=OURS) as folder:
        checks: list[Check] = []
        metadata: dict[str, Any] = {}
        for name in ("model", TENSOR) if tensor_input else ("model",):
            path = folder / FILES[to].replace("model", name)
            about = write(ready.model, path, to, outputs, ready.precision, dynamic_size, tensor_input=name == TENSOR)
            checks += _compare(path, model, ready.images, list(about["outputs"]), ready.precision, dynamic_size)
            metadata = metadata or about
        files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
        report = {"to": to, "files": files, "metadata": metadata, "checks": [dataclasses.asdict(one) for one in checks]}
        if ready.comparisons:
            report["comparisons"] = [dataclasses.asdict(one) for one in ready.comparisons]
        (folder / "export.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return Export(Path(out) / FILES[to], files, metadata, tuple(checks), ready.comparisons)


def _compare(
    path: Path, model: Model, images: Sequence[Pixels], outputs: Sequence[str], precision: str, dynamic_size: bool
) -> list[Check]:
    """Compare a file with the model, at three image sizes if the size is dynamic. Raise ExportFailed if they differ."""
    session, checks = open_session(path), []
    for size in _sizes(model) if dynamic_size else [model.config.image_size]:
        resized = model if size == model.config.image_size else model.resized(size)
        names = outputs if resized is model else [name for name in outputs if name != "familiarity"]
        checks.append(check(session, path.name, resized, images, names, dynamic_size and TENSOR not in path.name))
        if problem := checks[-1].problem(precision):
            raise ExportFailed(f"{path.name} does not reproduce the model at {size[0]} x {size[1]} pixels: {problem}")
    return checks


def _sizes(model: Model) -> list[Size]:
    """Return the image size of the model, a smaller one and a larger one that is not square."""
    (rows, columns), (height, width) = model.config.grid, model.config.patch_stride
    grids = [(rows, columns), (max(rows // 2, 1), max(columns // 2, 1)), (rows + 1, columns + 3)]
    return [model.config.image_size, *((grid[0] * height, grid[1] * width) for grid in grids[1:])]
