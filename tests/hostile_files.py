"""Bad input: files that are broken, are not what they are called, or were made to take a machine down.

``python -m tests.hostile_files FOLDER`` writes them. Every run makes the same bytes; nothing of it is downloaded.
"""

from __future__ import annotations

import io
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageCms

from tests.support.image_files import STORED, animated_webp, bmp, chunk, encoded, gif, jpeg, quadrants, riff

# What is to become of a file.


class Outcome(NamedTuple):
    """A picture of this size, or a message with these words; either one where both are missing."""

    size: tuple[int, int] | None = None
    words: str | None = None
    # Whether it shows red and green above blue and black.
    is_whole: bool = False


def opens(width: int, height: int) -> Outcome:
    return Outcome((width, height))


def refused(words: str) -> Outcome:
    return Outcome(words=words)


WHOLE = Outcome((32, 32), is_whole=True)
EITHER = Outcome()
DAMAGED = refused("damaged")
OTHER = refused("not an image; expected a JPEG, PNG, WEBP, GIF, TIFF or BMP file")
PIECES = refused("too many small pieces")
BESIDE, NUMBERS = refused("bytes beside its pixels"), refused("numbers beside its pixels")
TO_READ, MEMORY = refused("bytes to read"), refused("MB of memory")


class HostileFile(NamedTuple):
    """A file of the corpus, and what is to become of it."""

    make: Callable[[], bytes]
    outcome: Outcome


# The picture that most of them should have been.

PICTURE = quadrants()
JPEG = encoded(PICTURE, "JPEG", quality=95, subsampling=0)
PNG = encoded(PICTURE, "PNG")
GIF = encoded(PICTURE, "GIF")
TIFF = encoded(PICTURE, "TIFF", compression="tiff_adobe_deflate")
WEBP = encoded(PICTURE, "WEBP", lossless=True)
BMP = encoded(PICTURE, "BMP")


def moving(**options: object) -> dict[str, object]:
    """A second picture, anew for every file: Pillow leaves its encoder's settings on it."""
    return {"save_all": True, "append_images": [PICTURE.rotate(90)], **options}


MPO = encoded(PICTURE, "MPO", **moving(quality=95, subsampling=0))
FORMATS = {"jpg": JPEG, "png": PNG, "gif": GIF, "tif": TIFF, "webp": WEBP, "bmp": BMP, "mpo": MPO}
PNG_HEAD, PNG_PIXELS, PNG_END = PNG[:33], PNG[33:-12], PNG[-12:]
# Before the first frame.
GIF_FRAME = GIF.index(b",\0\0\0\0")
BIG = 8000
EXECUTED = "<script>document.title = 'executed'</script>"


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def flipped(data: bytes) -> bytes:
    """Six bits wrong, none of them in the signature."""
    wrong = bytearray(data)
    for place in np.random.default_rng(len(data)).integers(16, len(data), 6):
        wrong[place] ^= 1 << (place % 8)
    return bytes(wrong)


