"""The pictures of the page: examples by name, and what visitors uploaded by ids that nobody can guess."""

from __future__ import annotations

import filecmp
import re
import secrets
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from gradio.processing_utils import hash_file

from vitviz.errors.kinds import ImageError
from vitviz.weights import resources

EXAMPLES = ("chelsea.jpg", "rocket.jpg", "coffee.jpg", "astronaut.jpg")
PICTURE_ID = re.compile(r"[\w-]{22}", re.ASCII)
MAX_KEPT = 10_000
PICTURE = "expected example:NAME, or picture: and the 22 characters that a link of the page has"
GONE = "The picture of this link is no longer kept here, or its link is not whole: drop the picture here again."


class Upload(NamedTuple):
    """A file that a visitor handed over, and what they call it.

    Args:
        path: of the file.
        name: what they call it.
        frame: that is meant of a clip; None of a picture.
    """

    path: Path
    name: str
    frame: int | None = None


class Pictures:
    """The uploaded pictures that links may ask for: as long as their files are kept, and of the last ones only.

    Whoever has an id gets its picture; nobody else does.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, Upload] = OrderedDict()
        self._ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def id(self, upload: Upload) -> str:
        """What a state and a link call a picture: ``example:NAME`` or ``picture:ID``."""
        example = example_of(upload)
        if example is not None:
            return f"example:{example}"
        # A page that restores a picture may do it from a copy.
        content = hash_file(upload.path)
        with self._lock:
            key = self._ids.setdefault(content, secrets.token_urlsafe(16))
            self._held[key] = upload._replace(frame=None)
            self._held.move_to_end(key)
            if len(self._held) > MAX_KEPT:
                gone, _ = self._held.popitem(last=False)
                self._ids = {content: path for content, path in self._ids.items() if path != gone}
        return f"picture:{key}"

    def upload(self, picture: str) -> Upload:
        """The picture of an id.

        Raises:
            ImageError: it is not kept, or never was.
        """
        kind, _, name = picture.partition(":")
        if kind == "example" and name in EXAMPLES:
            return Upload(resources("assets") / name, name)
        with self._lock:
            upload = self._held.get(name) if kind == "picture" else None
        if upload is None or not upload.path.is_file():
            raise ImageError(GONE)
        return upload


def is_picture(value: object) -> bool:
    """Whether this may stand for a picture: ``example:NAME`` or ``picture:ID``."""
    if not isinstance(value, str):
        return False
    kind, _, name = value.partition(":")
    return (kind == "example" and name in EXAMPLES) or (kind == "picture" and PICTURE_ID.fullmatch(name) is not None)


def example_of(upload: Upload) -> str | None:
    """Which example a picture is, whatever copy of it; None where it is none."""
    if upload.name not in EXAMPLES:
        return None
    return upload.name if is_copy(resources("assets") / upload.name, upload.path) else None


def is_copy(one: Path, other: Path) -> bool:
    """Whether two files have the same content; a missing one has none."""
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
