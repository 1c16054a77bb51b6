"""Fixtures with Chromium and a running server. Without Chromium the tests are skipped (see tests/conftest.py); if the
variable VITREOUS_BROWSER is "required", as in continuous integration, they fail instead."""

import dataclasses
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import vitreous
from browser.actions import sample_image
from browser_path import NAMES, browser_path
from vitreous.model.build import build, build_segmenter
from vitreous.model.config import ResNetConfig, SegmenterConfig
from vitreous.model.options import GlobalAverage, Rotary2d
from vitreous.model.protocol import Model
from vitreous.model.swin_config import SwinConfig, SwinV2

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
]
START_SECONDS = 120  # for a server on a busy machine
TIMEOUT = 30_000  # milliseconds
KEY = "open-sesame"


@dataclass
class Site:
    """A running server and its address."""

    url: str
    process: subprocess.Popen[str]


@dataclass
class Watch:
    """Console errors and requests of a page."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of lines that the test expects: Chromium logs every error response

    def check(self) -> None:
        unexpected = [line for line in self.errors if not any(one in line for one in self.expected)]
        assert not unexpected
        hosts = {urlsplit(url).hostname for url in self.requests if urlsplit(url).scheme not in ("data", "blob")}
        assert hosts <= {"127.0.0.1"}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Closed after each file because Playwright's event loop disturbs other tests."""
    path = browser_path()
    if path is None:
        pytest.fail(f"no Chromium on the PATH under any of the names {', '.join(NAMES)}")
    with sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models with a grid of 6 x 8 patches: classifiers, an encoder, a segmenter, two Swin and a ResNet."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    sizes = {"depth": 3, "width": 48, "num_heads": 3, "mlp_width": 96}
    labels = ("heron", "otter", "newt", "plover", "stoat", "wren")
    birds = vitreous.create("ViT-Ti/16", num_classes=6, image_size=(96, 128), overrides={**sizes, "labels": labels})
    bare = vitreous.create("ViT-Ti/16", num_classes=0, image_size=(96, 128), overrides={**sizes, "registers": 2})
    pooled = vitreous.create(
        "ViT-Ti/16",
        num_classes=3,
        image_size=(96, 128),
        overrides={**sizes, "class_token": False, "pool": GlobalAverage()},
    )
    rotary = vitreous.create(
        "ViT-Ti/16",
        num_classes=3,
        image_size=(96, 128),
        overrides={**sizes, "class_token": False, "registers": 2, "pool": GlobalAverage(), "position": Rotary2d()},
    )
    windows = SwinConfig(
        (96, 128), patch_size=(16, 16), width=24, depths=(2, 1), stage_heads=(2, 4), window=(4, 4), num_classes=6,
        labels=labels,
    )  # fmt: skip
    swin, second = build(windows), build(dataclasses.replace(windows, version=SwinV2()).with_classes(0))
    plain = ResNetConfig(image_size=(64, 64), stages=(1, 1), width=32, num_classes=3)
    config = SegmenterConfig(bare.config, num_classes=3, labels=("background", "bird", "water"))
    masks = build_segmenter(config)
    for model in (birds, bare, pooled, masks, rotary, swin, second):
        for parameter in model.parameters():  # so that the predictions depend on the image
            parameter.data.add_(torch.randn_like(parameter), alpha=0.15)
    made: dict[str, Model] = {
        "birds": birds,
        "bare": bare,
        "pooled": pooled,
        "masks": masks,
        "plain": build(plain),
        "rotary": rotary,
    }
    made |= {"swin": swin, "swin2": second}
    for name, model in made.items():
        vitreous.save(model, folder / name)
    return {name: folder / name for name in made}


def started(*arguments: str | Path, key: str | None = None) -> Site:
    """Start `vitreous serve` on a free port."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"VITREOUS_API_KEY": key} if key else {})}
    command = [sys.executable, "-m", "vitreous", "serve", *map(str, arguments), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str] = queue.Queue()
    out = process.stdout
    assert out is not None
    threading.Thread(target=lambda: lines.put(out.readline()), daemon=True).start()
    try:
        greeting = lines.get(timeout=START_SECONDS)
        return Site(next(word for word in greeting.split() if word.startswith("http://")), process)
    except (queue.Empty, StopIteration):
        process.kill()
        process.wait()
        out.close()
        pytest.fail(f"the server does not start: {' '.join(command)}")


def stopped(site: Site) -> None:
    site.process.terminate()
    assert site.process.wait(timeout=60) == 0
    assert site.process.stdout is not None
    site.process.stdout.close()


@pytest.fixture(scope="session")
def site(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server with all models and a gallery of three images."""
    folder = tmp_path_factory.mktemp("gallery")
    for seed in range(3):
        (folder / f"{seed}.png").write_bytes(sample_image(seed=seed))
    running = started(*checkpoints.values(), "--gallery", folder)
    yield running.url
    stopped(running)


@pytest.fixture(scope="session")
def strict_site(checkpoints: dict[str, Path]) -> Iterator[str]:
    """URL of a server with one model, an API key, a queue of one request and a small image limit."""
    running = started(checkpoints["birds"], "--queue", "1", "--max-body-mb", "0.05", key=KEY)
    yield running.url
    stopped(running)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def open_page(chromium: Browser, watch: Watch) -> Iterator[Callable[..., Page]]:
    """Open pages; after the test, there must be no unexpected error or request."""
    contexts: list[BrowserContext] = []

    def opened(url: str, wait: bool = True, **options: Any) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **options})
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: watch.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: watch.errors.append(str(error)))
        page.on("request", lambda request: watch.requests.append(request.url))
        page.goto(url)
        if wait:
            page.locator("body[data-ready=yes]").wait_for()
        return page

    expect.set_options(timeout=TIMEOUT)
    yield opened
    for context in contexts:
        context.close()
    watch.check()