def deflated_zeros(count: int) -> bytes:
    packer, block = zlib.compressobj(1), bytes(2**20)
    whole = b"".join(packer.compress(block) for _ in range(count // len(block)))
    return whole + packer.compress(bytes(count % len(block))) + packer.flush()


# PNG.


def png_header(width: int, height: int, depth: int = 8, colour_type: int = 2, interlaced: int = 0) -> bytes:
    said = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", said)


def png_of_zeros(width: int, height: int, colour_type: int = 0, channels: int = 1) -> bytes:
    pixels = chunk(b"IDAT", deflated_zeros((width * channels + 1) * height))
    return png_header(width, height, colour_type=colour_type) + pixels + PNG_END


def png_with(*chunks: bytes) -> bytes:
    """Chunks before the pixels."""
    return PNG_HEAD + b"".join(chunks) + PNG_PIXELS + PNG_END


def png_ending_with(*chunks: bytes) -> bytes:
    """Chunks after the pixels."""
    return PNG_HEAD + PNG_PIXELS + b"".join(chunks) + PNG_END


def interlaced_png() -> bytes:
    """All of Adam7's seven passes, with which Pillow writes none."""
    pixels = np.asarray(PICTURE)
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [pixels[top::down, left::across] for top, left, down, across in passes]
    rows = b"".join(b"\0" + row.tobytes() for part in parts for row in part)
    return png_header(32, 32, interlaced=1) + chunk(b"IDAT", zlib.compress(rows)) + PNG_END


def animated_png(width: int, height: int) -> bytes:
    frame = struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 1, 0)
    moving = chunk(b"acTL", struct.pack(">II", 2, 0)) + chunk(b"fcTL", frame)
    return png_header(width, height, 8, 6) + moving + chunk(b"IDAT", zlib.compress(bytes(64))) + PNG_END


def text_bomb(kind: bytes, before: bytes) -> bytes:
    return chunk(kind, before + deflated_zeros(100 * 2**20))


def raw_profile(block: bytes) -> bytes:
    """EXIF as ImageMagick writes it."""
    return chunk(b"tEXt", b"Raw profile type exif\0\nexif\n  99\n" + block.hex().encode())


# JPEG.


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def jpeg_with(*segments: bytes) -> bytes:
    return JPEG[:2] + b"".join(segments) + JPEG[2:]


def scan(*components: int, first: int = 0, last: int = 63) -> bytes:
    """The beginning of a scan, with nothing in it."""
    parts = b"".join(bytes([component, 0]) for component in components)
    return segment(0xDA, bytes([len(components)]) + parts + bytes([first, last, 0]))


def scan_bomb(scans: int, side: int, progressive: bool) -> bytes:
    """One component, of which every scan is empty but the first."""
    data = bytearray(encoded(PICTURE.convert("L"), "JPEG", progressive=progressive))
    frame = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    more = scan(1, first=1) if progressive else scan(1)
    return bytes(data[:-2]) + more * scans + b"\xff\xd9"


def separate_scans(scans: int, side: int) -> bytes:
    """Three components that come one after the other, the first of them again and again."""
    data = jpeg(side, side)
    return data[: data.index(b"\xff\xda")] + scan(1) * scans + scan(2) + scan(3) + b"\xff\xd9"


def exif(*entries: bytes, after: bytes = b"") -> bytes:
    """A block with one directory; offsets count from its first byte."""
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4) + after


def entry(tag: int, kind: int, count: int, value: int) -> bytes:
    return struct.pack("<HHII", tag, kind, count, value)


def exif_of_fractions(count: int) -> bytes:
    """Resolutions that are hundreds of thousands of fractions."""
    entries = [entry(0x011A, 5, count, 50), entry(0x0128, 3, 1, 2)]
    return exif(*entries, after=bytes(12) + struct.pack("<II", 7, 3) * count)


def exif_of_one_place(kind: int, count: int) -> bytes:
    """Thousands of tags, all of the same numbers, which are the block itself."""
    return exif(*(entry(20_000 + index, kind, count, 8) for index in range(2_500))).ljust(60_000, b"\1")


def long_exif(size: int) -> bytes:
    """One note of a camera's maker."""
    return exif(entry(0x927C, 7, size, 50), after=bytes(24) + noise(size))


def in_segments(block: bytes) -> list[bytes]:
    """EXIF in as many segments as it needs, as Pillow puts it together again."""
    return [segment(0xE1, b"Exif\0\0" + block[at : at + 65_000]) for at in range(0, len(block), 65_000)]


def upright_jpeg(orientation: int) -> bytes:
    stored = np.ascontiguousarray(STORED[orientation](np.asarray(PICTURE)))
    block = Image.Exif()
    block[0x0112] = orientation
    return encoded(Image.fromarray(stored), "JPEG", quality=95, subsampling=0, exif=block)


def turned_jpeg(width: int, height: int) -> bytes:
    data = jpeg(width, height)
    return data[:2] + in_segments(exif(entry(0x0112, 3, 1, 6)))[0] + data[2:]


def thumbnails() -> bytes:
    """A picture in whose EXIF is a picture in whose EXIF is a picture."""
    inner = JPEG
    for _ in range(3):
        tags = [entry(0x0201, 4, 1, 44), entry(0x0202, 4, 1, len(inner))]
        first = struct.pack("<H", 0) + struct.pack("<I", 14)
        second = struct.pack("<H", 2) + b"".join(tags) + bytes(4)
        inner = jpeg_with(segment(0xE1, b"Exif\0\0II*\0" + struct.pack("<I", 8) + first + second + inner))
    return inner


def colour_profile() -> bytes:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    # When it was made.
    return profile[:24] + bytes(12) + profile[36:]


def profile_segments(profile: bytes, claimed: int | None = None) -> list[bytes]:
    parts = [profile[at : at + 60_000] for at in range(0, len(profile), 60_000)]
    head = b"ICC_PROFILE\0"
    count = claimed or len(parts)
    return [segment(0xE2, head + bytes([index + 1, count]) + part) for index, part in enumerate(parts)]


# TIFF.


def tiff(width: int, height: int, *more: tuple[int, int, int, int | bytes], data: bytes = b"") -> bytes:
    """Grey pixels that begin at byte 4096; a tag's value that is given as bytes lies behind the directory."""
    tags: dict[int, tuple[int, int, int | bytes]] = {
        256: (4, 1, width),
        257: (4, 1, height),
        258: (3, 1, 8),
        259: (3, 1, 1),
        262: (3, 1, 1),
        273: (4, 1, 4096),
        277: (3, 1, 1),
        278: (4, 1, height),
        279: (4, 1, len(data)),
    }
    tags |= {tag: (kind, count, value) for tag, kind, count, value in more}
    entries, behind = [], b""
    for tag, (kind, count, value) in sorted(tags.items()):
        if isinstance(value, bytes):
            behind, value = behind + value, 4096 + len(data) + len(behind)
        entries.append(entry(tag, kind, count, value))
    return exif(*entries).ljust(4096, b"\0") + data + behind


def deflated_tiff(width: int, height: int, *more: tuple[int, int, int, int | bytes]) -> bytes:
    return tiff(width, height, (259, 3, 1, 8), *more, data=deflated_zeros(width * height))


def tag_bomb() -> bytes:
    """Twenty thousand tags, each of which is most of the file."""
    entries = [entry(30_000 + index, 7, 600_000, 8) for index in range(20_000)]
    return exif(*entries).ljust(2**20, b"\0")


def overlapping_tiles() -> bytes:
    """Two tiles side by side, again and again, all of the same bytes."""
    offsets = struct.pack("<I", 4096) * 60_000
    tiles = [(273, 4, 0, 0), (322, 4, 1, 520), (323, 4, 1, 1000), (324, 4, 60_000, offsets)]
    data = tiff(1000, 1000, *tiles, data=bytes(520_000))
    # Without strips.
    return data.replace(entry(273, 4, 0, 0), entry(65_000, 4, 0, 0))


def looped_tiff() -> bytes:
    """A first directory that is followed by itself."""
    data = bytearray(tiff(32, 32, data=bytes(1024)))
    count = struct.unpack_from("<H", data, 8)[0]
    struct.pack_into("<I", data, 10 + 12 * count, 8)
    return bytes(data)


def hidden_directory() -> bytes:
    """An EXIF directory inside."""
    return tiff(32, 32, (34665, 4, 1, 4096 + 1024), data=bytes(1024)) + exif_of_one_place(3, 25_000)[8:]


# GIF, BMP, WebP.


def gif_with(*extensions: bytes) -> bytes:
    return GIF[:GIF_FRAME] + b"".join(extensions) + GIF[GIF_FRAME:]


def many_frames(count: int) -> bytes:
    return GIF[:-1] + GIF[GIF_FRAME:-1] * count + b";"


def moved_gif(left: int, top: int) -> bytes:
    data = bytearray(GIF)
    struct.pack_into("<HH", data, GIF_FRAME + 1, left, top)
    return bytes(data)


def run_length_bmp(side: int, code: bytes) -> bytes:
    """Eight bits, run-length encoded."""
    palette = bytes(range(256)) * 4
    at = 54 + len(palette)
    head = struct.pack("<IHHI", at + len(code), 0, 0, at)
    return b"BM" + head + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(code), 0, 0, 256, 0) + palette + code


def webp_with(**chunks: bytes) -> bytes:
    flags = 0x20 * ("ICCP" in chunks) | 0x08 * ("EXIF" in chunks)
    head = bytes([flags, 0, 0, 0, 31, 0, 0, 31, 0, 0])
    size = struct.unpack_from("<I", WEBP, 16)[0]
    pixels = (WEBP[12:16], WEBP[20 : 20 + size])
    before, after = ([(b"ICCP", chunks["ICCP"])] if "ICCP" in chunks else []), []
    if "EXIF" in chunks:
        after = [(b"EXIF", chunks["EXIF"])]
    return riff((b"VP8X", head), *before, pixels, *after)


def flood_of_frames(count: int) -> bytes:
    small = encoded(Image.new("RGB", (4, 4)), "WEBP", lossless=True)[12:]
    frame = bytes(6) + b"\x03\0\0" * 2 + b"\x64\0\0\0" + small
    return riff((b"VP8X", b"\x02\0\0\0" + b"\x1f\0\0" * 2), (b"ANIM", bytes(6)), *[(b"ANMF", frame)] * count)


# Files that are two things at once, and others that are none of ours.


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr(zipfile.ZipInfo("../../evil.py"), "raise SystemExit")
    return stream.getvalue()


def script_gif() -> bytes:
    """A program in JavaScript: its width begins a comment that ends behind the picture."""
    return b"GIF89a/*" + GIF[8:] + b"*/=1;alert(1)"


