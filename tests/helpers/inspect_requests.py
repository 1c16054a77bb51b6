"""Small models of every kind, and requests to the inspection routes that the web page uses."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from torch import Tensor

from images import encoded, smooth
from live_server import Live, Reply
from single_patch_models import KINDS, of_kind, planted
from vitreous.data.image import fit
from vitreous.model.build import build, build_segmenter, build_vit
from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import Conditional, NoPosition, Preprocessing, RelativeBias, Rotary2d, SinCos2d
from vitreous.model.swin_config import SwinConfig
from vitreous.serving.batch_queue import Scheduler
from vitreous.serving.errors import install
from vitreous.serving.inspect.routes import router
from vitreous.serving.inspect.service import InspectService
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import ServedModel
from vitreous.serving.settings import Settings

LABELS = ("ant", "bee", "cat", "dog", "emu")
SMALL = ViTConfig(
    image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=64, num_classes=5, labels=LABELS,
    preprocessing=Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)),
)  # fmt: skip
PLAIN = Preprocessing(crop_fraction=1.0)
POSITIONS = {"relative": RelativeBias(), "rotary": Rotary2d(), "sincos": SinCos2d(), "conditional": Conditional()}


def name(kind: str) -> str:
    return kind.replace(" ", "-").replace(",", "")


NAMES = [name(kind) for kind in KINDS]


def all_kinds() -> dict[str, Any]:
    """Return small models of every kind, by name."""
    torch.manual_seed(0)
    found: dict[str, Any] = {name(kind): of_kind(SMALL, kind) for kind in KINDS}
    for block in found["class-token"].encoder.blocks:
        for part in (block.attention.q, block.attention.k, block.attention.v):
            part.weight.data *= 8  # makes attention far from uniform
    exact = dataclasses.replace(SMALL, preprocessing=PLAIN)
    found |= {f"planted-{name(kind)}": planted(exact, kind) for kind in KINDS}
    found |= {key: build_vit(dataclasses.replace(SMALL, position=position)) for key, position in POSITIONS.items()}
    found["bag"] = build_vit(dataclasses.replace(SMALL, position=NoPosition()))
    bare = dataclasses.replace(SMALL, num_classes=0, labels=(), registers=2)
    found["bare"] = build_vit(bare)
    found["grey"] = build_vit(dataclasses.replace(SMALL, channels=1, preprocessing=PLAIN))
    found["padded"] = build_vit(dataclasses.replace(SMALL, image_size=(20, 30), pad=True, preprocessing=PLAIN))
    found["masks"] = build_segmenter(SegmenterConfig(bare, num_classes=3, labels=("Background", "pet", "edge")))
    found["bit"] = build(ResNetConfig(image_size=(32, 32), stages=(1, 1), width=32, num_classes=4))
    windows = SwinConfig(
        (36, 52), width=16, depths=(2, 1), stage_heads=(2, 4), window=(4, 4), num_classes=5, labels=LABELS
    )
    found["swin"] = build(
        windows
    )  # 9 x 13 patches: windows are padded and shifted, and a row and a column is merged alone
    found["large"] = build_vit(dataclasses.replace(SMALL, image_size=(512, 512), depth=1, width=16))
    return found


@contextmanager
def inspect_client(served: Sequence[ServedModel], **limits: Any) -> Iterator[tuple[TestClient, InspectService]]:
    """Serve only the inspection routes."""
    scheduler = Scheduler(1, 0.0, 64, Metrics())
    service, app = InspectService(served, scheduler, **limits), FastAPI()
    install(app)
    app.include_router(router(service, Settings()))
    try:
        with TestClient(app) as client:
            yield client, service
    finally:
        asyncio.run(scheduler.stop())


def sample_image(seed: int = 0, height: int = 60, width: int = 90) -> bytes:
    return encoded(smooth(height, width, seed))


def as_given(model: Any, data: bytes) -> Tensor:
    """Preprocess an image file as input for the model."""
    config = model.config
    pixels = fit(data, config.image_size, config.preprocessing, config.channels)
    return normalise(pixels[None].float() / 255, config.preprocessing)


def send(live: Live, model: str, data: bytes | None = None) -> str:
    reply = live.request("POST", f"/v1/images?model={model}", data or sample_image())
    assert reply.status == 200, reply
    return str(reply.json["id"])


def get(live: Live, model: str, path: str, data: bytes | None = None) -> Reply:
    id = send(live, model, data)
    return live.request("GET", f"/v1/images/{id}/{path}{'&' if '?' in path else '?'}model={model}")


def array(reply: Reply, kind: str = "u1", skip: int = 0) -> np.ndarray:
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/octet-stream"
    shape = [int(side) for side in reply.headers["x-shape"].split(",")]
    return np.frombuffer(reply.body, kind, offset=skip).reshape(shape)


def weights_of(reply: Reply, prefix: int) -> np.ndarray:
    """Decode attention as the page does: each row has one scale for prefix keys and one for patch keys."""
    heads, t, m = (int(side) for side in reply.headers["x-shape"].split(","))
    scales = np.frombuffer(reply.body, "<f4", heads * t * 2).reshape(heads, t, 2)
    by_key = np.repeat(scales, [prefix, m - prefix], axis=-1)
    return array(reply, skip=len(reply.body) - heads * t * m) / 255 * by_key


def erase(live: Live, model: str, patches: list[int], classes: list[int], data: bytes | None = None) -> Reply:
    body = json.dumps({"patches": patches, "classes": classes}).encode()
    path = f"/v1/images/{send(live, model, data)}/masked?model={model}"
    return live.request("POST", path, body, "application/json")
