"""Colour scales with even steps of lightness, made in Oklab."""

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
    """From nearly black to light yellow, for values without sign."""
    hue, chroma = np.array(HEAT).T
    ends = chroma[:, None] * np.stack([np.cos(np.radians(hue)), np.sin(np.radians(hue))], axis=-1)
    at, steps = np.linspace(0, 1, len(HEAT)), np.linspace(0, 1, 256)
    colour = np.stack([np.interp(steps, at, ends[:, axis]) for axis in (0, 1)], axis=-1)
    return from_oklab(np.concatenate([0.14 + 0.83 * steps[:, None], colour], axis=1))


@cache
def signed() -> Float[np.ndarray, "256 3"]:
    """From blue (negative) through white to red (positive)."""
    steps = np.linspace(-1, 1, 256)
    towards = np.where(steps[:, None] < 0, np.array([-0.04, -0.15]), np.array([0.17, 0.09]))
    return from_oklab(np.concatenate([0.97 - 0.45 * np.abs(steps)[:, None], np.abs(steps)[:, None] * towards], axis=1))


@cache
def shades() -> "Colormap":
    """From nearly white to a dark accent colour, for matplotlib."""
    from matplotlib.colors import ListedColormap

    ends = np.array([[0.97, 0.0, -0.003], [0.36, -0.035, -0.105]])
    steps = np.linspace(0, 1, 256)[:, None]
    return ListedColormap(from_oklab(ends[0] * (1 - steps) + ends[1] * steps))


def from_oklab(lab: np.ndarray) -> np.ndarray:
    """Convert lightness, green to red and blue to yellow to sRGB from 0 to 1, clipped to the gamut."""
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


def paint(values: np.ndarray, table: np.ndarray) -> UInt8[np.ndarray, "*shape 3"]:
    """Colours of numbers from 0 to 1."""
    index = np.nan_to_num(np.clip(values, 0, 1) * 255).round().astype(int)
    return (table[index] * 255).round().astype(np.uint8)


def css(table: np.ndarray) -> str:
    """A scale as a CSS gradient from left to right."""
    stops = ", ".join("#" + bytes(paint(np.array(t), table)).hex() for t in np.linspace(0, 1, 11))
    return f"linear-gradient(to right, {stops})"
