"""Colours that a PNG, AVIF or HEIC file states by code points (CICP) in place of a profile: ITU-T H.273, 2024."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

# Of an image's info.
KEY = "vitviz code points"
# The first chunks and boxes of a file; more of them, or a larger box of descriptions, are not read.
MAX_BOXES, MAX_META_BYTES = 1000, 2**20
UNSPECIFIED, BT709, BT2020 = 2, 1, 9
# Luminance of white in HDR pictures, cd/m²: ITU-R BT.2408. A screen of 1000 cd/m² shows HLG: ITU-R BT.2100.
WHITE_LUMINANCE, PQ_LUMINANCE, HLG_LUMINANCE, HLG_SYSTEM_GAMMA = 203, 10_000, 1000, 1.2
BT2020_LUMA = (0.2627, 0.678, 0.0593)
# The tone curve of Chromium on a screen of standard range: up to white it halves light, and above it a quadratic
# Bézier curve ends at the brightest light, 1000 cd/m².
SLOPE, KNEE_WEIGHT, BRIGHTEST = 0.5, 0.65, 1000 / WHITE_LUMINANCE
D65, WHITE_C = (0.3127, 0.329), (0.31, 0.316)
# Table 2: names, and the chromaticities of white, red, green and blue.
PRIMARIES: dict[int, tuple[str, tuple[float, ...]]] = {
    1: ("BT.709", (*D65, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)),
    4: ("BT.470 M", (*WHITE_C, 0.67, 0.33, 0.21, 0.71, 0.14, 0.08)),
    5: ("BT.601 of 625 lines", (*D65, 0.64, 0.33, 0.29, 0.6, 0.15, 0.06)),
    6: ("BT.601 of 525 lines", (*D65, 0.63, 0.34, 0.31, 0.595, 0.155, 0.07)),
    7: ("SMPTE 240M", (*D65, 0.63, 0.34, 0.31, 0.595, 0.155, 0.07)),
    9: ("BT.2020", (*D65, 0.708, 0.292, 0.17, 0.797, 0.131, 0.046)),
    11: ("DCI-P3", (0.314, 0.351, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)),
    12: ("Display P3", (*D65, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)),
    22: ("EBU 3213", (*D65, 0.63, 0.34, 0.295, 0.605, 0.155, 0.077)),
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
    4: lambda values: values**2.2,
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
        name = PRIMARIES.get(self.primaries, (numbers,))[0]
        curve = f", {HDR[self.transfer]} in the tones of standard range" if self.transfer in HDR else ""
        return f"{name} ({numbers}{curve})" if name != numbers else f"{numbers}{curve}"


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
    shown = SLOPE + 2 * KNEE_WEIGHT * (1 - SLOPE) * t + (1 - SLOPE) * (1 - 2 * KNEE_WEIGHT) * t**2
    return light * np.where(brightest <= 1, SLOPE, shown / np.maximum(brightest, 1))


def read_code_points(image: Image.Image, file: Any) -> None:
    """Keep the code points of an image in its ``info``, where it has any: in a PNG they count before a profile.

    Args:
        image: opened, not decoded.
        file: that it was opened from, as far as it is still open.
    """
    reader = {"PNG": _of_png, "AVIF": _of_avif}.get(image.format or "")
    # As pillow-heif gives them.
    stated = image.info.get("nclx_profile")
    if image.format != "PNG" and image.info.get("icc_profile"):
        return
    if isinstance(stated, dict):
        image.info[KEY] = CodePoints(int(stated["color_primaries"]), int(stated["transfer_characteristics"]))
    elif reader is not None and file is not None and getattr(image, "tile", None):
        position = file.tell()
        with suppress(struct.error, IndexError):
            points = reader(file)
            if points is not None:
                image.info[KEY] = points
        file.seek(position)


def _of_png(file: Any) -> CodePoints | None:
    file.seek(8)
    for _ in range(MAX_BOXES):
        length, kind = struct.unpack(">I4s", file.read(8))
        if kind == b"cICP":
            primaries, transfer, matrix, is_full = struct.unpack(">4B", file.read(length))
            # Browsers take no others.
            return CodePoints(primaries, transfer) if is_full and not matrix else None
        if kind == b"IDAT":
            break
        file.seek(length + 4, io.SEEK_CUR)
    return None


def _of_avif(file: Any) -> CodePoints | None:
    """ISO/IEC 23008-12: the colours among the properties of the primary item."""
    file.seek(0)
    meta = b""
    for _ in range(MAX_BOXES):
        size, kind = struct.unpack(">I4s", file.read(8))
        if kind == b"meta":
            meta = file.read(min(size - 8, MAX_META_BYTES))
            break
        # Later boxes of larger files have no pixels' description.
        if size < 8:
            break
        file.seek(size - 8, io.SEEK_CUR)
    parts = dict(_boxes(meta[4:]))
    primary = struct.unpack_from(">I" if parts[b"pitm"][0] else ">H", parts[b"pitm"], 4)[0] if b"pitm" in parts else 0
    groups = dict(_boxes(parts.get(b"iprp", b"")))
    properties = list(_boxes(groups.get(b"ipco", b"")))
    for index in _properties_of(primary, groups.get(b"ipma", b"")):
        kind, content = properties[index - 1]
        if kind == b"colr" and content.startswith(b"nclx"):
            return CodePoints(*struct.unpack_from(">HH", content, 4))
    return None


def _boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The kind and the content of each box in a box."""
    start = 0
    while start + 8 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, start)
        if size < 8:
            return
        yield kind, content[start + 8 : start + size]
        start += size


def _properties_of(item: int, table: bytes) -> list[int]:
    """The indices, from 1, of an item's properties in the box that associates them."""
    if not table:
        return []
    is_long_item, is_long_index = table[0] > 0, table[3] & 1
    (count,), start = struct.unpack_from(">I", table, 4), 8
    for _ in range(count):
        (found,) = struct.unpack_from(">I" if is_long_item else ">H", table, start)
        start += 4 if is_long_item else 2
        number, start = table[start], start + 1
        indices = struct.unpack_from(f">{number}{'H' if is_long_index else 'B'}", table, start)
        start += number * (2 if is_long_index else 1)
        if found == item:
            # The highest bit says that the property is essential.
            return [index & (0x7FFF if is_long_index else 0x7F) for index in indices]
    return []
