"""The files that the explorer fetches: each made once, in its turn and within the memory of the server."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis
from vitviz.attention.token_map import TokenMap
from vitviz.attribution import Method
from vitviz.ui.explorer.page import whole_page
from vitviz.ui.files import keep
from vitviz.ui.packs import map_pack, pack
from vitviz.ui.pictures import Upload
from vitviz.ui.server.budget import MemoryBudget
from vitviz.ui.server.decoding import UploadedPictures
from vitviz.ui.server.estimates import layer_bytes, page_bytes
from vitviz.ui.server.fair_lock import FairLock

# The name by which the explorer asks for itself as one file.
PAGE = "page"
# The picture as it was given.
PICTURE = "picture"
# What the values of a file are: those of a method's map.
MAP = "map"
# Files that are known of one analysis.
MAX_MAPS = 64


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


class MapFiles:
    """The files of maps that were made; the last ones of each analysis, as long as it is kept."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Analysis, OrderedDict[str, Path]] = WeakKeyDictionary()

    def known(self, analysis: Analysis, method: Method, parameters: Mapping[str, Any]) -> Path | None:
        """The file of a map that was made before."""
        path = self._made.get(analysis, OrderedDict[str, Path]()).get(_key(method, parameters, MAP))
        if path is None or not path.exists():
            return None
        # Files leave by their age.
        path.touch()
        return path

    def write(
        self,
        analysis: Analysis,
        method: Method,
        parameters: Mapping[str, Any],
        token_map: TokenMap,
        folder: str,
        kind: str = MAP,
    ) -> Path:
        """The file of a map as the page fetches it, written into a folder.

        Args:
            analysis, method, parameters, token_map: the map.
            folder: of Gradio's cache.
            kind: what its values are: the map's own, or another word.

        Raises:
            LimitError: there is no room for it.
        """
        layout, query = analysis.trace.layout, parameters.get("query")
        own = layout.index(query) if method.begins_with_identity and isinstance(query, tuple) else None
        path = Path(keep(map_pack(token_map, layout, own), "pack.safetensors", folder))
        made = self._made.setdefault(analysis, OrderedDict())
        made[_key(method, parameters, kind)] = path
        while len(made) > MAX_MAPS:
            made.popitem(last=False)
        return path


def _key(method: Method, parameters: Mapping[str, Any], kind: str) -> str:
    return repr((kind, method.name, sorted(parameters.items())))
