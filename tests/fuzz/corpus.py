"""All inputs that once caused harm, as makers of files of any size, with their expected outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.support.hostile_pieces import PICTURE, deflated_zeros, jpeg_with, png_with, segment
from tests.support.image_files import chunk, encoded

SCANS = encoded(PICTURE, "JPEG", progressive=True)
LAST_SCAN = SCANS.rindex(b"\xff\xda")


# The name of an input that is no file, but a text in the JSON of a request.
TEXT = ""


class Hurt(NamedTuple):
    """A file that once took too long or too much.

    Args:
        file: its name; :data:`TEXT` for a text in UTF-8.
        make: makes a file of about the given number of bytes.
        size: in bytes.
    """

    file: str
    make: Callable[[int], bytes]
    size: int = 200_000


CORPUS: dict[str, Hurt] = {
    "padding before a marker": Hurt("x.jpg", lambda size: b"\xff\xd8\xff\xe0\0\2" + b"\xff" * size),
    "padding between scans": Hurt(
        "x.jpg", lambda size: SCANS[:LAST_SCAN] + b"\xff" * size + SCANS[LAST_SCAN:], 4_000_000
    ),
    "components": Hurt(
        "x.jpg",
        lambda size: jpeg_with(*[segment(0xC0, b"\x08\0\x20\0\x20\x03" + b"\1\x11\0" * 21_000)] * (size // 63_000)),
        4_000_000,
    ),
    "profiles": Hurt(
        "x.png",
        lambda size: png_with(chunk(b"iCCP", b"x\0\0" + deflated_zeros(2**20 - 1)) * (size // 4_000)),
        4_000_000,
    ),
    # Patterns that try to start at every position.
    "an address of addresses": Hurt(
        TEXT, lambda size: b"https://x/" + b"gradio_api/file=/" * (size // 17) + b"\n", 100_000
    ),
    "schemes": Hurt(TEXT, lambda size: b"https://" * (size // 8), 100_000),
    "digits of a misspelt name": Hurt(TEXT, lambda size: b"1" * size, 100_000),
}