def fits() -> bytes:
    cards = ["SIMPLE  =                    T", "BITPIX  =                    8", "NAXIS   =                    2"]
    cards += ["NAXIS1  =                   32", "NAXIS2  =                   32", "END"]
    return "".join(card.ljust(80) for card in cards).ljust(2880).encode() + bytes(2880)


def photoshop() -> bytes:
    return b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 32, 32, 8, 3) + bytes(14) + bytes(3 * 32 * 32)


def other(format: str, **options: object) -> Callable[[], bytes]:
    return lambda: encoded(PICTURE, format, **options)


def plain(format: str, mode: str, side: int, **options: object) -> Callable[[], bytes]:
    return lambda: encoded(Image.new(mode, (side, side)), format, **options)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n(%pipe%touch executed) (w) file\nshowpage\n"
ASCII_PIXELS = b"P3\n60000 60000\n255\n" + b"1 2 3 " * 200_000
HTML = b"<!DOCTYPE html><html><body>" + EXECUTED.encode() + b"</body></html>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script></svg>'
ENTITIES = b'<!DOCTYPE a [<!ENTITY b "' + b"&c;" * 9 + b'">]><svg xmlns="http://www.w3.org/2000/svg">&b;</svg>'

# Names that lie, break the line or lead elsewhere, of files that are none.
RIGHT_TO_LEFT = "\u202egpj.exe"
NAMES = (
    RIGHT_TO_LEFT,
    "\u2066isolated\u2069 \u200f.png",
    "two\nlines: saved.png",
    "\r\x1b[2Jcleared.png",
    "tab\tand\x7f.png",
    "..\\..\\windows\\system32.png",
    "%2e%2e%2f%2e%2e%2fescaped.png",
    "<img src=x onerror=alert(1)>.png",
    "&lt;b&gt; $$x^2$$ [a](b) *c* `d`.png",
    "-rf --version.png",
    "'; DROP TABLE pictures; --.png",
    "{0.__class__} %s %n.png",
    "n" * 250 + ".png",
    "line\u2028separated\u0085.png",
    "zero\ufeffwidth\u00ad.png",
)

