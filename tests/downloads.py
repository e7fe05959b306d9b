"""Helpers for tests of downloads: a repository, its place in the cache, and a check of refusals."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from vitviz import CheckpointError
from vitviz.progress import DownloadProgress
from vitviz.weights.hub.names import is_cached

# Releases of huggingface_hub before 2 show a bar of their own, and leave off where a connection breaks.
newer_client = pytest.mark.skipif(huggingface_hub.__version__.startswith(("0.", "1.")), reason="huggingface_hub < 2")
NAME = "someone/vit-small"
WEIGHTS = "model.safetensors"
CONFIG = b'{"model_type": "vit"}'
CONTENT = random.Random(0).randbytes(1_500_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
TOTAL = len(CONFIG) + len(CONTENT)


@contextmanager
def expect_refusal(*fragments: str, name: str = NAME) -> Iterator[None]:
    """The body is refused with one sentence that names the repository; no complete file stays in the cache."""
    with pytest.raises(CheckpointError) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    for fragment in fragments:
        assert fragment in message, f"{fragment!r} is not in {message!r}"
    assert "\n" not in message
    assert len(message) < 500
    # Visitors of an app read the message, too.
    assert not any(str(folder) in message for folder in (constants.HF_HUB_CACHE, constants.HF_HOME, Path.home()))
    assert not is_cached(name)


def cache_folder(home: Path) -> Path:
    return home / "hub" / f"models--{NAME.replace('/', '--')}"


def cached_files(home: Path) -> set[str]:
    """The files and links in the cache of the repository, without unfinished downloads."""
    root = cache_folder(home)
    names = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}
    return {name for name in names if not name.endswith(".incomplete")}


def bytes_done(reports: list[DownloadProgress]) -> list[int]:
    """The numbers of bytes in the reports, which must rise."""
    done = [report.done for report in reports]
    assert all(report.repository == NAME for report in reports)
    assert done == sorted(set(done))
    return done
