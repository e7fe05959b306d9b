"""Building blocks of hostile files: chunks, segments, directories and whole formats, made byte by byte."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageCms

from tests.support.image_files import chunk, encoded, jpeg, quadrants, riff

# The picture that most of the files would show if they were intact.

PICTURE = quadrants()
JPEG = encoded(PICTURE, "JPEG", quality=95, subsampling=0)
PNG = encoded(PICTURE, "PNG")
GIF = encoded(PICTURE, "GIF")
TIFF = encoded(PICTURE, "TIFF", compression="tiff_adobe_deflate")
WEBP = encoded(PICTURE, "WEBP", lossless=True)
BMP = encoded(PICTURE, "BMP")


def animation_options(**options: object) -> dict[str, object]:
    """Options that append a second picture, a new one for every file: Pillow stores encoder settings on it."""
    return {"save_all": True, "append_images": [PICTURE.rotate(90)], **options}


MPO = encoded(PICTURE, "MPO", **animation_options(quality=95, subsampling=0))
FORMATS = {"jpg": JPEG, "png": PNG, "gif": GIF, "tif": TIFF, "webp": WEBP, "bmp": BMP, "mpo": MPO}
PNG_HEAD, PNG_PIXELS, PNG_END = PNG[:33], PNG[33:-12], PNG[-12:]
# The offset of the first frame.
GIF_FRAME = GIF.index(b",\0\0\0\0")
BIG = 8000
EXECUTED = "<script>document.title = 'executed'</script>"


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def truncate(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def flip_bits(data: bytes) -> bytes:
    """The data with six flipped bits, none of them in the signature."""
    flipped = bytearray(data)
    for offset in np.random.default_rng(len(data)).integers(16, len(data), 6):
        flipped[offset] ^= 1 << (offset % 8)
    return bytes(flipped)


def deflated_zeros(count: int) -> bytes:
    compressor, block = zlib.compressobj(1), bytes(2**20)
    deflated = b"".join(compressor.compress(block) for _ in range(count // len(block)))
    return deflated + compressor.compress(bytes(count % len(block))) + compressor.flush()


# PNG.


def png_header(width: int, height: int, depth: int = 8, colour_type: int = 2, interlaced: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)


def png_of_zeros(width: int, height: int, colour_type: int = 0, channels: int = 1) -> bytes:
    pixels = chunk(b"IDAT", deflated_zeros((width * channels + 1) * height))
    return png_header(width, height, colour_type=colour_type) + pixels + PNG_END


def png_with(*chunks: bytes) -> bytes:
    """The picture as a PNG with chunks before the pixels."""
    return PNG_HEAD + b"".join(chunks) + PNG_PIXELS + PNG_END


def png_ending_with(*chunks: bytes) -> bytes:
    """The picture as a PNG with chunks after the pixels."""
    return PNG_HEAD + PNG_PIXELS + b"".join(chunks) + PNG_END


def interlaced_png() -> bytes:
    """The picture as a PNG in the seven passes of Adam7, which Pillow does not write."""
    pixels = np.asarray(PICTURE)
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    subsampled = [pixels[top::down, left::across] for top, left, down, across in passes]
    rows = b"".join(b"\0" + row.tobytes() for pixels in subsampled for row in pixels)
    return png_header(32, 32, interlaced=1) + chunk(b"IDAT", zlib.compress(rows)) + PNG_END


def animated_png(width: int, height: int) -> bytes:
    frame = struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 1, 0)
    control = chunk(b"acTL", struct.pack(">II", 2, 0)) + chunk(b"fcTL", frame)
    return png_header(width, height, 8, 6) + control + chunk(b"IDAT", zlib.compress(bytes(64))) + PNG_END


def text_bomb(kind: bytes, before: bytes) -> bytes:
    return chunk(kind, before + deflated_zeros(100 * 2**20))


def raw_profile(block: bytes) -> bytes:
    """A PNG chunk with EXIF in hexadecimal, as ImageMagick writes it."""
    return chunk(b"tEXt", b"Raw profile type exif\0\nexif\n  99\n" + block.hex().encode())


# JPEG.


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def jpeg_with(*segments: bytes) -> bytes:
    return JPEG[:2] + b"".join(segments) + JPEG[2:]


def scan(*components: int, first: int = 0, last: int = 63) -> bytes:
    """The header of a scan without data."""
    tables = b"".join(bytes([component, 0]) for component in components)
    return segment(0xDA, bytes([len(components)]) + tables + bytes([first, last, 0]))


def scan_bomb(scans: int, side: int, progressive: bool) -> bytes:
    """A JPEG of one component whose scans are all empty except the first."""
    data = bytearray(encoded(PICTURE.convert("L"), "JPEG", progressive=progressive))
    frame = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    empty = scan(1, first=1) if progressive else scan(1)
    return bytes(data[:-2]) + empty * scans + b"\xff\xd9"


def separate_scans(scans: int, side: int) -> bytes:
    """A JPEG whose three components have separate scans, and the first of them many."""
    data = jpeg(side, side)
    return data[: data.index(b"\xff\xda")] + scan(1) * scans + scan(2) + scan(3) + b"\xff\xd9"


def exif(*entries: bytes, after: bytes = b"") -> bytes:
    """An EXIF block with one directory; offsets count from its first byte."""
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4) + after


def entry(tag: int, kind: int, count: int, value: int) -> bytes:
    return struct.pack("<HHII", tag, kind, count, value)


def exif_of_fractions(count: int) -> bytes:
    """EXIF whose resolution is a list of ``count`` fractions."""
    entries = [entry(0x011A, 5, count, 50), entry(0x0128, 3, 1, 2)]
    return exif(*entries, after=bytes(12) + struct.pack("<II", 7, 3) * count)


def exif_of_one_place(kind: int, count: int) -> bytes:
    """EXIF with thousands of tags that all point to the same numbers, which are the block itself."""
    return exif(*(entry(20_000 + index, kind, count, 8) for index in range(2_500))).ljust(60_000, b"\1")


def long_exif(size: int) -> bytes:
    """EXIF with one long maker note."""
    return exif(entry(0x927C, 7, size, 50), after=bytes(24) + noise(size))


def in_segments(block: bytes) -> list[bytes]:
    """EXIF split into JPEG segments, which Pillow joins again."""
    return [segment(0xE1, b"Exif\0\0" + block[start : start + 65_000]) for start in range(0, len(block), 65_000)]


def rotated_jpeg(width: int, height: int) -> bytes:
    data = jpeg(width, height)
    return data[:2] + in_segments(exif(entry(0x0112, 3, 1, 6)))[0] + data[2:]


def thumbnails() -> bytes:
    """A JPEG with a JPEG thumbnail that itself has a thumbnail, three levels deep."""
    inner = JPEG
    for _ in range(3):
        tags = [entry(0x0201, 4, 1, 44), entry(0x0202, 4, 1, len(inner))]
        first = struct.pack("<H", 0) + struct.pack("<I", 14)
        second = struct.pack("<H", 2) + b"".join(tags) + bytes(4)
        inner = jpeg_with(segment(0xE1, b"Exif\0\0II*\0" + struct.pack("<I", 8) + first + second + inner))
    return inner


def colour_profile() -> bytes:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    # Zero the date of creation.
    return profile[:24] + bytes(12) + profile[36:]


def profile_segments(profile: bytes, claimed: int | None = None) -> list[bytes]:
    pieces = [profile[start : start + 60_000] for start in range(0, len(profile), 60_000)]
    head = b"ICC_PROFILE\0"
    count = claimed or len(pieces)
    return [segment(0xE2, head + bytes([index + 1, count]) + piece) for index, piece in enumerate(pieces)]


# TIFF.


def tiff(width: int, height: int, *more: tuple[int, int, int, int | bytes], data: bytes = b"") -> bytes:
    """A TIFF of grey pixels from byte 4096 on. A tag whose value is bytes stores them tail the pixels."""
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
    entries, tail = [], b""
    for tag, (kind, count, value) in sorted(tags.items()):
        if isinstance(value, bytes):
            tail, value = tail + value, 4096 + len(data) + len(tail)
        entries.append(entry(tag, kind, count, value))
    return exif(*entries).ljust(4096, b"\0") + data + tail


def deflated_tiff(width: int, height: int, *more: tuple[int, int, int, int | bytes]) -> bytes:
    return tiff(width, height, (259, 3, 1, 8), *more, data=deflated_zeros(width * height))


def tag_bomb() -> bytes:
    """A TIFF with twenty thousand tags, each of which spans most of the file."""
    entries = [entry(30_000 + index, 7, 600_000, 8) for index in range(20_000)]
    return exif(*entries).ljust(2**20, b"\0")


def overlapping_tiles() -> bytes:
    """A TIFF with sixty thousand tiles that all point to the same bytes."""
    offsets = struct.pack("<I", 4096) * 60_000
    tiles = [(273, 4, 0, 0), (322, 4, 1, 520), (323, 4, 1, 1000), (324, 4, 60_000, offsets)]
    data = tiff(1000, 1000, *tiles, data=bytes(520_000))
    # Replace the strips' tag by an unknown one.
    return data.replace(entry(273, 4, 0, 0), entry(65_000, 4, 0, 0))


def looped_tiff() -> bytes:
    """A TIFF whose first directory is followed by itself."""
    data = bytearray(tiff(32, 32, data=bytes(1024)))
    count = struct.unpack_from("<H", data, 8)[0]
    struct.pack_into("<I", data, 10 + 12 * count, 8)
    return bytes(data)


def hidden_directory() -> bytes:
    """A TIFF with an EXIF directory of thousands of tags."""
    return tiff(32, 32, (34665, 4, 1, 4096 + 1024), data=bytes(1024)) + exif_of_one_place(3, 25_000)[8:]


# GIF, BMP, WebP.


def gif_with(*extensions: bytes) -> bytes:
    return GIF[:GIF_FRAME] + b"".join(extensions) + GIF[GIF_FRAME:]


def many_frames(count: int) -> bytes:
    return GIF[:-1] + GIF[GIF_FRAME:-1] * count + b";"


def offset_gif(left: int, top: int) -> bytes:
    data = bytearray(GIF)
    struct.pack_into("<HH", data, GIF_FRAME + 1, left, top)
    return bytes(data)


def run_length_bmp(side: int, code: bytes) -> bytes:
    """A BMP of 8 bits a pixel, run-length encoded."""
    palette = bytes(range(256)) * 4
    offset = 54 + len(palette)
    head = struct.pack("<IHHI", offset + len(code), 0, 0, offset)
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


# Files of two formats at once, and of formats that vitviz does not open.


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr(zipfile.ZipInfo("../../evil.py"), "raise SystemExit")
    return stream.getvalue()


def script_gif() -> bytes:
    """A GIF that is also JavaScript: its width opens a comment that ends behind the picture."""
    return b"GIF89a/*" + GIF[8:] + b"*/=1;alert(1)"


def blank_as(format: str, mode: str, side: int, **options: object) -> Callable[[], bytes]:
    return lambda: encoded(Image.new(mode, (side, side)), format, **options)


ASCII_PIXELS = b"P3\n60000 60000\n255\n" + b"1 2 3 " * 200_000
HTML = b"<!DOCTYPE html><html><body>" + EXECUTED.encode() + b"</body></html>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script></svg>'
ENTITIES = b'<!DOCTYPE a [<!ENTITY b "' + b"&c;" * 9 + b'">]><svg xmlns="http://www.w3.org/2000/svg">&b;</svg>'
