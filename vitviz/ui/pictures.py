"""Pictures as links name them: the examples by name, what visitors uploaded by ids that cannot be guessed."""

from __future__ import annotations

import filecmp
import secrets
import threading
from collections import OrderedDict
from pathlib import Path

from gradio.processing_utils import hash_file

from vitviz.ui.photo import Upload
from vitviz.weights import resources

EXAMPLES = ("chelsea.jpg", "rocket.jpg", "coffee.jpg", "astronaut.jpg")
MOST_KEPT = 10_000


class Pictures:
    """The uploaded pictures that links may ask for: as long as their files are kept, and of the last ones only.

    Whoever has an id gets its picture; nobody else does.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, Upload] = OrderedDict()
        self._ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def word(self, upload: Upload) -> tuple[str, str]:
        """What a link says of a picture: ``example`` and its name, or ``picture`` and its id."""
        example = example_of(upload)
        if example is not None:
            return "example", example
        # A page that restores a picture may do it from a copy.
        content = hash_file(upload.path)
        with self._lock:
            key = self._ids.setdefault(content, secrets.token_urlsafe(16))
            self._held[key] = upload
            self._held.move_to_end(key)
            if len(self._held) > MOST_KEPT:
                gone, _ = self._held.popitem(last=False)
                self._ids = {content: kept for content, kept in self._ids.items() if kept != gone}
        return "picture", key

    def file(self, said: str, word: str) -> Path | None:
        """The file that the two parts of :meth:`word` stand for; None where it is not kept, or never was."""
        if said == "example":
            return resources("assets") / word
        with self._lock:
            upload = self._held.get(word)
        return upload.path if upload is not None and upload.path.is_file() else None


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
