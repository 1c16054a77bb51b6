"""Draw the three example images of the page: `python tests/browser/draw_examples.py FOLDER`.

They are computed from formulas, so no copyright applies: a balloon over hills, oranges on a table, a lighthouse
at dusk. Not needed to run anything: the pictures lie beside the page.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

Field = np.ndarray  # h w
Rgb = np.ndarray  # h w 3, from 0 to 1
FINER = 2  # pixels drawn for each one kept, along a side


def canvas(width: int, height: int) -> tuple[Field, Field]:
    """x and y of every pixel, in pixels of the finished picture."""
    y, x = np.mgrid[0 : height * FINER, 0 : width * FINER].astype(np.float64) / FINER
    return x, y


def noise(x: Field, y: Field, size: float, seed: int) -> Field:
    """Smooth hills and valleys from 0 to 1, about `size` pixels wide."""
    lattice = np.random.default_rng(seed).random((256, 256))
    u, v = x / size, y / size
    i, j = np.floor(u).astype(int), np.floor(v).astype(int)
    s, t = u - i, v - j
    s, t = s * s * (3 - 2 * s), t * t * (3 - 2 * t)

    def corner(di: int, dj: int) -> Field:
        return lattice[(j + dj) % 256, (i + di) % 256]

    return (corner(0, 0) * (1 - s) + corner(1, 0) * s) * (1 - t) + (corner(0, 1) * (1 - s) + corner(1, 1) * s) * t


def cloudy(x: Field, y: Field, size: float, seed: int, octaves: int = 5) -> Field:
    """Noise with finer noise on it."""
    total = sum(noise(x, y, size / 2**k, seed + k) / 2**k for k in range(octaves))
    return np.asarray(total / sum(1 / 2**k for k in range(octaves)))


def colour(*rgb: float) -> np.ndarray:
    return np.array(rgb) / 255


def blend(below: Rgb, above: np.ndarray, share: Field) -> Rgb:
    share = np.clip(share, 0, 1)[..., None]
    return below * (1 - share) + above * share


def edge(distance: Field) -> Field:
    """1 inside, where a distance is negative, and 0 outside, with an edge one pixel wide."""
    return np.clip(0.5 - distance, 0, 1)


def sky(y: Field, height: float, *stops: np.ndarray) -> Rgb:
    at = np.clip(y / height, 0, 1) * (len(stops) - 1)
    rows = [np.interp(at, range(len(stops)), [stop[c] for stop in stops]) for c in range(3)]
    return np.stack(rows, axis=-1)


def finished(picture: Rgb, grain: int) -> Image.Image:
    rng = np.random.default_rng(grain)
    h, w, _ = picture.shape
    picture = picture + rng.normal(0, 0.018, (h, w, 1))
    image = Image.fromarray((np.clip(picture, 0, 1) * 255).round().astype(np.uint8))
    image = image.resize((w // FINER, h // FINER), Image.Resampling.LANCZOS)
    return image.filter(ImageFilter.UnsharpMask(radius=1.2, percent=40))


# ---- Balloon ---------------------------------------------------------------------------------------------------------


def balloon() -> Image.Image:
    width, height = 512, 384
    x, y = canvas(width, height)
    picture = sky(y, 300, colour(74, 128, 190), colour(128, 174, 215), colour(214, 222, 220), colour(248, 226, 190))
    clouds = cloudy(x, y * 2.4, 150, 5)
    picture = blend(picture, colour(255, 250, 243), (clouds - 0.52) * 3.2 * np.clip(1.2 - y / 260, 0, 1))
    ridges = [(252, 22, 130, 142, 160, 181), (286, 30, 95, 104, 133, 120), (322, 34, 68, 86, 112, 70)]
    for number, (base, tall, size, r, g, b) in enumerate(ridges):
        line = base - tall * cloudy(x + 900 * number, np.full_like(x, 7.0 * number), size, 20 + 9 * number, 4)
        light = 0.86 + 0.35 * cloudy(x, y * 1.8, 22, 60 + number)
        picture = blend(picture, colour(r, g, b) * light[..., None], edge(line - y))
    field = np.clip((y - 318) / 66, 0, 1)
    rows = 0.5 + 0.5 * np.sin((x - 256) / (0.6 + 3.2 * field) * 0.55)
    grass = colour(122, 142, 62) * (0.72 + 0.3 * rows * field + 0.28 * cloudy(x, y, 9, 80))[..., None]
    picture = blend(picture, grass, edge(326 - 8 * np.sin(x / 90) - y))
    return finished(_envelope(x, y, picture), 1)


def _envelope(x: Field, y: Field, picture: Rgb) -> Rgb:
    cx, cy, wide = 268.0, 138.0, 84.0
    v = (y - cy) / 98
    taper = np.where(v > 0.1, np.clip(1 - 0.62 * np.maximum(v - 0.1, 0) ** 1.7, 0, 1), 1)
    radius = wide * np.sqrt(np.clip(1 - v**2 * np.where(v > 0, 0.80, 1), 0, 1)) * taper
    u = np.where(radius > 1, (x - cx) / np.maximum(radius, 1), 2)
    inside = edge(np.abs(x - cx) - radius) * (v < 1.0) * (v > -1)
    angle = np.arcsin(np.clip(u, -1, 1))
    gore = np.floor((angle / np.pi + 0.5) * 12).astype(int) % 4
    cloth = np.stack([colour(206, 48, 40), colour(240, 176, 52), colour(244, 236, 222), colour(38, 84, 140)])[gore]
    band = (np.abs(v - 0.28) < 0.085)[..., None]
    cloth = np.where(band, colour(247, 240, 224), cloth)
    seam = np.abs(((angle / np.pi + 0.5) * 12) % 1 - 0.5)
    light = 0.42 + 0.68 * np.clip(0.62 * np.cos(angle + 0.75) - 0.38 * v + 0.2, 0, 1)
    light = light * (0.9 + 0.14 * np.cos(seam * np.pi)) + 0.1 * np.exp(-((angle + 0.62) ** 2 + (v + 0.42) ** 2) / 0.05)
    picture = blend(picture, cloth * light[..., None], inside)
    for side in (-1, 1):
        along = np.clip((y - 226) / 26, 0, 1)
        rope = np.abs(x - (cx + side * (22 - 10 * along))) - 0.7
        picture = blend(picture, colour(60, 48, 40), edge(rope) * (y > 224) * (y < 254))
    basket = np.maximum(np.abs(x - cx) - 13, np.abs(y - 262) - 9)
    weave = 0.75 + 0.25 * np.sin(x * 1.9) * np.sin(y * 1.9) - 0.012 * (x - cx)
    return blend(picture, colour(140, 92, 52) * weave[..., None], edge(basket))


# ---- Oranges ---------------------------------------------------------------------------------------------------------


def oranges() -> Image.Image:
    width, height = 480, 400
    x, y = canvas(width, height)
    wall = colour(58, 74, 82) * (0.75 + 0.5 * np.exp(-(((x - 130) / 230) ** 2 + ((y - 60) / 190) ** 2)))[..., None]
    picture = wall * (0.97 + 0.06 * cloudy(x, y, 60, 3))[..., None]
    depth = np.clip((y - 190) / 210, 0.001, 1)
    grain = cloudy(x / (0.4 + depth), (y - 190) * 9 / (0.4 + depth), 55, 11)
    rings = 0.5 + 0.5 * np.sin(grain * 26)
    wood = blend(np.broadcast_to(colour(156, 104, 62), picture.shape), colour(108, 66, 36), 0.65 * rings)
    wood = wood * (0.62 + 0.5 * np.exp(-(((x - 190) / 260) ** 2)) * (0.5 + 0.5 * depth))[..., None]
    picture = blend(picture, wood, edge(190 - y))
    balls = [(322, 176, 70), (164, 188, 78), (248, 262, 86)]
    for cx, cy, r in balls:
        shade = np.exp(-((((x - cx - 0.45 * r) / (1.25 * r)) ** 2 + ((y - cy - 0.86 * r) / (0.30 * r)) ** 2) ** 1.3))
        picture = picture * (1 - 0.72 * shade * edge(190 - y))[..., None]
    for number, (cx, cy, r) in enumerate(balls):
        picture = _orange(x, y, picture, cx, cy, r, number)
    return finished(_leaf(x, y, picture), 2)


def _orange(x: Field, y: Field, picture: Rgb, cx: float, cy: float, r: float, number: int) -> Rgb:
    u, v = (x - cx) / r, (y - cy) / r
    z = np.sqrt(np.clip(1 - u**2 - v**2, 0, 1))
    pores = cloudy(np.arctan2(u, z + 0.15) * 110 + 300, np.arcsin(np.clip(v, -1, 1)) * 110 + 300, 5, 40 + number, 2)
    dy, dx = np.gradient(pores)
    nx, ny, nz = u - 0.9 * dx, v - 0.9 * dy, z
    facing = np.clip(-0.55 * nx - 0.62 * ny + 0.56 * nz, 0, 1)
    shine = np.clip(-0.36 * nx - 0.42 * ny + 0.83 * nz, 0, 1) ** 42
    bounce = np.clip(0.75 * v + 0.15, 0, 1) * 0.16
    tone = 0.94 + 0.12 * cloudy(x, y, 50, 70 + number)
    skin = colour(244, 138, 26) * (tone * (0.16 + 0.95 * facing))[..., None] + colour(190, 100, 50) * bounce[..., None]
    skin = skin + shine[..., None] * colour(255, 240, 214) * 0.62
    navel = np.exp(-(((u - 0.18) / 0.07) ** 2 + ((v + 0.62) / 0.045) ** 2))
    return blend(picture, blend(skin, colour(74, 86, 32), navel * (number != 2)), edge(np.hypot(x - cx, y - cy) - r))


def _leaf(x: Field, y: Field, picture: Rgb) -> Rgb:
    a = np.radians(-24)
    u = ((x - 268) * np.cos(a) + (y - 178) * np.sin(a)) / 46
    v = (-(x - 268) * np.sin(a) + (y - 178) * np.cos(a)) / 46
    half = 0.36 * np.clip(1 - u**2, 0, 1) ** 0.8
    vein = np.exp(-((v / 0.025) ** 2)) + 0.4 * np.exp(-((np.sin((u - np.abs(v)) * 16) / 0.22) ** 2))
    light = 0.62 + 0.5 * (v < 0) + 0.2 * u
    green = blend(colour(58, 104, 38) * light[..., None], colour(150, 182, 92), 0.5 * vein)
    return blend(picture, green, edge((np.abs(v) - half) * 46) * (np.abs(u) < 1))


# ---- Lighthouse ------------------------------------------------------------------------------------------------------


def lighthouse() -> Image.Image:
    width, height = 360, 480
    x, y = canvas(width, height)
    sea_line = 322.0
    dusk = (
        colour(32, 40, 84),
        colour(78, 70, 122),
        colour(176, 104, 128),
        colour(246, 160, 108),
        colour(255, 206, 140),
    )
    picture = sky(y, sea_line, *dusk)
    streaks = cloudy(x * 0.6, y * 4.2, 90, 8)
    lit = blend(
        np.broadcast_to(colour(116, 78, 118), picture.shape), colour(255, 186, 150), np.clip(y / sea_line, 0, 1)
    )
    picture = blend(picture, lit, (streaks - 0.5) * 2.6)
    sun = np.hypot(x - 82, (y - 300) * 1.02)
    picture = picture + np.exp(-sun / 60)[..., None] * colour(255, 150, 70) * 0.5
    picture = blend(picture, colour(255, 244, 214), edge(sun - 17))
    near = np.clip((y - sea_line) / 158, 0.001, 1)
    waves = cloudy(x / (0.25 + near), (y - sea_line) * 7 / (0.12 + near), 46, 31)
    mirror = sky(sea_line - (y - sea_line) * 1.7, sea_line, *dusk)
    water = mirror * (0.42 + 0.5 * waves)[..., None]
    glitter = np.exp(-(((x - 82) / (16 + 46 * near)) ** 2)) * np.clip((waves - 0.47) * 9, 0, 1)
    picture = blend(picture, blend(water, colour(255, 222, 160), 0.85 * glitter), edge(sea_line - y))
    picture = _cliff(x, y, picture)
    return finished(_tower(x, y, picture), 3)


def _cliff(x: Field, y: Field, picture: Rgb) -> Rgb:
    top = 352 - 74 * np.clip((x - 118) / 90, 0, 1) ** 0.8 - 26 * (cloudy(x, x * 0, 34, 50) - 0.5)
    foot = 426 + 30 * (cloudy(x, x * 0 + 40, 40, 52) - 0.5) + 0.16 * (x - 110)
    rock = cloudy(x * 1.5, y * 0.8, 30, 54)
    face = colour(92, 72, 74) * (0.30 + 1.15 * rock)[..., None]
    face = blend(face, colour(255, 170, 110) * 0.7, np.clip(1 - (x - 120) / 70, 0, 1) * (rock - 0.3))
    grass = colour(74, 82, 50) * (0.5 + 0.9 * cloudy(x, y * 3, 8, 57))[..., None]
    cliff = blend(face, grass, np.clip(1 - (y - top) / 13, 0, 1))
    inside = edge(top - y) * edge(y - foot) * np.clip((x - 106) / 12, 0, 1)
    foam = np.exp(-((((y - foot) - 2) / (3 + 5 * noise(x, y, 9, 59))) ** 2)) * np.clip((x - 100) / 20, 0, 1)
    return blend(blend(picture, cliff, inside), colour(236, 214, 208), 0.8 * foam)


def _tower(x: Field, y: Field, picture: Rgb) -> Rgb:
    cx, top, foot = 236.0, 118.0, 296.0
    share = (y - top) / (foot - top)
    half = 17 + 11 * share
    u = np.clip((x - cx) / half, -1, 1)
    light = 0.34 + 0.66 * np.clip(np.cos(np.arcsin(u) + 0.85), 0, 1)
    stripe = np.floor(np.clip(share, 0, 0.999) * 5).astype(int) % 2
    wall = np.where(stripe[..., None] == 0, colour(238, 226, 214), colour(188, 52, 46)) * light[..., None]
    wall = wall * (0.95 + 0.1 * cloudy(x, y, 7, 66))[..., None]
    body = np.maximum(np.abs(x - cx) - half, np.maximum(top - y, y - foot - 3 * (1 - u**2)))
    picture = blend(picture, wall, edge(body))
    for wy in (168, 232):
        window = np.maximum(np.abs(x - cx + 4) - 3.2, np.abs(y - wy) - 5.5)
        picture = blend(picture, colour(44, 34, 44), edge(window))
    dark = colour(40, 34, 44)
    gallery = np.maximum(np.abs(x - cx) - 23, np.abs(y - top) - 3)
    rail = np.maximum(np.abs(x - cx) - 23, np.abs(y - 106) - 0.8)
    bars = np.maximum(np.abs(((x - cx + 3.5) % 7) - 3.5) - 0.5, np.maximum(np.abs(x - cx) - 23, np.abs(y - 111) - 5))
    glass = np.maximum(np.abs(x - cx) - 12, np.abs(y - 98) - 17)
    frame = np.maximum(np.abs(((x - cx + 4) % 8) - 4) - 0.7, glass)
    lamp = np.hypot(x - cx, y - 98)
    glow = colour(255, 226, 150) * (0.55 + 0.6 * np.exp(-lamp / 9))[..., None]
    picture = blend(picture, glow, edge(glass))
    for part in (gallery, rail, bars, frame):
        picture = blend(picture, dark * 1.25, edge(part))
    roof = np.maximum(np.abs(x - cx) - (y - 58) * 0.72, np.maximum(58 - y, y - 82))
    picture = blend(picture, colour(150, 44, 42) * (0.5 + 0.6 * (x < cx))[..., None], edge(roof))
    knob = np.hypot(x - cx, y - 57) - 3
    picture = blend(picture, dark, edge(knob))
    beam = np.exp(-(((y - 98 + (cx - x) * 0.10) / (2.5 + np.abs(x - cx) * 0.085)) ** 2)) * np.exp(-np.abs(x - cx) / 150)
    return picture + (0.30 * beam * (x < cx - 12) + 0.55 * np.exp(-lamp / 16))[..., None] * colour(255, 224, 150)


EXAMPLES: dict[str, Callable[[], Image.Image]] = {"balloon": balloon, "oranges": oranges, "lighthouse": lighthouse}


if __name__ == "__main__":
    for name, draw in EXAMPLES.items():
        draw().save(Path(sys.argv[1]) / f"{name}.webp", quality=84, method=6)
