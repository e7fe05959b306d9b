"""The files of the app's visitors, in a folder of its process."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from gradio.utils import get_upload_folder

from vitviz.errors.kinds import LimitError
from vitviz.system.strangers import MAX_NAME_BYTES
from vitviz.ui.holdings import Bound, Holdings
from vitviz.ui.server.line import current_visitor
from vitviz.ui.server.log import log_unexpected

# Not on Windows.
with suppress(ImportError):
    import fcntl

# The interval at which unused files are deleted.
SWEEP_SECONDS = 60.0
# The system's command outlives this process, for which deleting many files would take too long.
DELETE = ("rm", "-rf", "--")
DELETE_SECONDS = 0.5
# The beginning of the name of the folder of a process; within it, the visitors' files and everything temporary.
OWN, FILES, TEMPORARY = "vitviz-app-", "files", "temporary"


_delete = partial(shutil.rmtree, ignore_errors=True)


class NewFile:
    """A file that is being written, within the bound of its folder.

    Args:
        path: of the file.
        file: open for writing.
        grow: counts bytes before they are written.
    """

    def __init__(self, path: Path, file: BinaryIO, grow: Callable[[int], None]) -> None:
        self.path, self._file, self._grow = path, file, grow

    def write(self, content: bytes) -> int:
        """Write bytes.

        Raises:
            LimitError: there is no room for them.
            OSError: the disk is full.
        """
        self._grow(len(content))
        return self._file.write(content)


class Folder:
    """Files, each in a folder of its own, whose name nobody can guess and says nothing about the content.

    Beyond the bound, those of the visitor who holds the most are deleted, the least recently used first. What is being
    written counts, too. A file that nobody uses for a while is deleted as well.

    Args:
        max_bytes: bound on all files together; by default half of what is free on the disk.
        keep_seconds: how long a file is kept after its last use.

    Attributes:
        path: the folder.
        sizes: the folder of each file by its name, whose use counts.
    """

    def __init__(self, max_bytes: int | None = None, keep_seconds: float = 12 * 3600) -> None:
        self.path, self.keep_seconds = Path(get_upload_folder()), keep_seconds
        self.path.mkdir(0o700, parents=True, exist_ok=True)
        # What the files take, by the names of their folders.
        self.sizes = Holdings[Path](
            Bound(max_bytes or shutil.disk_usage(self.path).free // 2), "files", on_drop=_delete, keeps_newest=False
        )

    @contextmanager
    def new(self, name: str) -> Iterator[NewFile]:
        """A new file, which is deleted if the block fails.

        Args:
            name: the visitor's, of which legal signs are kept.

        Raises:
            LimitError: there is no room for it, or the disk is full.
        """
        legal = re.sub(r"[^\w. -]", "_", name).encode()[-MAX_NAME_BYTES:].decode(errors="ignore").strip(". ")
        with self._share() as token:
            path = self.path / token / (legal or "file")
            path.parent.mkdir(0o700, parents=True)
            # No other user of the machine may read it.
            with open(path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                yield NewFile(path, file, partial(self._grow, token))
            self._grow(token, 0)

    @contextmanager
    def borrow(self) -> Iterator[Callable[[int], None]]:
        """A function that counts bytes which lie elsewhere on the disk until the block ends.

        Raises:
            LimitError: by the function, if there is no room for them, or the disk is full.
        """
        with self._share() as token:
            yield partial(self._grow, token)
            self.sizes.drop(token)

    def keep(self, content: bytes, name: str) -> Path:
        """Write a file; returns its path.

        Raises:
            LimitError: there is no room for it, or the disk is full.
        """
        with self.new(name) as file:
            file.write(content)
        return file.path

    def publish(self, content: bytes, name: str) -> str:
        """Write a file as :meth:`keep`; returns the address at which the page fetches it."""
        return "/".join(("made", *self.keep(content, name).parts[-2:]))

    def find(self, path: Path) -> Path | None:
        """The path of a file, whose use counts; None if it is no file of this folder."""
        if path.parent != self.sizes.get(path.parent.name) or not os.path.isfile(path):
            return None
        # A child that a file took over may have made a link, where nothing forbids it.
        return path if os.path.realpath(path) == os.path.join(os.path.realpath(self.path), *path.parts[-2:]) else None

    def watch(self) -> None:
        """Delete what nobody has used for as long as files are kept from now on, in a thread of its own."""
        threading.Thread(target=self._watch, name="vitviz-files", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(min(SWEEP_SECONDS, self.keep_seconds))
            try:
                self.sizes.drop_unused(self.keep_seconds)
            except Exception as error:
                log_unexpected("the deletion of unused files, which begins again", error)

    @contextmanager
    def _share(self) -> Iterator[str]:
        """A new name with a share of the bound; if the block fails, it is given back, and its file deleted."""
        token = secrets.token_urlsafe(16)
        self.sizes.put(token, self.path / token, current_visitor())
        try:
            yield token
        except BaseException as error:
            self.sizes.drop(token)
            _delete(self.path / token)
            if isinstance(error, OSError):
                raise LimitError(f"this server cannot keep a file now ({error.strerror})") from None
            raise

    def _grow(self, token: str, count: int) -> None:
        try:
            self.sizes.grow(token, count)
            self.sizes.grow(token, 0)
        # Its visitor holds the most, and used everything else later.
        except KeyError:
            raise LimitError(
                "this server has no room for more files of yours now: expected a smaller one, or another try later"
            ) from None


def own_folder(parent: Path) -> Path:
    """A folder of this process alone, inside one that other processes and users may share.

    It has the folders :data:`FILES` and :data:`TEMPORARY`. What processes left there that no longer live is deleted.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{OWN}*"):
        # Its process lives, another user has it, or the file system has no locks.
        with suppress(OSError):
            handle = _lock(left)
            discard(left)
            os.close(handle)
    folder = Path(tempfile.mkdtemp(dir=parent))
    with suppress(OSError):
        _lock(folder)
    # Another process that starts now would delete it before it is locked.
    folder = folder.rename(folder.with_name(f"{OWN}{folder.name}"))
    for name in (FILES, TEMPORARY):
        (folder / name).mkdir(0o700)
    return folder


def discard(folder: Path) -> None:
    """Delete the folder of a process, before this process ends if it has few files; many take longer."""
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.Popen(
            [*DELETE, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ).wait(DELETE_SECONDS)


def _lock(folder: Path) -> int:
    """The descriptor of a folder that is locked from now on. The system releases the lock when the process ends.

    Raises:
        OSError: another living process has locked it, or it cannot be locked.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle
