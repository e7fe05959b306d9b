"""The mask of a picture in a folder of masks."""

from __future__ import annotations

import re
from pathlib import Path

from vitviz.datasets.true_classes import path_of
from vitviz.errors.kinds import DataError
from vitviz.errors.messages import listing
from vitviz.images.file_kinds import FILE_SUFFIXES
from vitviz.system.paths import as_on_disk


def mask_of(key: str, masks: Path) -> Path | None:
    """The file that has the picture's name with any ending of a picture; None if there is none.

    Args:
        key: of the picture's row, its path.
        masks: the folder, with the folders of the pictures in it.

    Raises:
        DataError: there are several.
    """
    path = Path(path_of(key))
    # A row of a table without a path has no ending.
    name = path if re.search(r"(?i)\.parquet#\d+$", path.name) else path.with_suffix("")
    # An absolute path would leave the folder.
    stem = masks.joinpath(*[part for part in name.parts if part not in ("..", path.anchor)])
    endings = [ending for suffix in FILE_SUFFIXES for ending in (suffix, suffix.upper())]
    paths = [path for path in (as_on_disk(stem.with_name(stem.name + each)) for each in endings) if path.is_file()]
    # Where capitals do not matter, one file answers to two names.
    found = list({(path.stat().st_dev, path.stat().st_ino): path for path in paths}.values())
    if len(found) > 1:
        raise DataError(f"masks {masks}: {listing(sorted(path.name for path in found))} for {key}; expected one")
    return found[0] if found else None
