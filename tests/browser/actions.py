"""User actions on the page, and the same data from the server for comparison."""

import base64
import io
import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

TIMES = "\u00d7"  # multiplication sign, also on the button that closes a message
PAGE = Path(__file__).parents[2] / "vitreous" / "page" / "static"

DROP = """([name, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type }));
  for (const kind of ["dragenter", "dragover", "drop"]) {
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
  }
}"""


def sample_image(width: int = 160, height: int = 120, seed: int = 0) -> bytes:
    """A small PNG of coloured squares."""
    squares = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    kept = io.BytesIO()
    Image.fromarray(squares).resize((width, height), Image.Resampling.NEAREST).save(kept, "PNG")
    return kept.getvalue()


def drop(page: Any, data: bytes, kind: str = "image/png", name: str = "picture") -> None:
    """Drop a file on the window."""
    page.evaluate(DROP, [name, kind, base64.b64encode(data).decode()])


PASTE = """([type, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], "pasted", { type }));
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: carried, bubbles: true }));
}"""


def paste(page: Any, data: bytes, kind: str = "image/png") -> None:
    """Paste an image from the clipboard."""
    page.evaluate(PASTE, [kind, base64.b64encode(data).decode()])


def answered(page: Any) -> None:
    """Wait until the first map is shown."""
    page.locator(".pane:not(.empty) .legend:not(.off)").first.wait_for()


def settled(page: Any) -> None:
    """Wait until all requests and computations are done."""
    page.locator("#status:not(.active)").wait_for(state="attached")
    page.wait_for_load_state("networkidle")


def hover(page: Any, row: int, column: int, pane: int = 0, rows: int = 6, columns: int = 8) -> None:
    """Move the mouse to the centre of a patch of a fully visible image."""
    box = page.locator(".picture").nth(pane).bounding_box()
    page.mouse.move(
        box["x"] + (column + 0.5) / columns * box["width"], box["y"] + (row + 0.5) / rows * box["height"], steps=3
    )


def pixels(page: Any, selector: str = ".picture") -> str:
    """The pixels of a canvas as a data URL."""
    return str(page.locator(selector).first.evaluate("(canvas) => canvas.toDataURL()"))


def ask(url: str, body: Any = None, kind: str = "application/json") -> bytes:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": kind} if data is not None else {}), timeout=60) as answer:
        return bytes(answer.read())


def sent(site: str, data: bytes, model: str = "birds", kind: str = "image/png") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ask(f"{site}/v1/images?model={model}", data, kind))
    return answer


def attention(site: str, id: str, layer: int, heads: int = 3, tokens: int = 49, model: str = "birds") -> np.ndarray:
    """Attention [heads, t, t], decoded as the page does."""
    data = ask(f"{site}/v1/images/{id}/attention/{layer}?model={model}")
    scales = np.frombuffer(data, "<f4", heads * tokens * 2).reshape(heads, tokens, 2)
    shares = np.frombuffer(data, np.uint8, offset=heads * tokens * 8).reshape(heads, tokens, tokens)
    prefix = tokens - 48
    return np.repeat(scales, [prefix, 48], axis=-1) * shares / 255


def expect_legend(page: Any, value: float) -> None:
    """Wait until the colour scale ends at this value."""
    shown = page.locator(".legend").first.locator("span").last
    for _ in range(300):  # 30 s: the page may still be waiting for its numbers on a busy machine
        text = shown.inner_text().removeprefix("≥ ")
        if text and float(text) == pytest.approx(value, rel=0.01):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"the legend ends at {text!r}, not at {value:.4g}")


def bars(page: Any, pane: int = 0) -> dict[str, str]:
    """Labels and percentages of the bars."""
    rows = page.locator(".pane").nth(pane).locator(".bar")
    return {row.locator(".label").inner_text(): row.locator(".number").inner_text() for row in rows.all()}


def percents(predictions: list[dict[str, Any]]) -> dict[str, str]:
    return {one["label"]: f"{one['probability'] * 100:.1f}%" for one in predictions}
