"""The pictures of the page: examples by name, uploads by unguessable ids."""

from __future__ import annotations

import filecmp
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from vitviz.errors.kinds import ImageError, MethodError
from vitviz.errors.messages import legible, quote
from vitviz.images.colours import ColorProfile
from vitviz.ui.holdings import Bound, Holdings
from vitviz.weights import resources

EXAMPLES = ("chelsea.jpg", "coffee.jpg", "flower.jpg", "perch.jpg", "rocket.jpg", "astronaut.jpg", "chart.png")
PICTURE_ID = re.compile(r"[\w-]{22}", re.ASCII)
# The longest name of a file on common file systems.
MAX_NAME_CHARS = 255
EXPECTED_FILE = "expected a file that was uploaded here; gradio_client uploads with handle_file(PATH)"
# The address of an upload, as Gradio's upload tool returns it, ends in this and the path.
FILE_ROUTE, SCHEMES = "/gradio_api/file=", ("http://", "https://")
# The limit of Linux.
MAX_PATH_CHARS = 4096
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


def upload_of(value: object, field: str = "image") -> Upload:
    """The upload of a file description by one of Gradio's clients.

    Raises:
        ImageError: the value describes no file, or the file is no longer kept.
    """
    # Only the app has uploads; a saved page needs the other checks, and no Gradio.
    from gradio.data_classes import FileData
    from gradio.utils import get_upload_folder, is_in_or_equal

    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        raise ImageError(f"{field} = {quote(value)}: {EXPECTED_FILE}")
    path = value["path"]
    if len(path) > MAX_PATH_CHARS:
        raise ImageError(f"{field} = {quote(path)}: a path of {len(path):,} characters; {EXPECTED_FILE}")
    server, route, quoted_path = path.rpartition(FILE_ROUTE)
    if route and server.startswith(SCHEMES):
        path = unquote(quoted_path)
    try:
        FileData.model_validate(value)
        is_kept = is_in_or_equal(path, get_upload_folder()) and Path(path).is_file()
    # The path is impossible on this system, or the description is incomplete.
    except (ValueError, OSError):
        is_kept = False
    if not is_kept:
        raise ImageError(f"{field} = {quote(path)}: not uploaded here, or not kept any more; {EXPECTED_FILE}")
    return Upload(Path(path), legible(Path(value.get("orig_name") or path).name[-MAX_NAME_CHARS:]))


class Pictures:
    """Uploaded pictures, for links, by ids that are the only way to them.

    Args:
        memory: the bound of what is remembered.
    """

    def __init__(self, memory: Bound) -> None:
        self._uploads = Holdings[Upload](memory, "names of pictures")

    def id(self, upload: Upload, visitor: str = "") -> str:
        """The name of a picture in states and links: ``example:NAME`` or ``picture:ID``."""
        example = example_of(upload)
        if example is not None:
            return f"example:{example}"
        return f"picture:{self._uploads.key(Upload(upload.path, upload.name), visitor)}"

    def upload(self, picture: str) -> Upload:
        """The picture of a name in a state.

        Raises:
            ImageError: there is none of this id, or its file is no longer kept.
        """
        kind, _, name = picture.partition(":")
        if kind == "example" and name in EXAMPLES:
            return Upload(resources("assets") / name, name)
        upload = self._uploads.get(name) if kind == "picture" else None
        if upload is None or not upload.path.is_file():
            raise ImageError(EXPIRED)
        return upload


def picture_name(field: str, value: object, also: str = "") -> str:
    """The name of a picture in a state: ``example:NAME`` or ``picture:ID``.

    Raises:
        MethodError: it is no such name; ``also`` says what else is expected.
    """
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if (kind == "example" and name in EXAMPLES) or (kind == "picture" and PICTURE_ID.fullmatch(name)):
        return f"{kind}:{name}"
    raise MethodError(f"{field} = {quote(value)}: {PICTURE}{also}")


def example_of(upload: Upload) -> str | None:
    """The name of the example of which an upload is a copy, or None."""
    is_named = upload.name in EXAMPLES and upload.path.is_file()
    return (
        upload.name if is_named and filecmp.cmp(resources("assets") / upload.name, upload.path, shallow=False) else None
    )
