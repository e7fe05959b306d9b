"""Folders of files that take long to make, kept between runs under a hash of all that makes them."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import pytest


def kept_folder(
    config: pytest.Config,
    name: str,
    sources: Iterable[Path],
    packages: Iterable[str],
    make: Callable[[Path], None],
    asked: str = "",
) -> Path:
    """The folder that ``make`` fills, which a former run may have made; nobody may write to it.

    Args:
        config: whose cache has the folder.
        name: of what is in it; folders of this name that others made are deleted.
        sources: the files whose text decides what is made.
        packages: the distributions whose versions do.
        make: fills an empty folder.
        asked: what else decides what is made.
    """
    made_by = hashlib.sha256(f"{sys.version}\n{asked}\n".encode())
    for package in packages:
        made_by.update(f"{package} {version(package)}\n".encode())
    for source in sources:
        made_by.update(source.read_bytes())
    parent = config.cache.mkdir("vitviz") if config.cache is not None else Path(tempfile.mkdtemp(prefix="vitviz"))
    folder = parent / f"{name}-{made_by.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    # Another process may make the same at the same time: it has a folder of its own, and who ends first wins.
    partial = Path(tempfile.mkdtemp(prefix=f"partial-{name}-", dir=parent))
    make(partial)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
    for old in parent.glob(f"{name}-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    assert folder.is_dir()
    return folder
