"""The GIF encoder of the page, decoded by Pillow."""

import io
import json
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from vitreous.page import STATIC

NODE = shutil.which("node")
ENCODE = """
const { encodeGif } = await import(process.argv[1]);
const { readFileSync } = await import("node:fs");
const { frames, delay } = JSON.parse(readFileSync(0, "utf-8"));
process.stdout.write(await encodeGif(frames, delay));
"""


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
@pytest.mark.parametrize("colours", [7, 200, 60_000])
def test_pillow_reads_the_frames(colours: int) -> None:
    """Few colours are exact. Many are approximated: the larger table also makes the code table overflow."""
    rng = np.random.default_rng(colours)
    palette = rng.integers(0, 32, (colours, 3)) * 8 if colours < 256 else rng.integers(0, 256, (colours, 3))
    pixels = palette[rng.integers(0, colours, (3, 70, 90))].astype(np.uint8)
    opaque = np.concatenate([pixels, np.full((3, 70, 90, 1), 255, np.uint8)], axis=-1)
    frames = [{"width": 90, "height": 70, "data": frame.ravel().tolist()} for frame in opaque]
    command = [str(NODE), "--input-type=module", "--eval", ENCODE, "--", (STATIC / "widgets" / "gif.js").as_uri()]
    given = json.dumps({"frames": frames, "delay": 450}).encode()
    run = subprocess.run(command, input=given, capture_output=True, check=True)
    with Image.open(io.BytesIO(run.stdout)) as gif:
        assert (gif.n_frames, gif.info["loop"], gif.info["duration"]) == (3, 0, 450)
        for index in range(3):
            gif.seek(index)
            difference = np.abs(np.asarray(gif.convert("RGB"), dtype=int) - pixels[index])
            assert difference.mean() < (30 if colours > 256 else 1e-9)
