"""The pictures of the page: examples by name, uploads by unguessable ids."""

from __future__ import annotations

import filecmp
import re
import secrets
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from gradio.processing_utils import hash_file

from vitviz.errors.kinds import ImageError
from vitviz.images.colours import ColorProfile
from vitviz.weights import resources

EXAMPLES = ("chelsea.jpg", "flower.jpg", "perch.jpg", "chart.png", "coffee.jpg", "rocket.jpg", "astronaut.jpg")
PICTURE_ID = re.compile(r"[\w-]{22}", re.ASCII)
MAX_KEPT = 10_000
PICTURE = "expected example:NAME, or picture: and the 22 characters that a link of the page has"
EXPIRED = "The picture of this link is no longer kept here, or its link is not whole: drop the picture here again."


class Upload(NamedTuple):
    """A visitor's file.

    Args:
        path: of the file.
        name: the visitor's name of it.
        frame: index in a clip; None for a picture.
        white: the value of white in the file; None for that of its format.
        color_profile: as :func:`vitviz.open_image` takes it.
    """

    path: Path
    name: str
    frame: int | None = None
    white: int | None = None
    color_profile: ColorProfile = "apply"

    @property
    def reading(self) -> dict[str, Any]:
        """Options of :func:`vitviz.open_image`."""
        value_range = None if self.white is None else (0, self.white)
        return {"value_range": value_range, "color_profile": self.color_profile}


class Pictures:
    """The latest uploaded pictures, for links, by ids that are the only way to them."""

    def __init__(self) -> None:
        self._uploads: OrderedDict[str, Upload] = OrderedDict()
        # Ids by the hashes of the files.
        self._ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def id(self, upload: Upload) -> str:
        """The name of a picture in states and links: ``example:NAME`` or ``picture:ID``."""
        example = example_of(upload)
        if example is not None:
            return f"example:{example}"
        # A page may upload the same picture again.
        content_hash = hash_file(upload.path)
        with self._lock:
            key = self._ids.setdefault(content_hash, secrets.token_urlsafe(16))
            self._uploads[key] = Upload(upload.path, upload.name)
            self._uploads.move_to_end(key)
            if len(self._uploads) > MAX_KEPT:
                oldest, _ = self._uploads.popitem(last=False)
                self._ids = {content_hash: key for content_hash, key in self._ids.items() if key != oldest}
        return f"picture:{key}"

    def upload(self, picture: str) -> Upload:
        """The picture of a name in a state.

        Raises:
            ImageError: there is none of this id, or its file is no longer kept.
        """
        kind, _, name = picture.partition(":")
        if kind == "example" and name in EXAMPLES:
            return Upload(resources("assets") / name, name)
        with self._lock:
            upload = self._uploads.get(name) if kind == "picture" else None
        if upload is None or not upload.path.is_file():
            raise ImageError(EXPIRED)
        return upload


def is_picture(value: object) -> bool:
    """Whether a value is the name of a picture in a state: ``example:NAME`` or ``picture:ID``."""
    if not isinstance(value, str):
        return False
    kind, _, name = value.partition(":")
    return (kind == "example" and name in EXAMPLES) or (kind == "picture" and PICTURE_ID.fullmatch(name) is not None)


def example_of(upload: Upload) -> str | None:
    """The name of the example of which an upload is a copy, or None."""
    if upload.name not in EXAMPLES:
        return None
    try:
        is_copy = filecmp.cmp(resources("assets") / upload.name, upload.path, shallow=False)
    except OSError:
        return None
    return upload.name if is_copy else None
