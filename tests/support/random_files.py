"""Pictures with random changes: of whole segments and chunks, so that lengths and checksums are those of the rest."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from tests.support.hostile_pieces import FORMATS, jpeg_with, png_with, raw_profile, segment
from tests.support.image_files import chunk

Units = list[bytes]
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)
RUNS = (1, 16, 1000, 50_000)


class Picture(NamedTuple):
    """A picture in the units that are changed, and what makes a file of them."""

    units: Units
    build: Callable[[Units], bytes] = b"".join


def jpeg_units(data: bytes) -> Units:
    """Segments; after the first scan, parts of 16 bytes."""
    units, at = [data[:2]], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        units.append(data[at:end])
        at = end
    return units + split(data[at:], 16)


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


def webp(units: Units) -> bytes:
    body = b"WEBP" + b"".join(units)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def split(data: bytes, size: int) -> Units:
    return [data[at : at + size] for at in range(0, len(data), size)]


EXIF = FORMATS["tif"][:200]
PROFILE = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(200)) + segment(0xFE, b"a comment")
PHOTOSHOP = segment(0xED, b"Photoshop 3.0\x008BIM\x03\xed\0\0\0\0\0\x10" + bytes(16))
TEXTS = chunk(b"tEXt", b"Comment\0text") + chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"text" * 99))
RICH_PNG = png_with(
    chunk(b"eXIf", EXIF), TEXTS, raw_profile(EXIF), chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(999)))
)
# Every format, some with the metadata of cameras and programs.
PICTURES = {
    "x.jpg": Picture(jpeg_units(jpeg_with(segment(0xE1, b"Exif\0\0" + EXIF), PROFILE, PHOTOSHOP))),
    "x.mpo": Picture(jpeg_units(FORMATS["mpo"])),
    "x.png": Picture(png_units(RICH_PNG), png),
    "x.webp": Picture(split(FORMATS["webp"][12:], 12), webp),
    "x.gif": Picture(split(FORMATS["gif"], 8)),
    "x.tif": Picture(split(FORMATS["tif"], 12)),
    "x.bmp": Picture(split(FORMATS["bmp"], 4)),
}


@st.composite
def changed_pictures(draw: st.DrawFn) -> tuple[str, bytes]:
    """The name and the content of a picture after one to four changes."""
    name = draw(st.sampled_from(sorted(PICTURES)))
    units = PICTURES[name].units
    for _ in range(draw(st.integers(1, 4))):
        units = draw(changes(units))
    return name, PICTURES[name].build(units)


@st.composite
def changes(draw: st.DrawFn, units: Units) -> Units:
    """The units after a change of some that follow each other."""
    start = draw(st.integers(0, len(units)))
    some = units[start : start + draw(st.integers(1, 4))]
    before, after = units[:start], units[start + len(some) :]
    match draw(st.sampled_from(["cut", "leave out", "repeat", "move", "overwrite", "fill"])):
        case "cut":
            return before
        case "leave out":
            return before + after
        case "repeat":
            return before + some * draw(st.sampled_from((2, 3, 50, 500))) + after
        case "move":
            place = draw(st.integers(0, len(units)))
            return units[:place] + some + units[place:]
        case "overwrite":
            return [*before, draw(overwritten(b"".join(some))), *after]
    pattern = draw(st.binary(min_size=1, max_size=5))
    return [*before, pattern * draw(st.sampled_from(RUNS)), *some, *after]


@st.composite
def overwritten(draw: st.DrawFn, data: bytes) -> bytes:
    """Other bytes in one place, such as those of a length, a count or an offset."""
    width, order = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(("little", "big")))
    numbers = st.sampled_from(NUMBERS).map(lambda number: (number % 256**width).to_bytes(width, order))
    place = draw(st.integers(0, max(0, len(data) - width)))
    return data[:place] + draw(numbers | st.binary(min_size=width, max_size=width)) + data[place + width :]
