"""Files that the page fetches."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from gradio.utils import get_upload_folder

from vitviz.errors.kinds import LimitError
from vitviz.system.atomic import atomic_write

# Not on Windows.
with suppress(ImportError):
    import fcntl


class WrittenFiles(set[str]):
    """A set of paths that may grow while it is iterated over."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.copy()))


# The files in Gradio's cache that vitviz wrote: Gradio deletes old files, but only those in its own lists.
WRITTEN = WrittenFiles()


def keep(content: bytes, name: str) -> Path:
    """Write a file into a folder of its own in the app's folder, atomically; returns its path.

    Raises:
        LimitError: the disk is full.
    """
    folder = Path(get_upload_folder()) / secrets.token_urlsafe(16)
    path = folder / name
    WRITTEN.add(str(path))
    try:
        folder.mkdir(exist_ok=True, parents=True)
        with atomic_write(path, shared=True, mode=0o600) as stream:
            stream.write(content)
    except OSError as error:
        raise LimitError(f"this server cannot keep a file of {len(content):,} bytes ({error.strerror})") from None
    return path


def made(content: bytes, name: str) -> str:
    """Keep a file as :func:`keep`; returns the address at which the page fetches it."""
    return "/".join(("made", *keep(content, name).parts[-2:]))


def own_folder() -> Path:
    """A folder for the page's files that no other process uses while this one lives.

    It is the first free one: a process that is restarted gets the same folder again, so that open pages still find
    their files. Files that a killed process left there are deleted by their age.
    """
    user = Path(gettempdir()) / f"vitviz-{os.getuid()}"
    user.mkdir(mode=0o700, exist_ok=True)
    status = user.lstat()
    # Another user may have created it before.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return Path(mkdtemp(prefix="vitviz-"))
    for number in itertools.count(1):
        folder = user / str(number)
        folder.mkdir(exist_ok=True)
        # The system releases the lock when the process ends, however it ends.
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
    """Delete the contents of a folder. The folder stays: another process may wait for its lock."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def delete_upload(path: Path) -> None:
    """Delete a file if it is an upload."""
    if path.resolve().is_relative_to(Path(get_upload_folder()).resolve()):
        path.unlink(missing_ok=True)
