"""Colours that a PNG, AVIF or HEIC file states by code points (CICP) in place of a profile: ITU-T H.273, 2024."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

# Of an image's info.
KEY = "vitviz code points"
# Where primaries and transfer stand in a file: a PNG's chunk of full range, since browsers take no other, and an AVIF's
# boxes (ISO/IEC 23008-12). They stand in its first bytes.
STATED = {"PNG": re.compile(rb"(?s)\0\0\0\x04cICP(.)(.)\0\x01"), "AVIF": re.compile(rb"(?s)colrnclx(..)(..)")}
STATED_BYTES = 2**20
UNSPECIFIED, BT709, BT2020 = 2, 1, 9
# Luminance of white in HDR pictures, cd/m²: ITU-R BT.2408. A screen of 1000 cd/m² shows HLG: ITU-R BT.2100.
WHITE_LUMINANCE, PQ_LUMINANCE, HLG_LUMINANCE, HLG_SYSTEM_GAMMA = 203, 10_000, 1000, 1.2
BT2020_LUMA = (0.2627, 0.678, 0.0593)
# The tone curve of Chromium on a screen of standard range: up to white it halves light, and above it a quadratic
# Bézier curve ends at the brightest light, 1000 cd/m².
SLOPE, KNEE_WEIGHT, BRIGHTEST = 0.5, 0.65, 1000 / WHITE_LUMINANCE
D65 = (0.3127, 0.329)
# Table 2, as phones, cameras and browsers use it: names, and the chromaticities of white, red, green and blue.
PRIMARIES: dict[int, tuple[str, tuple[float, ...]]] = {
    1: ("BT.709", (*D65, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)),
    5: ("BT.601 of 625 lines", (*D65, 0.64, 0.33, 0.29, 0.6, 0.15, 0.06)),
    6: ("BT.601 of 525 lines", (*D65, 0.63, 0.34, 0.31, 0.595, 0.155, 0.07)),
    9: ("BT.2020", (*D65, 0.708, 0.292, 0.17, 0.797, 0.131, 0.046)),
    12: ("Display P3", (*D65, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)),
}


def srgb_light(values: np.ndarray) -> np.ndarray:
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _pq(values: np.ndarray) -> np.ndarray:
    """SMPTE ST 2084."""
    root = values ** (32 / 2523)
    light = (np.maximum(root - 107 / 128, 0) / (2413 / 128 - 2392 / 128 * root)) ** (16384 / 2610)
    return light * PQ_LUMINANCE / WHITE_LUMINANCE


def _hlg(values: np.ndarray) -> np.ndarray:
    """Light of the scene, up to 1: ITU-R BT.2100."""
    a = 0.17883277
    bright = (np.exp((values - 0.5) / a + np.log(4 * a)) + 1 - 4 * a) / 12
    return np.where(values <= 0.5, values**2 / 3, bright)


PQ, HLG = 16, 18
HDR = {PQ: "PQ", HLG: "HLG"}
# Table 3: from values in [0, 1] to light, of which 1 is white. As in Chromium, the curves of cameras, such as BT.709's,
# are taken for that of sRGB.
CURVES: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    **dict.fromkeys((1, 6, 13, 14, 15), srgb_light),
    5: lambda values: values**2.8,
    8: lambda values: values,
    PQ: _pq,
    HLG: _hlg,
}


@dataclass(frozen=True)
class CodePoints:
    """The colours of a picture by their numbers in H.273.

    Args:
        primaries, transfer: of Tables 2 and 3.
    """

    primaries: int
    transfer: int

    @property
    def chromaticities(self) -> tuple[float, ...] | None:
        """Of white and the three primaries; None for unknown ones. Unspecified ones are those of sRGB."""
        return PRIMARIES.get(BT709 if self.primaries == UNSPECIFIED else self.primaries, (None, None))[1]

    @property
    def curve(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """From values in [0, 1] to light; None for an unknown curve. An unspecified one is that of sRGB."""
        return CURVES.get(BT709 if self.transfer == UNSPECIFIED else self.transfer)

    def __str__(self) -> str:
        numbers = f"CICP {self.primaries}, {self.transfer}"
        name = PRIMARIES.get(self.primaries, ("unknown primaries",))[0]
        curve = f", {HDR[self.transfer]} in the tones of standard range" if self.transfer in HDR else ""
        return f"{name} ({numbers}{curve})"


def to_standard_range(light: np.ndarray, transfer: int | None) -> np.ndarray:
    """HDR light, of the curve :data:`PQ` or :data:`HLG`, on a screen of standard range, as Chromium shows it.

    Args:
        light: in the primaries of BT.2020, ``"... channel"``.
    """
    if transfer == HLG:
        luminance = light @ np.array(BT2020_LUMA, light.dtype)
        light = light * luminance[..., None] ** (HLG_SYSTEM_GAMMA - 1) * (HLG_LUMINANCE / WHITE_LUMINANCE)
    brightest = light.max(-1, keepdims=True)
    # x = 1 + 2 w t + (H - 1 - 2 w) t², and likewise y, for t in [0, 1].
    linear, quadratic = 2 * KNEE_WEIGHT, BRIGHTEST - 1 - 2 * KNEE_WEIGHT
    t = (np.sqrt(linear**2 + 4 * quadratic * (brightest.clip(1, BRIGHTEST) - 1)) - linear) / (2 * quadratic)
    knee = SLOPE + 2 * KNEE_WEIGHT * (1 - SLOPE) * t + (1 - SLOPE) * (1 - 2 * KNEE_WEIGHT) * t**2
    return light * np.where(brightest <= 1, SLOPE, knee / np.maximum(brightest, 1))


def read_code_points(image: Image.Image, start: bytes) -> None:
    """Keep the code points of an image in its ``info``, where it has any: in a PNG they count before a profile.

    Args:
        image: opened, not decoded.
        start: of its file.
    """
    # As pillow-heif gives them.
    stated = image.info.get("nclx_profile")
    if image.format != "PNG" and image.info.get("icc_profile"):
        return
    if isinstance(stated, dict):
        image.info[KEY] = CodePoints(int(stated["color_primaries"]), int(stated["transfer_characteristics"]))
    elif image.format in STATED:
        # The chunks of a PNG file before its pixels.
        found = set(STATED[image.format].findall(start.partition(b"IDAT")[0]))
        if found:
            # Which of several is that of the picture, and not of its transparency, is not looked up.
            numbers = [int.from_bytes(each, "big") for each in found.pop()] if len(found) == 1 else (0, 0)
            image.info[KEY] = CodePoints(*numbers)
