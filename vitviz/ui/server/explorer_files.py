"""The files that the explorer fetches, each written once, in turn and within the memory budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis
from vitviz.ui.explorer.page import page_parts
from vitviz.ui.packs import pack
from vitviz.ui.pictures import Upload
from vitviz.ui.server.budget import MemoryBudget
from vitviz.ui.server.decoding import UploadedPictures
from vitviz.ui.server.estimates import layer_bytes, page_bytes
from vitviz.ui.server.fair_lock import FairLock
from vitviz.ui.server.files import Folder

# The names of the explorer as one file, in the parts of `page_parts`, and of the original picture.
PAGE, PICTURE = "page", "picture"


class ExplorerFiles:
    """Writes the files and remembers their paths.

    Args:
        uploaded: opens pictures.
        budget: gives each file its memory while it is written.
        folder: of the files.
    """

    def __init__(self, uploaded: UploadedPictures, budget: MemoryBudget, folder: Folder) -> None:
        self._uploaded, self._budget, self._folder = uploaded, budget, folder
        # A page or a picture may take seconds; layers do not wait for them.
        self._locks = {PAGE: FairLock(), PICTURE: FairLock()}
        self.lock = FairLock()
        self._paths: WeakKeyDictionary[Analysis, dict[str, Path]] = WeakKeyDictionary()

    def file(self, analysis: Analysis, name: str, upload: Upload, source: dict[str, Any]) -> Path:
        """A file of an analysis, written if it is not there.

        Args:
            analysis: of the file.
            name: of the file.
            upload: the picture.
            source: ``source``, ``name``, ``fit`` and ``resolution`` of :func:`vitviz.ui.explorer.page.page_parts`.

        Raises:
            QueryError: there is no such file.
            ImageError: the picture is no longer kept.
            LimitError: the disk or the memory is full.
        """
        with self._locks.get(name, self.lock).turn():
            paths = self._paths.setdefault(analysis, {})
            if name not in paths or not paths[name].exists():
                content = self.content(analysis, name, upload, source)
                paths[name] = self._folder.keep(content, "pack.safetensors")
            self._folder.find(paths[name])
            return paths[name]

    def content(self, analysis: Analysis, name: str, upload: Upload, source: dict[str, Any]) -> bytes:
        """The bytes of a file."""
        if name == PICTURE:
            with self._uploaded.opened(upload) as picture:
                return picture.png()
        if name == PAGE:
            with self._budget.share(page_bytes(analysis), "this page"):
                return json.dumps(page_parts(analysis, source["name"], **source)).encode()
        with self._budget.share(layer_bytes(analysis), "this layer"):
            return pack(analysis.trace, name)
