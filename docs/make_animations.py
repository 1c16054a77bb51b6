"""Record the walk and the layers of a map from the real page, as the animations in docs/images.

    python docs/make_animations.py CHECKPOINT [--image-size 224] [--example oranges]

It needs Chromium on the PATH, Playwright and Pillow. The page draws a moment of the walk as a function of time, so the
script asks for one moment after the other, and the result does not depend on the speed of the machine.
"""

import argparse
import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SECONDS, FRAMES_PER_SECOND = 20, 10
SIZE = {"width": 1120, "height": 700}
WIDTH = 840  # of the animations
MAX_BYTES = 2_000_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--image-size", default="224")
    parser.add_argument("--example", default="oranges", choices=("balloon", "oranges", "lighthouse"))
    given = parser.parse_args()
    command = [sys.executable, "-m", "vitreous", "serve", given.checkpoint, "--image-size", given.image_size]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport=SIZE, color_scheme="dark", locale="en-US")
            page.set_default_timeout(120_000)
            page.goto(f"{url}/#image={given.example}")
            page.locator(".pane:not(.empty) .legend:not(.off)").wait_for()
            page.locator("#status:not(.active)").wait_for(state="attached")
            page.wait_for_load_state("networkidle")
            page.locator("#language").evaluate("(node) => (node.hidden = true)")  # its font may be missing
            save(layer_frames(page), IMAGES / "layers.webp", 450)
            save(walk_frames(page), IMAGES / "walk.webp", 1000 // FRAMES_PER_SECOND)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def layer_frames(page: Page) -> list[Image.Image]:
    """One frame per layer and map, with the matrix of heads beside it."""
    frames = []
    for name in ("attention", "similarity", "pca"):
        page.locator(f"[data-map={name}]").click()
        slider = page.locator(".layer-slider input")
        for layer in range(1, int(slider.get_attribute("max") or 1) + 1):
            slider.evaluate("(node, at) => { node.value = at; node.dispatchEvent(new Event('input')); }", layer)
            page.locator("#status:not(.active)").wait_for(state="attached")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(120)
            frames.append(screenshot(page))
        frames += frames[-1:] * 2  # the last layer stays longer
    return frames


def walk_frames(page: Page) -> list[Image.Image]:
    page.get_by_role("button", name="Walk through").click()
    page.locator("#walk[data-step]").wait_for()
    pause = page.get_by_role("button", name="Pause")
    if pause.count():
        pause.click()
    line, count = page.locator(".timeline"), SECONDS * FRAMES_PER_SECOND
    length, frames = float(line.get_attribute("max") or 0), []
    for frame in range(count):
        at = length * frame / (count - 1)
        line.evaluate("(node, at) => { node.value = at; node.dispatchEvent(new Event('input')); }", at)
        frames.append(screenshot(page))
    return frames


def screenshot(page: Page) -> Image.Image:
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return image.resize((WIDTH, WIDTH * image.height // image.width), Image.Resampling.LANCZOS)


def save(frames: list[Image.Image], path: Path, milliseconds: int) -> None:
    """Write an animation, with the best quality that is small enough."""
    for quality in (80, 65, 50, 35, 20):
        data = io.BytesIO()
        options = {"save_all": True, "append_images": frames[1:], "duration": milliseconds, "loop": 0}
        frames[0].save(data, "WEBP", quality=quality, method=4, minimize_size=False, **options)
        if data.tell() < MAX_BYTES:
            path.write_bytes(data.getvalue())
            seconds = len(frames) * milliseconds / 1000
            print(f"{path.name}: {len(frames)} frames, {seconds:.0f} s, {data.tell() / 1e6:.2f} MB, quality {quality}")
            return
    sys.exit(f"{path.name}: more than {MAX_BYTES} bytes")


if __name__ == "__main__":
    main()
