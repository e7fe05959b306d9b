"""Formats as lists of units, which mutations change, and functions that build files of them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.mutations import Units
from tests.support.hostile_pieces import FORMATS, jpeg_with, png_with, raw_profile, segment
from tests.support.image_files import chunk


@dataclass(frozen=True)
class Seed:
    """A valid file, in units.

    Args:
        name: name of the file.
        units: the units that mutations change.
        build: builds a file from units, with correct lengths and checksums where every reader checks them first.
    """

    name: str
    units: Units
    build: Callable[[Units], bytes] = b"".join


# Pictures.


def jpeg_units(data: bytes) -> Units:
    """Segments; after the first scan, chunks of 16 bytes."""
    units, at = [data[:2]], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        units.append(data[at:end])
        at = end
    return units + split_bytes(data[at:], 16)


def png_units(data: bytes) -> Units:
    """Type and content of every chunk."""
    units, at = [], 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        units.append(data[at + 4 : at + 8 + length])
        at += 12 + length
    return units


def png(units: Units) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(unit[:4], unit[4:]) for unit in units)


def webp_units(data: bytes) -> Units:
    units, at = [], 12
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        units.append(data[at : end + end % 2])
        at = end + end % 2
    return units


def webp(units: Units) -> bytes:
    body = b"WEBP" + b"".join(units)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def split_bytes(data: bytes, size: int) -> Units:
    return [data[at : at + size] for at in range(0, len(data), size)]


def pictures() -> list[Seed]:
    """Every format, and some files with the metadata of cameras and programs."""
    exif = FORMATS["tif"][:200]
    profile = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(200)) + segment(0xFE, b"a comment")
    photoshop = segment(0xED, b"Photoshop 3.0\x008BIM\x03\xed\0\0\0\0\0\x10" + bytes(16))
    jpeg = jpeg_with(segment(0xE1, b"Exif\0\0" + exif), profile, photoshop)
    texts = chunk(b"tEXt", b"Comment\0text") + chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"text" * 99))
    rich = png_with(
        chunk(b"eXIf", exif), texts, raw_profile(exif), chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(999)))
    )
    return [
        Seed("x.jpg", jpeg_units(jpeg)),
        Seed("x.mpo", jpeg_units(FORMATS["mpo"])),
        Seed("x.png", png_units(rich), png),
        Seed("x.webp", webp_units(FORMATS["webp"]), webp),
        Seed("x.gif", split_bytes(FORMATS["gif"], 8)),
        Seed("x.tif", split_bytes(FORMATS["tif"], 12)),
        Seed("x.bmp", split_bytes(FORMATS["bmp"], 4)),
    ]


# Values of JSON.

TEXTS = ("", "a", "\0", "\ud800", "\u202e", "x" * 5000, "1e999", "../../etc/passwd", "[a](b)", "__proto__", "é" * 300)
NUMBERS = (0, -1, 1, 2**31, 2**63, 10**400, 0.5, 1e308, -0.0, float("nan"), float("inf"), True, False, None)


# Fragments of growing texts: what the patterns of the app match, and what ends a match.
FRAGMENTS = (
    *'/.-_:@=,;&?#\\"()[{*aA10e \t\n\0İé\u202e\ud800',
    *("//", "..", "%2f", "http://", "https://", "https://x/", "/gradio_api/file=", "gradio_api/file=/", "://", "[::1]"),
    *("example:", "picture:", "own:", "hf:", "method=", "second.", "p.layer=1&", "1.1;"),
    *("like", "rollout", "layer 1", "register 1", "x (1)"),
)


def growing_texts(size: int, chance: random.Random) -> list[str]:
    """Texts of repeated fragments, of about a size and twice, four and eight times that."""

    def some(max_count: int, min_count: int = 0) -> str:
        return "".join(chance.choices(FRAGMENTS, k=chance.randint(min_count, max_count)))

    start, middle, end = some(2), some(3, 1), some(2)
    return [start + middle * (size * factor // len(middle)) + end for factor in (1, 2, 4, 8)]


def json_value(chance: random.Random, depth: int = 4) -> object:
    """A random value, deep or wide, with some thousand elements at most."""
    kind = chance.random()
    if depth == 0 or kind < 0.5:
        return chance.choice(chance.choice((TEXTS, NUMBERS)))
    if kind < 0.55:
        nested: object = []
        for _ in range(chance.choice((10, 500))):
            nested = [nested] if chance.random() < 0.5 else {"a": nested}
        return nested
    length = chance.choice((0, 1, 2, 5, 200))
    # A wide value is flat.
    inner = 0 if length > 5 else depth - 1
    if kind < 0.75:
        return [json_value(chance, inner) for _ in range(length)]
    keys = [chance.choice(KEYS) if chance.random() < 0.7 else str(chance.choice(TEXTS)) for _ in range(length)]
    return {key: json_value(chance, inner) for key in keys}


# Names and values that the app's endpoints know.
KEYS = (
    "method",
    "parameters",
    "path",
    "orig_name",
    "meta",
    "_type",
    "colormap",
    "opacity",
    "smooth",
    "grid",
    "low",
    "high",
)
