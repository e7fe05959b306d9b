"""How a picture is turned upright: by what Pillow finds in its metadata, which may be more than browsers follow."""

from __future__ import annotations

from contextlib import suppress

from PIL import ExifTags, Image

EXIF_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
QUARTER_TURNS = [EXIF_TRANSPOSE[orientation] for orientation in (5, 6, 7, 8)]


def orientation_of(image: Image.Image) -> int:
    """The orientation that Pillow finds in the EXIF block, a text or the XMP of an image."""
    orientation: object = None
    # The picture itself is intact even if its EXIF block is damaged.
    with suppress(Exception):
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    return orientation if isinstance(orientation, int) else 1


def browser_orientation(image: Image.Image) -> int:
    """The orientation that a browser follows: of the EXIF block alone, if it comes before the pixels, not in WebP."""
    block = Image.Image()
    if image.format != "WEBP":
        block.info = {"exif": image.info.get("exif", b"")}
    return orientation_of(block)
