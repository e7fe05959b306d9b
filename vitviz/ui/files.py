"""Files that the page fetches."""

from __future__ import annotations

import base64
import fcntl
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from gradio.processing_utils import hash_bytes
from gradio.utils import get_upload_folder
from PIL import Image

from vitviz.errors.kinds import LimitError
from vitviz.weights.formats.atomic import atomic_write


class Written(set[str]):
    """Paths of files that may be gone through while others are added."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.copy()))


# All files that were put into Gradio's cache here. Gradio deletes the old ones of what it knows of, and of what a
# component makes for a visitor it does not know.
WRITTEN = Written()


def keep(content: bytes, name: str, cache: str) -> str:
    """Put a file into Gradio's cache, under the hash of its content, whole or not at all; returns its path.

    Gradio would write a file that is there already again, in place: a page that fetches it at that moment gets half.

    Raises:
        LimitError: there is no room for it.
    """
    folder = Path(cache) / hash_bytes(content)
    path = folder / name
    WRITTEN.add(str(path))
    if path.exists():
        # Files leave the cache by their age.
        os.utime(path)
        return str(path)
    try:
        folder.mkdir(exist_ok=True, parents=True)
        with atomic_write(path, shared=True, mode=0o600) as stream:
            stream.write(content)
    except OSError as error:
        raise LimitError(f"this server cannot keep a file of {len(content):,} bytes ({error.strerror})") from None
    return str(path)


def own_folder() -> Path:
    """A folder for the files of the page that no other process uses while this one lives.

    It is the first that is free: that of the process before, where this one takes its place, so that pages which are
    open find their files where these were. What is left in it by one that was killed is deleted when it is old.
    """
    user = Path(gettempdir()) / f"vitviz-{os.getuid()}"
    user.mkdir(mode=0o700, exist_ok=True)
    found = user.lstat()
    # Whoever may write where everybody does could have made it before.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return Path(mkdtemp(prefix="vitviz-"))
    for number in itertools.count(1):
        folder = user / str(number)
        folder.mkdir(exist_ok=True)
        # Held as long as the process lives, however it ends.
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
        else:
            break
    WRITTEN.update(str(path) for path in folder.rglob("*") if path.is_file())
    return folder


def empty(folder: Path) -> None:
    """Delete what is in a folder. The folder stays: another process may wait for it."""
    with suppress(OSError):
        for part in folder.iterdir():
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def forget(path: Path) -> None:
    """Delete an upload of which nothing can be made; what is no upload stays."""
    if path.resolve().is_relative_to(Path(get_upload_folder()).resolve()):
        path.unlink(missing_ok=True)


def as_png(image: Image.Image) -> bytes:
    """A picture as a file that loses nothing, written fast and not small."""
    stream = BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def as_webp(image: Image.Image, quality: int = 80) -> bytes:
    """A picture as a small file, written in a third of the usual time; a twentieth larger."""
    stream = BytesIO()
    image.save(stream, "WEBP", quality=quality, method=2)
    return stream.getvalue()


def as_base64(content: bytes) -> str:
    """A file inside of a text."""
    return base64.b64encode(content).decode()
