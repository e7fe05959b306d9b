"""Write files atomically."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from vitviz.errors.kinds import ConfigError, VitvizError
from vitviz.system.paths import user_path


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, shared: bool = False, error: type[VitvizError] = ConfigError
) -> Iterator[BinaryIO]:
    """Write a hidden partial file, which :func:`put` moves to ``path`` when the block ends.

    After an exception the old file stays. A killed writer leaves the partial file. It is hidden, so that code which
    reads all files of a folder skips it.

    Args:
        path: of the file. Its folder must exist.
        shared: whether several processes or threads may write the path at once. If so, each has its own partial file;
            otherwise the next writer overwrites the partial file of a killed one.
        error: what is raised if the file cannot be written, or the block raises an ``OSError`` or, as writers of
            pictures do for what their format cannot hold, a ``ValueError``.
    """
    path = user_path(path)
    try:
        with place_for(path) as folder:
            partial = folder / f".{secrets.token_hex(8) if shared else path.name}.partial"
            try:
                with partial.open("wb") as stream:
                    yield stream
                put(partial, path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except (OSError, ValueError) as failure:
        raise error(f"{path}: cannot be written ({getattr(failure, 'strerror', None) or failure})") from None


@contextmanager
def place_for(path: Path) -> Iterator[Path]:
    """The folder in which the file for a path is made: that of the file itself, or a temporary one for a device."""
    real = Path(os.path.realpath(path))
    if _is_plain(path, real):
        yield real.parent
    else:
        with TemporaryDirectory() as folder:
            yield Path(folder)


def put(finished: Path, path: Path) -> None:
    """Move a finished file to a path.

    Behind a link, the file that it names is replaced, and a file that is replaced hands on its mode. What cannot be
    replaced, a device or a pipe, is written into.

    Raises:
        OSError: the path cannot be written.
    """
    real = Path(os.path.realpath(path))
    if _is_plain(path, real):
        # Some file systems keep no modes.
        with suppress(OSError):
            finished.chmod(stat.S_IMODE(real.stat().st_mode))
        os.replace(finished, real)
    else:
        with finished.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def _is_plain(path: Path, real: Path) -> bool:
    """Whether a path leads to a plain file, or to none yet; links that lead nowhere are something that is there."""
    return real.is_file() or not (path.exists() or os.path.lexists(real))
