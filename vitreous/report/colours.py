"""Colours for numbers, even to the eye: equal steps of a number are equal steps of lightness (made in Oklab)."""

from functools import cache

import numpy as np
from jaxtyping import Float, UInt8

from vitreous.report.style import from_oklab

# Hue in degrees and chroma, from dark to bright: violet, magenta, red, orange, yellow.
HEAT = ((285, 0.06), (300, 0.15), (355, 0.19), (30, 0.20), (70, 0.16), (105, 0.10))


@cache
def heat() -> Float[np.ndarray, "256 3"]:
    """From nearly black to a light yellow, for what has no sign."""
    hue, chroma = np.array(HEAT).T
    ends = chroma[:, None] * np.stack([np.cos(np.radians(hue)), np.sin(np.radians(hue))], axis=-1)
    at, steps = np.linspace(0, 1, len(HEAT)), np.linspace(0, 1, 256)
    colour = np.stack([np.interp(steps, at, ends[:, axis]) for axis in (0, 1)], axis=-1)
    return from_oklab(np.concatenate([0.14 + 0.83 * steps[:, None], colour], axis=1))


@cache
def signed() -> Float[np.ndarray, "256 3"]:
    """Blue for less than nothing, white for nothing, red for more."""
    steps = np.linspace(-1, 1, 256)
    towards = np.where(steps[:, None] < 0, np.array([-0.04, -0.15]), np.array([0.17, 0.09]))
    return from_oklab(np.concatenate([0.97 - 0.45 * np.abs(steps)[:, None], np.abs(steps)[:, None] * towards], axis=1))


def paint(values: np.ndarray, table: np.ndarray) -> UInt8[np.ndarray, "*shape 3"]:
    """Numbers from 0 to 1 as colours."""
    index = np.nan_to_num(np.clip(values, 0, 1) * 255).round().astype(int)
    return (table[index] * 255).round().astype(np.uint8)


def css(table: np.ndarray) -> str:
    """The same colours for a style sheet, from left to right."""
    stops = ", ".join("#" + bytes(paint(np.array(t), table)).hex() for t in np.linspace(0, 1, 11))
    return f"linear-gradient(to right, {stops})"
