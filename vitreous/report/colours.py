"""Colour maps and class colours, even in perceived brightness and difference."""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, UInt8

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

# Hue in degrees and chroma, from dark to bright: violet, magenta, red, orange, yellow.
HEAT = ((285, 0.06), (300, 0.15), (355, 0.19), (30, 0.20), (70, 0.16), (105, 0.10))


@cache
def heat() -> Float[np.ndarray, "256 3"]:
    """Return a colour map from near black to light yellow, for non-negative values."""
    hue, chroma = np.array(HEAT).T
    ends = chroma[:, None] * np.stack([np.cos(np.radians(hue)), np.sin(np.radians(hue))], axis=-1)
    at, steps = np.linspace(0, 1, len(HEAT)), np.linspace(0, 1, 256)
    colour = np.stack([np.interp(steps, at, ends[:, axis]) for axis in (0, 1)], axis=-1)
    return from_oklab(np.concatenate([0.14 + 0.83 * steps[:, None], colour], axis=1))


@cache
def signed() -> Float[np.ndarray, "256 3"]:
    """Return a colour map from blue (negative) through white to red (positive)."""
    steps = np.linspace(-1, 1, 256)
    towards = np.where(steps[:, None] < 0, np.array([-0.04, -0.15]), np.array([0.17, 0.09]))
    return from_oklab(np.concatenate([0.97 - 0.45 * np.abs(steps)[:, None], np.abs(steps)[:, None] * towards], axis=1))


def shades() -> "Colormap":
    """Return a Matplotlib colour map from near white to a dark accent colour."""
    from matplotlib.colors import ListedColormap

    ends = np.array([[0.97, 0.0, -0.003], [0.36, -0.035, -0.105]])
    steps = np.linspace(0, 1, 256)[:, None]
    return ListedColormap(from_oklab(ends[0] * (1 - steps) + ends[1] * steps))


def from_oklab(lab: np.ndarray) -> np.ndarray:
    """Convert Oklab (L, a, b) to sRGB values in [0, 1], clipped to the gamut."""
    to_lms = np.array(
        [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.707614701],
        ]
    )
    linear = ((lab @ to_lms.T) ** 3 @ to_rgb.T).clip(0, 1)
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))


def to_oklab(rgb: np.ndarray) -> np.ndarray:
    """Convert sRGB values in [0, 1] to Oklab (L, a, b), where distances approximate perceived differences."""
    to_lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ to_lms.T) @ to_lab.T)


@cache
def distinct() -> UInt8[np.ndarray, "256 3"]:
    """Return class colours. Each differs as much as possible from black, white, grey and all previous colours."""
    levels = np.linspace(0, 255, 9).round()
    candidates = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = to_oklab(candidates / 255)
    bright = (lab[:, 0] > 0.42) & (lab[:, 0] < 0.95)  # neither dark nor pale, so that colours are visible on any image
    candidates, lab = candidates[bright], lab[bright]
    used = to_oklab(np.array([[0.0] * 3, [0.5] * 3, [1.0] * 3]))
    distance = np.linalg.norm(lab[:, None] - used, axis=-1).min(axis=1)
    chosen: list[int] = []
    while len(chosen) < 256:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(lab - lab[chosen[-1]], axis=-1))
    return candidates[chosen].astype(np.uint8)


def paint(values: np.ndarray, table: np.ndarray) -> UInt8[np.ndarray, "*shape 3"]:
    """Map numbers in [0, 1] to the colours in `table`."""
    index = np.nan_to_num(np.clip(values, 0, 1) * 255).round().astype(int)
    return (table[index] * 255).round().astype(np.uint8)


def css(table: np.ndarray) -> str:
    """Return a colour map as a left-to-right CSS gradient."""
    stops = ", ".join("#" + bytes(paint(np.array(t), table)).hex() for t in np.linspace(0, 1, 11))
    return f"linear-gradient(to right, {stops})"
