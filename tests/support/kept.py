"""Folders of files that take long to make, kept between runs under a hash of all that makes them."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import pytest


def kept_folder(
    request: pytest.FixtureRequest,
    name: str,
    sources: Iterable[Path],
    packages: Iterable[str],
    make: Callable[[Path], None],
) -> Path:
    """The folder that ``make`` fills, which a former run may have made; nobody may write to it.

    Args:
        request: of the fixture that asks; the cache of its run has the folder, or the run's own folder where it has no
            cache.
        name: of what is in it; folders of this name that others made are deleted.
        sources: the files whose text decides what is made.
        packages: the distributions whose versions do.
        make: fills an empty folder.
    """
    made_by = hashlib.sha256(sys.version.encode())
    for package in packages:
        made_by.update(f"{package} {version(package)}\n".encode())
    for source in sources:
        made_by.update(source.read_bytes())
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    parent = factory.mktemp("kept") if cache is None else cache.mkdir("vitviz")
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
    # A process that was killed leaves what it had made.
    left = [each for each in parent.glob(f"partial-{name}-*") if each.stat().st_mtime < time.time() - 3600]
    for old in (*parent.glob(f"{name}-*"), *left):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    assert folder.is_dir()
    return folder
