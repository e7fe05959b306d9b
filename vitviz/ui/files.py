"""Files that the page fetches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import gradio as gr
from gradio.processing_utils import hash_bytes

from vitviz.errors import LimitError, VitvizError


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
        with NamedTemporaryFile(dir=folder, delete=False) as written:
            try:
                written.write(content)
                written.flush()
                os.replace(written.name, path)
            except OSError:
                os.unlink(written.name)
                raise
    except OSError as error:
        raise LimitError(f"this server cannot keep a file of {len(content):,} bytes ({error.strerror})") from None
    return str(path)


@contextmanager
def shown_errors() -> Iterator[None]:
    """What goes wrong while a component makes what the page gets is shown there, in its own words.

    Raises:
        gradio.Error: in place of a :class:`vitviz.VitvizError`.
    """
    try:
        yield
    except VitvizError as error:
        raise gr.Error(str(error), print_exception=False) from None