MAKERS: dict[str, tuple[Callable[[], bytes], Outcome]] = {
    # No pictures.
    "zero.jpg": (lambda: b"", refused("an empty file")),
    "blank.png": (lambda: b" \n" * 5000, refused("an empty file")),
    "page.jpg": (lambda: HTML, refused("an HTML page")),
    "drawing.jpg": (lambda: SVG, refused("an SVG drawing")),
    "entities.svg": (lambda: ENTITIES, refused("an SVG drawing")),
    "poster.jpg": (lambda: POSTSCRIPT, refused("a text file; expected a JPEG")),
    "poster.eps": (lambda: b"\xc5\xd0\xd3\xc6" + struct.pack("<6I", 30, 99, 0, 0, 0, 0) + POSTSCRIPT, OTHER),
    "paper.png": (lambda: b"%PDF-1.7\n1 0 obj\n<</OpenAction<</S/Launch/F(sh)>>>>", refused("a PDF document")),
    "layers.psd": (photoshop, OTHER),
    "stars.fits": (fits, refused("a text file; expected a JPEG")),
    "digits.ppm": (lambda: ASCII_PIXELS, refused("a text file; expected a JPEG")),
    "huge.ppm": (lambda: b"P6\n2000000000 2000000000\n255\n" + bytes(99), OTHER),
    "icon.jpg": (other("ICO"), OTHER),
    "targa.jpg": (other("TGA"), OTHER),
    "wavelets.jpg": (other("JPEG2000"), OTHER),
    "texture.jpg": (other("DDS"), OTHER),
    "rows.jpg": (other("PCX"), OTHER),
    "apple.jpg": (other("ICNS"), OTHER),
    "bits.jpg": (lambda: encoded(PICTURE.convert("1"), "XBM"), refused("a text file")),
    "windows.jpg": (lambda: b"\xd7\xcd\xc6\x9a" + bytes(80), OTHER),
    "phone.heic": (lambda: struct.pack(">I", 24) + b"ftypheic" + bytes(999), refused("a HEIC photo; expected a JPEG")),
    "phone.jpg": (lambda: struct.pack(">I", 24) + b"ftypmif1" + bytes(999), refused("a HEIC photo; expected a JPEG")),
    "web.avif": (lambda: struct.pack(">I", 32) + b"ftypavif" + bytes(999), refused("an AVIF image; expected a JPEG")),
    "clip.gif": (lambda: struct.pack(">I", 32) + b"ftypisom" + bytes(999), refused("a video")),
    "archive.png": (archive, refused("a ZIP archive")),
    "program.bmp": (lambda: b"MZ" + noise(500), OTHER),
    "pickle.png": (lambda: b"\x80\x04\x95cos\nsystem\n(S'touch executed'\ntR.", OTHER),
    "noise.webp": (lambda: noise(5000), OTHER),
    # Every format, cut short and with wrong bits.
    **{f"cut.{format}": (lambda data=data: cut(data), DAMAGED) for format, data in FORMATS.items()},
    # A first picture that is whole.
    "cut.mpo": (lambda: cut(MPO), WHOLE),
    **{f"flipped.{format}": (lambda data=data: flipped(data), EITHER) for format, data in FORMATS.items()},
    **{f"trailing.{format}": (lambda data=data: data + noise(9999), WHOLE) for format, data in FORMATS.items()},
    # Too small, too long, too large.
    "dot.png": (plain("PNG", "RGB", 1), refused("1×1 pixels; expected at least 2×2")),
    "dot.jpg": (plain("JPEG", "RGB", 1), refused("1×1 pixels; expected at least 2×2")),
    "dot.webp": (plain("WEBP", "RGB", 1), refused("1×1 pixels; expected at least 2×2")),
    "strip.png": (lambda: png_of_zeros(30_000, 1), refused("30000×1 pixels; expected at least 2×2")),
    "strip.jpg": (lambda: encoded(Image.new("L", (30_000, 1)), "JPEG"), refused("30000×1 pixels")),
    "column.gif": (lambda: encoded(Image.new("L", (1, 30_000)), "GIF"), refused("1×30000 pixels")),
    "two rows.png": (lambda: png_of_zeros(30_000, 2), opens(30_000, 2)),
    "two columns.tif": (lambda: deflated_tiff(2, 100_000), opens(2, 100_000)),
    "long.png": (lambda: png_of_zeros(32_000_000, 2), refused("32000000×2 pixels; expected at most 100,000")),
    "empty.png": (lambda: png_of_zeros(0, 0), DAMAGED),
    "empty.gif": (lambda: gif((0, 0), (0, 0)), DAMAGED),
    "empty.bmp": (lambda: bmp(0, 9), DAMAGED),
    "empty.tif": (lambda: tiff(0, 0), DAMAGED),
    "empty.jpg": (lambda: jpeg(0, 0), DAMAGED),
    "bomb.png": (lambda: png_header(2**31 - 1, 2**31 - 1) + PNG_PIXELS + PNG_END, refused("at most 64,000,000")),
    "bomb.gif": (lambda: gif((65_535, 65_535), (1, 1)), refused("at most 64,000,000")),
    "bomb.tif": (lambda: tiff(60_000, 60_000, (259, 3, 1, 8), data=deflated_zeros(999)), refused("at most 64,000,000")),
    "bomb.webp": (
        lambda: riff((b"VP8L", b"\x2f" + struct.pack("<I", 16_383 | 16_383 << 14) + bytes(20))),
        refused("at most 64,000,000"),
    ),
    "moving bomb.webp": (lambda: animated_webp(2**24, 255), refused("at most 64,000,000")),
    "moving bomb.png": (lambda: animated_png(13_000, 13_000), refused("an animation of 169,000,000 pixels")),
    "bomb.bmp": (lambda: bmp(2**31 - 1, 2**31 - 1), refused("at most 64,000,000")),
    "bomb.jpg": (lambda: jpeg(65_535, 65_535), refused("at most 64,000,000")),
    "turned bomb.tif": (lambda: tiff(60_000, 9_000, (274, 3, 1, 6)), refused("at most 64,000,000")),
    "nothing in it.png": (lambda: png_header(BIG, BIG) + PNG_PIXELS + PNG_END, DAMAGED),
    "nothing in it.tif": (lambda: deflated_tiff(32, 32, (256, 4, 1, BIG), (257, 4, 1, BIG)), DAMAGED),
    "frame far away.gif": (lambda: moved_gif(65_000, 65_000), refused("at most 64,000,000")),
    "frame outside.gif": (lambda: moved_gif(5_000, 5_000), opens(5_032, 5_032)),
    # The most that is opened, and what would need several times its pixels.
    "largest.png": (lambda: png_of_zeros(BIG, BIG), opens(BIG, BIG)),
    "largest transparent.png": (lambda: png_of_zeros(9_504, 6_336, 6, 4), opens(9_504, 6_336)),
    "transparent.png": (lambda: png_of_zeros(BIG, BIG, 6, 4), MEMORY),
    "largest.tif": (lambda: deflated_tiff(BIG, BIG), opens(BIG, BIG)),
    "largest.jpg": (lambda: jpeg(BIG, BIG), opens(BIG, BIG)),
    "largest.webp": (plain("WEBP", "RGB", 5_480, lossless=True, method=0), opens(5_480, 5_480)),
    "canvases.webp": (lambda: animated_webp(BIG, BIG), MEMORY),
    "largest turned.jpg": (lambda: turned_jpeg(9_504, 6_336), opens(6_336, 9_504)),
    "turned.jpg": (lambda: turned_jpeg(BIG, BIG), MEMORY),
    "large tile.tif": (
        lambda: deflated_tiff(32, 32, (322, 4, 1, 60_000), (323, 4, 1, 60_000), (324, 4, 1, 4096), (325, 4, 1, 99)),
        MEMORY,
    ),
    "coefficients.jpg": (lambda: separate_scans(1, BIG), opens(BIG, BIG)),
    "inks.jpg": (plain("JPEG", "CMYK", 6_400, progressive=True), MEMORY),
    # Scans, pieces, numbers, texts: a little that makes much.
    "scans.jpg": (lambda: scan_bomb(30_000, BIG, True), refused("8000×8000 pixels in 30,0")),
    "separate scans.jpg": (lambda: separate_scans(30_000, BIG), refused("8000×8000 pixels in 30,002 scans")),
    "twenty scans.jpg": (lambda: scan_bomb(14, BIG, True), opens(BIG, BIG)),
    "scans of little.jpg": (lambda: scan_bomb(30_000, 32, True), opens(32, 32)),
    "comments.gif": (lambda: gif_with(b"!\xfe\0" * 1_000_000), PIECES),
    "comment.gif": (lambda: gif_with(b"!\xfe" + b"\1A" * 500_000 + b"\0"), PIECES),
    "long comment.gif": (lambda: gif_with(b"!\xfe" + (b"\xff" + b"A" * 255) * 4_000 + b"\0"), WHOLE),
    "comments.jpg": (lambda: jpeg_with(segment(0xFE, b"") * 500_000), PIECES),
    "crumbs.jpg": (lambda: jpeg_with(*in_segments(b"A") * 300_000), PIECES),
    "long comments.jpg": (lambda: jpeg_with(segment(0xFE, b"A" * 65_000) * 300), BESIDE),
    "chunks.png": (lambda: png_with(chunk(b"prVt", b"") * 300_000), PIECES),
    "last chunks.png": (lambda: png_ending_with(chunk(b"prVt", b"") * 300_000), PIECES),
    "no pixels.png": (lambda: png_with(chunk(b"IDAT", b"") * 200_000), WHOLE),
    "last words.png": (lambda: png_ending_with(chunk(b"cHRM", b"\1\2\3\4" * 5 * 2**20)), BESIDE),
    "text.png": (lambda: png_with(chunk(b"tEXt", b"a\0" + b"b" * 17 * 2**20)), BESIDE),
    "text bomb.png": (lambda: png_with(text_bomb(b"zTXt", b"Comment\0\0")), refused("too large")),
    "last text bomb.png": (lambda: png_ending_with(text_bomb(b"zTXt", b"Comment\0\0")), refused("too large")),
    "words bomb.png": (lambda: png_with(text_bomb(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0")), refused("too large")),
    "profile bomb.png": (lambda: png_with(text_bomb(b"iCCP", b"sRGB\0\0")), refused("too large")),
    "texts.png": (
        lambda: png_with(chunk(b"zTXt", b"Comment\0\0" + deflated_zeros(2**20)) * 70),
        refused("Too much memory used in text chunks"),
    ),
    "more pixels.png": (lambda: PNG_HEAD + chunk(b"IDAT", deflated_zeros(2**28)) + PNG_END, opens(32, 32)),
    "fractions.jpg": (lambda: jpeg_with(*in_segments(exif_of_fractions(500_000))), NUMBERS),
    "some fractions.jpg": (lambda: jpeg_with(*in_segments(exif_of_fractions(140_000))), WHOLE),
    "fractions.png": (lambda: png_with(chunk(b"eXIf", exif_of_fractions(500_000))), NUMBERS),
    "fractions.webp": (lambda: webp_with(EXIF=exif_of_fractions(500_000)), NUMBERS),
    "hexadecimal.png": (lambda: png_with(raw_profile(exif(entry(0x0112, 3, 1, 3)))), opens(32, 32)),
    "hexadecimal fractions.png": (lambda: png_with(raw_profile(exif_of_fractions(200_000))), NUMBERS),
    "prefixes.png": (lambda: png_with(chunk(b"eXIf", b"Exif\0\0" * 500_000)), PIECES),
    "prefixed fractions.jpg": (lambda: jpeg_with(*in_segments(b"Exif\0\0" * 9 + exif_of_fractions(500_000))), NUMBERS),
    "fractions.tif": (lambda: tiff(32, 32, (282, 5, 500_000, bytes(4_000_000)), data=bytes(1024)), NUMBERS),
    "same place.jpg": (lambda: jpeg_with(*in_segments(exif_of_one_place(7, 50_000))), BESIDE),
    "index.jpg": (lambda: jpeg_with(segment(0xE2, b"MPF\0" + exif_of_one_place(3, 25_000))), BESIDE),
    "pictures.mpo": (lambda: jpeg_with(segment(0xE2, b"MPF\0" + exif(entry(0xB001, 4, 1, 2**32 - 1)))), EITHER),
    "tags.tif": (tag_bomb, BESIDE),
    "hidden tags.tif": (hidden_directory, NUMBERS),
    "strips.tif": (lambda: tiff(32, 32, (273, 1, 2**20, bytes([200]) * 2**20), (278, 4, 1, 1)), NUMBERS),
    "overlapping tiles.tif": (overlapping_tiles, TO_READ),
    "strips outside.tif": (lambda: tiff(32, 32, (273, 4, 1, 2**32 - 2), data=bytes(1024)), DAMAGED),
    "endless tag.tif": (lambda: tiff(32, 32, (700, 1, 2**32 - 1, 4096), data=bytes(1024)), EITHER),
    "loop.tif": (looped_tiff, opens(32, 32)),
    "no rows.tif": (lambda: tiff(32, 32, (278, 4, 1, 0), data=bytes(1024)), EITHER),
    "samples.tif": (lambda: tiff(32, 32, (277, 3, 1, 65_535), data=bytes(1024)), DAMAGED),
    "entries.tif": (lambda: b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**60) + bytes(2**16), DAMAGED),
    "lines.bmp": (lambda: run_length_bmp(BIG, b"\1\7\0\0" * BIG), refused("run-length encoded")),
    "some lines.bmp": (lambda: run_length_bmp(2_000, b"\1\7\0\0" * 2_000), opens(2_000, 2_000)),
    "jumps.bmp": (lambda: run_length_bmp(2_000, b"\0\2\xff\xff" * 500), EITHER),
    "head.bmp": (lambda: BMP[:14] + struct.pack("<I", 2**32 - 1) + BMP[18:], DAMAGED),
    "upside down.bmp": (lambda: BMP[:22] + struct.pack("<i", -32) + BMP[26:], opens(32, 32)),
    "depth.bmp": (lambda: BMP[:22] + struct.pack("<i", -(2**31)) + BMP[26:], EITHER),
    "frames.webp": (lambda: flood_of_frames(50_000), opens(32, 32)),
    "frames.gif": (lambda: many_frames(5_000), WHOLE),
    "says more.webp": (lambda: WEBP[:4] + struct.pack("<I", 2**32 - 10) + WEBP[8:], EITHER),
    # Broken in one place.
    "wrong sum.png": (lambda: PNG_HEAD[:-1] + b"\0" + PNG_PIXELS + PNG_END, DAMAGED),
    "no data.png": (lambda: PNG_HEAD + PNG_END, DAMAGED),
    "no end.png": (lambda: PNG_HEAD + PNG_PIXELS, EITHER),
    "no palette.png": (lambda: png_header(32, 32, 8, 3) + PNG_PIXELS + PNG_END, EITHER),
    "two headers.png": (lambda: png_with(png_header(64, 64)[8:]), DAMAGED),
    "interlaced.png": (interlaced_png, WHOLE),
    "cut interlaced.png": (lambda: cut(interlaced_png()), DAMAGED),
    "coefficients are noise.jpg": (lambda: JPEG[: JPEG.index(b"\xff\xda") + 14] + noise(3000), EITHER),
    "no tables.jpg": (lambda: JPEG.replace(b"\xff\xdb", b"\xff\xfe").replace(b"\xff\xc4", b"\xff\xfe"), DAMAGED),
    "wrong table.jpg": (lambda: JPEG.replace(b"\xff\xc4\0\x1f\0", b"\xff\xc4\0\x1f\x7f"), DAMAGED),
    "twelve bits.jpg": (lambda: JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), DAMAGED),
    "lossless.jpg": (lambda: JPEG.replace(b"\xff\xc0", b"\xff\xc3"), EITHER),
    "arithmetic.jpg": (lambda: JPEG.replace(b"\xff\xc0", b"\xff\xc9"), EITHER),
    "wrong code size.gif": (lambda: GIF[: GIF_FRAME + 10] + b"\x63" + GIF[GIF_FRAME + 11 :], DAMAGED),
    # Two things at once.
    "picture and archive.jpg": (lambda: JPEG + archive(), WHOLE),
    "picture and page.png": (lambda: PNG + HTML, WHOLE),
    "page inside.png": (lambda: png_with(chunk(b"tEXt", b"Comment\0" + HTML)), WHOLE),
    "page inside.jpg": (lambda: jpeg_with(segment(0xFE, HTML)), WHOLE),
    "script.gif": (script_gif, opens(10_799, 32)),
    "picture and program.bmp": (lambda: BMP + b"MZ" + noise(99), WHOLE),
    "page first.jpg": (lambda: HTML + JPEG, refused("an HTML page")),
    "archive first.jpg": (lambda: archive() + JPEG, refused("a ZIP archive")),
    # Unusual, and whole.
    "moving.png": (lambda: encoded(PICTURE, "PNG", **moving()), WHOLE),
    "moving.webp": (lambda: encoded(PICTURE, "WEBP", **moving(lossless=True)), WHOLE),
    "pages.tif": (lambda: encoded(PICTURE, "TIFF", save_all=True, append_images=[PICTURE] * 99), WHOLE),
    "progressive.jpg": (other("JPEG", progressive=True, quality=95, subsampling=0), WHOLE),
    "inks whole.jpg": (lambda: encoded(PICTURE.convert("CMYK"), "JPEG", quality=100), WHOLE),
    "inks.tif": (lambda: encoded(PICTURE.convert("CMYK"), "TIFF"), WHOLE),
    "lightness.tif": (plain("TIFF", "LAB", 32), opens(32, 32)),
    "deep.png": (plain("PNG", "I;16", 32), opens(32, 32)),
    "deep.tif": (plain("TIFF", "I;16", 32), opens(32, 32)),
    "palette.png": (lambda: encoded(PICTURE.quantize(4), "PNG"), WHOLE),
    "clear palette.png": (lambda: encoded(PICTURE.quantize(4), "PNG", transparency=bytes([255] * 4)), WHOLE),
    "clear.gif": (lambda: encoded(PICTURE.quantize(4), "GIF", transparency=200), WHOLE),
    **{f"turned {way}.jpg": (lambda way=way: upright_jpeg(way), WHOLE) for way in STORED},
    "huge exif.jpg": (lambda: jpeg_with(*in_segments(long_exif(64_000))), WHOLE),
    "huge exif.png": (lambda: png_with(chunk(b"eXIf", long_exif(10_000_000))), WHOLE),
    "broken exif.jpg": (lambda: jpeg_with(segment(0xE1, b"Exif\0\0II*\0" + b"\xff" * 999)), WHOLE),
    "thumbnails.jpg": (thumbnails, WHOLE),
    "profile.jpg": (lambda: jpeg_with(*profile_segments(colour_profile())), WHOLE),
    "huge profile.jpg": (lambda: jpeg_with(*profile_segments(noise(3_000_000))), WHOLE),
    "broken profile.jpg": (lambda: jpeg_with(*profile_segments(b"\xff" * 99)), WHOLE),
    "part of a profile.jpg": (lambda: jpeg_with(*profile_segments(colour_profile(), claimed=200)), WHOLE),
    "broken profile.png": (lambda: png_with(chunk(b"iCCP", b"x\0\0" + noise(500))), WHOLE),
    "broken profile.webp": (lambda: webp_with(ICCP=noise(500)), WHOLE),
    "broken profile.tif": (lambda: encoded(PICTURE, "TIFF", icc_profile=noise(500)), WHOLE),
    **{name: (lambda: b"\0", OTHER) for name in NAMES},
}


FILES = {name: HostileFile(*said) for name, said in MAKERS.items()}


# What is no file at all.


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


PLACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe.jpg": (pipe, "a pipe, a socket or a device"),
    "endless.jpg": (device, "a pipe, a socket or a device"),
    "circle.jpg": (lambda path: path.symlink_to(path.name), "cannot be read"),
    "nowhere.jpg": (lambda path: path.symlink_to("gone.jpg"), "no such file"),
    "folder.jpg": (Path.mkdir, "a directory"),
}


def write(folder: Path) -> None:
    """The corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        (folder / name).write_bytes(file.make())
    for name, (put, _) in PLACES.items():
        put(folder / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
