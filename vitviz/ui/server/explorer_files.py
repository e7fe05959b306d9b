"""The files that the explorer fetches, each written once."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis
from vitviz.ui.explorer.saved_page import page_parts
from vitviz.ui.image_bytes import as_webp
from vitviz.ui.packs import FEATURES, feature_names, features_packs, pack
from vitviz.ui.pictures import Upload
from vitviz.ui.server.line import Line, Once
from vitviz.ui.server.uploaded_pictures import UploadedPictures
from vitviz.ui.server.visitor_files import Folder

# The explorer as one file, in the parts of `page_parts`; the original picture; that of the canvas.
PAGE, PICTURE, SEEN = "page", "picture", "seen.webp"
FILE_NAME = "pack.safetensors"
# The longer side of the picture of the canvas, in pixels.
CANVAS_SIDE = 900


class ExplorerFiles:
    """Writes the files and remembers their paths. For one event loop.

    Args:
        uploaded: opens pictures.
        folder: of the files.
        long, quick: where a page waits, and where a layer does, which takes milliseconds.
    """

    def __init__(self, uploaded: UploadedPictures, folder: Folder, long: Line, quick: Line) -> None:
        self._uploaded, self._folder, self._long, self._quick = uploaded, folder, long, quick
        self._paths: WeakKeyDictionary[Analysis, dict[str, Path]] = WeakKeyDictionary()
        self._keep, self._writing = partial(folder.keep, name=FILE_NAME), Once()

    async def file(self, analysis: Analysis, name: str, upload: Upload, source: dict[str, Any], passes: Line) -> Path:
        """A file of an analysis, written if it is not there.

        Args:
            analysis: of the file.
            name: of the file.
            upload: the picture.
            source: ``source``, ``name``, ``fit`` and ``resolution`` of
                :func:`vitviz.ui.explorer.saved_page.page_parts`.
            passes: where features wait, which the model computes again.

        Raises:
            QueryError: there is no such file.
            ImageError: the picture is no longer kept.
            LimitError: the disk or the memory is full.
        """
        paths = self._paths.setdefault(analysis, {})
        # One pass writes the features of all layers.
        work = "features by layer" if name in feature_names(analysis.trace) else name
        async with self._writing((id(analysis), work)):
            if name not in paths or not paths[name].exists():
                if work.startswith(FEATURES):
                    paths |= await passes.run(
                        lambda _: {each: self._keep(content) for each, content in features_packs(analysis, name)}
                    )
                else:
                    paths[name] = await self._written(analysis, name, upload, source)
        self._folder.find(paths[name])
        return paths[name]

    async def _written(self, analysis: Analysis, name: str, upload: Upload, source: dict[str, Any]) -> Path:
        if name == PICTURE:
            return await self._uploaded.opened(upload, lambda picture, _: self._keep(picture.png()))
        if name == PAGE:
            return await self._long.run(
                lambda _: self._keep(json.dumps(page_parts(_drawn(analysis), source["name"], **source)).encode())
            )
        if name == SEEN:
            return await self._quick.run(lambda _: self._keep(as_webp(_drawn(analysis).prepared.image, quality=90)))
        return await self._quick.run(lambda _: self._keep(pack(analysis.trace, name)))


def _drawn(analysis: Analysis) -> Analysis:
    """The analysis on its picture as large as the canvas draws it."""
    return replace(analysis, prepared=analysis.prepared.resized(CANVAS_SIDE))
