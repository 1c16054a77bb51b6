"""The `vitreous bench` command."""

import sys
from pathlib import Path
from typing import Literal

from vitreous.cli import ImageSize
from vitreous.common.checks import BadValue
from vitreous.common.text import console

PEERS = "timm,transformers,torchvision,vit-pytorch"
WORKLOADS = "train,inference,latency"


def bench(
    *,
    against: str = PEERS,
    models: str = "",
    workloads: str = WORKLOADS,
    image_size: ImageSize = (),
    batch_size: int | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "auto",
    rounds: int = 5,
    seconds: float = 480.0,
    eager: bool = False,
    json: bool = False,
    out: Path = Path("runs/bench"),
) -> None:
    """Measure the speed of Vitreous beside other libraries, alternately in one run and with the same weights.

    Writes bench.json and bench.png to --out. Systems are compared in all settings: as they are, compiled, with CUDA
    graphs; "default" is how `vitreous train` and `vitreous predict` run. The speed is relative to the fastest setting
    of another library. MFU is relative to a large matrix product in the same run.

    Example: vitreous bench --against timm,transformers --models ViT-B/16 --workloads inference

    Args:
        against: Other libraries, separated by commas. Those that are not installed are skipped.
        models: Presets, separated by commas. By default, ViT-S/16, ViT-B/16, ViT-L/16 and DINOv2-S/14 on a GPU, and
            ViT-S/16 and ViT-B/16 on a CPU.
        workloads: train (a training step with AdamW), inference (of a batch) and latency (of one image), separated by
            commas.
        image_size: Input size, by default that of the model.
        batch_size: Images per batch, by default 256 on a GPU (64 for more than 1,024 tokens per image) and 8 on a CPU.
        device: auto, cpu, cuda or mps.
        precision: bf16 is autocast in training and converted weights otherwise; auto is bf16 on a GPU.
        rounds: Rounds in which all systems are measured, in alternating order.
        seconds: Time limit, divided between models and workloads. When time is short, settings that were not set up
            yet are skipped, then rounds; the first round always runs.
        eager: Skip the settings that need torch.compile.
        json: Print JSON instead of tables.
        out: Folder for the results, which is created.
    """
    from json import dumps

    from vitreous.benchmarking.comparison import compare_systems
    from vitreous.benchmarking.comparison_output import draw, tables, write_json
    from vitreous.report.plots import can_draw

    record = compare_systems(
        _words("models", models or None),
        _words("against", against),
        _words("workloads", workloads),
        device=device,
        precision=precision,
        image_size=image_size,
        batch_size=batch_size,
        rounds=rounds,
        seconds=seconds,
        eager=eager,
        report=lambda line: print(line, file=sys.stderr, flush=True),
        finished=lambda record: write_json(record, out / "bench.json"),
    )
    if json:
        print(dumps(record))
    else:
        for table in tables(record):
            console(soft_wrap=True).print(table)
    written = [out / "bench.json"]
    if can_draw() and any(row["seconds"] is not None for row in record["results"]):
        draw(record, out / "bench.png")
        written.append(out / "bench.png")
    print(f"written: {', '.join(map(str, written))}", file=sys.stderr)


def _words(name: str, text: str | None) -> tuple[str, ...]:
    """Split a list at its commas.

    >>> _words("against", "timm, torchvision"), _words("models", None)
    (('timm', 'torchvision'), ())
    """
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    if text is not None and not words:
        raise BadValue(f"{name} is {text!r}, but must contain at least one name")
    return words
