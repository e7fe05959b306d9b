"""Colours of a picture's profile, its code points or the gamma of a PNG file as sRGB, as browsers show it."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from PIL import Image, ImageCms

from vitviz.errors.messages import quote
from vitviz.images.code_points import BT2020, HDR, KEY, PRIMARIES, CodePoints, srgb_light, to_standard_range

ColorProfile = Literal["apply", "ignore"]
COLOR_PROFILES: tuple[ColorProfile, ...] = get_args(ColorProfile)
# How the sentence on a conversion begins.
CONVERTED = "its colours are converted to sRGB"
# Profiles that change no level by more are those of sRGB, written by another program.
SRGB_LEVELS = 2
# Pillow's mode for each colour space in a profile's header.
PROFILE_MODES = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
GREY_MODES = ("1", "L", "LA", "La", "F")
# White and the three primaries of sRGB, as in a PNG's cHRM chunk.
SRGB_CHROMATICITIES = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
# libpng, too, takes a gamma this close to that of sRGB for its curve.
GAMMA_TOLERANCE = 0.05
D50 = (0.9642, 1.0, 0.8249)
BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


Conversion = Callable[[Image.Image], Image.Image]
"""From a picture to a new one, RGB in sRGB."""


def conversion_of(image: Image.Image) -> tuple[Conversion | None, str]:
    """The conversion of an image's colours to sRGB, and a sentence on it; None and "" if they are sRGB already.

    A profile that is damaged or for pictures of another kind is not applied, as in browsers.
    """
    # CIELAB is of no device, and Pillow converts it by itself.
    info = {} if image.mode == "LAB" else image.info
    points, profile, gamma = (info.get(name) for name in (KEY, "icc_profile", "gamma"))
    try:
        if isinstance(points, CodePoints):
            return conversion_of_points(points)
        if profile:
            is_grey = image.mode in GREY_MODES or image.mode.startswith("I")
            return _conversion(profile, "CMYK" if image.mode == "CMYK" else "L" if is_grey else "RGB")
        if gamma and "srgb" not in info:
            return _conversion_of_gamma(gamma, info.get("chromaticity", SRGB_CHROMATICITIES))
        return None, ""
    # A damaged profile raises several kinds of error, impossible chromaticities others.
    except Exception as error:
        return None, f"its colour profile or gamma cannot be read ({quote(str(error))}): its colours are taken for sRGB"


@lru_cache(maxsize=8)
def _conversion(profile: bytes, kind: str) -> tuple[Conversion | None, str]:
    """The conversion by a profile of a picture of the kind RGB, L or CMYK."""
    mode = PROFILE_MODES.get(profile[16:20], "none that Pillow has")
    if mode != kind and (mode, kind) != ("RGB", "L"):
        raise ValueError(f"for pictures of another kind, {mode}")
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    # As browsers, without the black point compensation that LittleCMS adds to its perceptual intent.
    intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
    transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB", intent)
    name = (source.profile.profile_description or "").strip()
    sentence = f"{CONVERTED} from its colour profile{f' {quote(name)}' * bool(name)}"
    return _unless_srgb(lambda image: transform.apply(image.convert(mode)), mode, sentence)


@lru_cache(maxsize=8)
def conversion_of_points(points: CodePoints) -> tuple[Conversion | None, str]:
    """The same of colours by their code points."""
    if points.curve is None or points.chromaticities is None:
        return None, f"its colours, {points}, are not converted: they are taken for sRGB"
    return _conversion_of_light(points.curve, points.chromaticities, points.transfer, str(points))


@lru_cache(maxsize=8)
def _conversion_of_gamma(gamma: float, chromaticities: tuple[float, ...]) -> tuple[Conversion | None, str]:
    """The conversion of a PNG's gamma and chromaticities, https://www.w3.org/TR/png-3/."""
    curve = srgb_light if abs(gamma * 2.2 - 1) <= GAMMA_TOLERANCE else lambda values: values ** (1 / gamma)
    return _conversion_of_light(curve, chromaticities, None, f"its PNG gamma {gamma:g}")


def _conversion_of_light(
    curve: Callable[[np.ndarray], np.ndarray], chromaticities: tuple[float, ...], transfer: int | None, origin: str
) -> tuple[Conversion | None, str]:
    """The conversion of colours whose curve gives light in primaries of these chromaticities."""
    light = curve(np.arange(256) / 255).astype(np.float32)
    is_hdr = transfer in HDR
    middle = PRIMARIES[BT2020][1] if is_hdr else SRGB_CHROMATICITIES
    to_middle, to_srgb = _between(chromaticities, middle), _between(middle, SRGB_CHROMATICITIES)
    # The level for each of 65,536 amounts of light: finer than levels where sRGB is steepest.
    levels = np.searchsorted(srgb_light((np.arange(255) + 0.5) / 255), np.linspace(0, 1, 65536)).astype(np.uint8)

    def convert(image: Image.Image) -> Image.Image:
        colours = light[np.asarray(image.convert("RGB"))] @ to_middle
        if is_hdr:
            colours = to_standard_range(colours.clip(0), transfer) @ to_srgb
        return Image.fromarray(levels[np.rint(colours.clip(0, 1) * 65535).astype(np.uint16)])

    return _unless_srgb(convert, "RGB", f"{CONVERTED} from {origin}")


def _unless_srgb(conversion: Conversion, mode: str, sentence: str) -> tuple[Conversion | None, str]:
    """A conversion and its sentence; None and "" if it changes no level of RGB or L by more than a few."""
    levels = np.linspace(0, 255, 18).astype(np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(1, -1, 3)
    greys = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, -1, 3)
    colours = greys if mode == "L" else np.concatenate([cube, greys], 1)
    change = np.abs(np.asarray(conversion(Image.fromarray(colours))).astype(int) - colours).max()
    return (None, "") if mode != "CMYK" and change <= SRGB_LEVELS else (conversion, sentence)


def _to_d50(chromaticities: tuple[float, ...]) -> np.ndarray:
    """Linear red, green and blue to XYZ, adapted to D50, by the chromaticities of white and the three primaries."""
    x, y = np.array(chromaticities).reshape(4, 2).clip(1e-5).T
    white, primaries = np.split(np.stack([x / y, np.ones(4), (1 - x - y) / y]), [1], 1)
    columns = primaries * np.linalg.solve(primaries, white[:, 0])
    adaptation = np.diag(BRADFORD @ D50 / (BRADFORD @ white[:, 0]))
    return np.linalg.inv(BRADFORD) @ adaptation @ BRADFORD @ columns


def _between(source: tuple[float, ...], target: tuple[float, ...]) -> np.ndarray:
    """Linear colours of one space to those of another, float32, to multiply rows by."""
    return np.linalg.solve(_to_d50(target), _to_d50(source)).T.astype(np.float32)
