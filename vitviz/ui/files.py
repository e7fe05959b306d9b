"""Files that the page fetches."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from gradio.processing_utils import hash_bytes


def keep(content: bytes, name: str, cache: str) -> str:
    """Put a file into Gradio's cache, under the hash of its content, whole or not at all; returns its path.

    Gradio would write a file that is there already again, in place: a page that fetches it at that moment gets half.
    """
    folder = Path(cache) / hash_bytes(content)
    path = folder / name
    if path.exists():
        # Files leave the cache by their age.
        os.utime(path)
        return str(path)
    folder.mkdir(exist_ok=True, parents=True)
    with NamedTemporaryFile(dir=folder, delete=False) as written:
        written.write(content)
    os.replace(written.name, path)
    return str(path)
