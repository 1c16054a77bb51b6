"""The page of `vitreous serve` in Chromium: time to the first map, hover latency, and frames per second while hovering.

Each round starts a new browser with an image that the server has not seen. "First map" is the time from choosing an
image until its attention is drawn, with the model loaded; it includes the upload and the forward pass. Nothing else
should run on the machine.

    python -m benchmarks.served_page CHECKPOINT [--image FILE] [--rounds 5]
"""

import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from benchmarks.web_page import FLAGS, TIMEOUT, find_browser, hover_times, print_medians
from vitreous.page import STATIC

DRAWN = ".pane:not(.empty) .legend:not(.off)"
MOVES = 300
# Records the time of every frame.
FRAMES = """() => {
  window.frames_drawn = [];
  const frame = (time) => { window.frames_drawn.push(time); window.frame_request = requestAnimationFrame(frame); };
  window.frame_request = requestAnimationFrame(frame);
}"""
FRAME_TIMES = "() => { cancelAnimationFrame(window.frame_request); return window.frames_drawn; }"


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Annotated[str, tyro.conf.Positional]
    image: Path = STATIC / "examples" / "oranges.webp"
    rounds: int = 5
    port: int = 8765


def main(options: Options) -> None:
    browser = find_browser()
    with served(options.checkpoint, options.port) as url, tempfile.TemporaryDirectory() as folder:
        rows = [measure(browser, url, altered(options.image, i, folder)) for i in range(options.rounds)]
    print_medians(f"{options.checkpoint} on a server", rows)


@contextmanager
def served(checkpoint: str, port: int) -> Iterator[str]:
    """Run `vitreous serve` in the `with` block. Yield its address."""
    url = f"http://127.0.0.1:{port}/"
    server = subprocess.Popen([sys.executable, "-m", "vitreous", "serve", checkpoint, "--port", str(port)])
    try:
        for _ in range(600):
            time.sleep(0.2)
            try:
                urllib.request.urlopen(f"{url}readyz", timeout=5).close()
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit(f"the server ended with exit code {server.returncode}")
        yield url
    finally:
        server.terminate()
        server.wait()


def altered(image: Path, number: int, folder: str) -> Path:
    """Write a copy of an image with another pixel, which the server has not seen before."""
    with Image.open(image) as opened:
        copy = opened.convert("RGB")
    copy.putpixel((0, 0), (number, 0, 0))
    file = Path(folder, f"{number}.png")
    copy.save(file)
    return file


def measure(browser: str, url: str, image: Path) -> dict[str, float]:
    """Return the seconds of each step in a new browser, and the frames per second."""
    with sync_playwright() as drivers:
        chromium = drivers.chromium.launch(executable_path=browser, args=FLAGS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(TIMEOUT)
        page.goto(url)
        page.wait_for_load_state("networkidle")
        start = time.perf_counter()
        page.locator("#file").set_input_files(image)
        page.wait_for_url(re.compile("image=[0-9a-f]{16}"))
        page.locator(DRAWN).wait_for()
        first = time.perf_counter() - start
        page.locator("#status:not(.active)").wait_for(state="attached")
        hovers = hover_times(page)
        intervals = frame_intervals(page)
        chromium.close()
    return {
        "first map": first,
        "hover, median": statistics.median(hovers),
        "hover, 95th percentile": statistics.quantiles(hovers, n=20)[-1],
        "frame while hovering, mean": statistics.fmean(intervals),
        "frame while hovering, 95th percentile": statistics.quantiles(intervals, n=20)[-1],
    }


def frame_intervals(page: Page) -> list[float]:
    """Return the seconds between the frames that are drawn while the pointer moves over the image all the time."""
    box = page.locator(".picture").bounding_box()
    assert box is not None
    page.evaluate(FRAMES)
    for step in range(MOVES):
        across, down = abs((step / 100) % 2 - 1), abs((step / 37) % 2 - 1)
        page.mouse.move(box["x"] + (0.1 + 0.8 * across) * box["width"], box["y"] + (0.1 + 0.8 * down) * box["height"])
        page.wait_for_timeout(8)
    times = page.evaluate(FRAME_TIMES)
    return [(after - before) / 1000 for before, after in itertools.pairwise(times)]


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
