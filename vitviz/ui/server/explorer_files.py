"""The files that the explorer fetches: each made once, in its turn and within the memory of the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis
from vitviz.ui.explorer.page import whole_page
from vitviz.ui.files import keep
from vitviz.ui.packs import pack
from vitviz.ui.pictures import Upload
from vitviz.ui.server.budget import MemoryBudget
from vitviz.ui.server.decoding import UploadedPictures
from vitviz.ui.server.estimates import layer_bytes, page_bytes
from vitviz.ui.server.fair_lock import FairLock

# The name by which the explorer asks for itself as one file.
PAGE = "page"
# The picture as it was given.
PICTURE = "picture"


class ExplorerFiles:
    """Makes the files, and knows those that are made.

    Args:
        uploaded: opens pictures.
        budget: of which each file takes a share while it is made.
    """

    def __init__(self, uploaded: UploadedPictures, budget: MemoryBudget) -> None:
        self._uploaded, self._budget = uploaded, budget
        # A page or a picture may take seconds, for which no layer waits.
        self._locks = {PAGE: FairLock(), PICTURE: FairLock()}
        self.lock = FairLock()
        self._made: WeakKeyDictionary[Analysis, dict[str, Path]] = WeakKeyDictionary()

    def file(self, analysis: Analysis, name: str, folder: str, upload: Upload, about: dict[str, Any]) -> Path:
        """A file of an analysis, written into a folder where it is not there.

        Args:
            analysis: that it is of.
            name: of the file.
            folder: of Gradio's cache.
            upload: the picture.
            about: what the page says of the analysis, as :func:`vitviz.ui.explorer.whole_page` takes it.

        Raises:
            QueryError: there is no such file.
            ImageError: the picture is not kept any more.
            LimitError: there is no room for it.
        """
        with self._locks.get(name, self.lock).turn():
            made = self._made.setdefault(analysis, {})
            if name not in made or not made[name].exists():
                content = self.content(analysis, name, upload, about)
                made[name] = Path(keep(content, "pack.safetensors", folder))
            # Files leave by their age.
            os.utime(made[name])
            return made[name]

    def content(self, analysis: Analysis, name: str, upload: Upload, about: dict[str, Any]) -> bytes:
        """A file as :meth:`file` writes it."""
        if name == PICTURE:
            with self._uploaded.opened(upload) as picture:
                return picture.png()
        if name == PAGE:
            with self._budget.share(page_bytes(analysis), "this page"):
                return whole_page(analysis, about["name"], **about).encode()
        with self._budget.share(layer_bytes(analysis), "this layer"):
            return pack(analysis.trace, name)
