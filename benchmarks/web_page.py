"""The page of `vitreous export --to web` in Chromium: time to the first map, latency of interactions, folder size.

Each round starts a new browser with an empty cache. "Own image" is the time from opening the address until the
attention of an image that the page has not seen before is drawn; it includes downloading, compiling and running the
model. The host is on the same machine.

    python -m benchmarks.web_page FOLDER [--image FILE] [--rounds 5] [--threads]
"""

import functools
import gzip
import http.server
import os
import re
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from playwright.sync_api import Page, sync_playwright

from vitreous.page import STATIC

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
NAMES = ("chromium", "chromium-browser", "google-chrome")
HOVERS = 150
TIMEOUT = 120_000  # milliseconds
COMPUTE = """async ([what, choices]) => {
  const start = performance.now();
  await window.session[what](...choices);
  return (performance.now() - start) / 1000;
}"""
OPEN = """async (data) => {
  const { source } = await import("./page/source.js");
  const { models } = await source.start();
  window.session = source.session(models[0], { blob: new Blob([Uint8Array.from(data)], { type: "image/png" }) });
  const start = performance.now();
  await session.open();
  return (performance.now() - start) / 1000;
}"""


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    folder: Annotated[Path, tyro.conf.Positional]
    image: Path = STATIC / "examples" / "oranges.webp"
    rounds: int = 5
    threads: bool = False  # send the headers that allow threads in WebAssembly


class Handler(http.server.SimpleHTTPRequestHandler):
    """Static host."""

    def __init__(self, *given: Any, threads: bool, **options: Any):
        self.threads = threads
        super().__init__(*given, **options)

    def end_headers(self) -> None:
        if self.threads:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def main(options: Options) -> None:
    browser = find_browser()
    print_sizes(options.folder)
    handler = functools.partial(Handler, directory=str(options.folder), threads=options.threads)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        rows = [measure(browser, url, options.image) for _ in range(options.rounds)]
        server.shutdown()
    print_medians(f"{os.cpu_count()} threads" if options.threads else "1 thread", rows)


def find_browser() -> str:
    """Return the path of Chromium."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    sys.exit(f"no Chromium on the PATH under any of the names {', '.join(NAMES)}")


def print_medians(title: str, rows: Sequence[Mapping[str, float]]) -> None:
    """Print the median and the worst value of all rounds."""
    print(f"Chromium, {title}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {len(rows)} rounds")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:38} median {statistics.median(values):7.4f} s   worst {max(values):7.4f} s")


def measure(browser: str, url: str, image: Path) -> dict[str, float]:
    """Return the seconds of each step in a new browser."""
    with sync_playwright() as drivers:
        chromium = drivers.chromium.launch(executable_path=browser, args=FLAGS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(TIMEOUT)
        start = time.perf_counter()
        page.goto(url)
        page.locator(".pane:not(.empty) .legend:not(.off)").wait_for()
        example = time.perf_counter() - start
        page.locator("#file").set_input_files(image)
        page.wait_for_url(re.compile("image=[0-9a-f]{16}"))
        page.locator(".pane:not(.empty) .legend:not(.off)").wait_for()
        own = time.perf_counter() - start
        page.locator("#status:not(.active)").wait_for(state="attached")
        hovers = hover_times(page)
        seconds = {
            "example, precomputed": example,
            "own image, first map": own,
            "hover, median": statistics.median(hovers),
            "hover, 95th percentile": statistics.quantiles(hovers, n=20)[-1],
            **compute_times(page, image),
        }
        chromium.close()
    return seconds


def hover_times(page: Page) -> list[float]:
    """Return the seconds from a pointer event until the maps of its patch are drawn."""
    page.evaluate("performance.clearMeasures('hover')")
    box = page.locator(".picture").bounding_box()
    assert box is not None
    for step in range(HOVERS):
        across, down = (step * 0.173) % 1, (step * 0.119) % 1
        page.mouse.move(box["x"] + (0.2 + 0.6 * across) * box["width"], box["y"] + (0.2 + 0.6 * down) * box["height"])
        page.wait_for_timeout(20)
    measured = page.evaluate("performance.getEntriesByName('hover').map(({ duration }) => duration / 1000)")
    return [float(value) for value in measured]


def compute_times(page: Page, image: Path) -> dict[str, float]:
    """Return the seconds of computations with a loaded model."""
    forward = page.evaluate(OPEN, list(image.read_bytes()))
    classes = page.evaluate("session.shown.predictions?.[0].index ?? null")
    if classes is None:
        return {"decode and forward pass": forward}
    target = {"target": classes}
    return {
        "decode and forward pass": forward,
        "erase a patch": page.evaluate(COMPUTE, ["masked", [[1, 2, 3], [classes]]]),
        "relevance, with loading its graph": page.evaluate(COMPUTE, ["map", ["relevance", target]]),
        "occlusion": page.evaluate(COMPUTE, ["map", ["occlusion", target]]),
        "faithfulness of rollout": page.evaluate(COMPUTE, ["faithfulness", ["rollout", target]]),
    }


def print_sizes(folder: Path) -> None:
    """Print the size of the folder, and its size after gzip, which most hosts apply."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for part in ("model", "runtime", "examples", "page", ""):
        chosen = [path for path in files if path.is_relative_to(folder / part)]
        size = sum(path.stat().st_size for path in chosen) / 1e6
        packed = sum(len(gzip.compress(path.read_bytes(), 6)) for path in chosen) / 1e6
        print(f"{part or 'all':10} {len(chosen):4} files  {size:7.1f} MB  {packed:7.1f} MB with gzip")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
