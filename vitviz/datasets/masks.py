"""The mask of a picture in a folder of masks."""

from __future__ import annotations

from pathlib import Path

from vitviz.errors.kinds import DataError
from vitviz.errors.messages import listing
from vitviz.images.kinds import FILE_SUFFIXES


def mask_of(key: str, masks: Path) -> Path | None:
    """The file that has the picture's name with any ending of a picture; None if there is none.

    Args:
        key: of the picture's row, its path.
        masks: the folder, with the folders of the pictures in it.

    Raises:
        DataError: there are several.
    """
    # An absolute path would leave the folder.
    stem = masks.joinpath(*[part for part in Path(key).with_suffix("").parts if part not in ("..", Path(key).anchor)])
    endings = [ending for suffix in FILE_SUFFIXES for ending in (suffix, suffix.upper())]
    paths = [path for path in (stem.with_name(stem.name + ending) for ending in endings) if path.is_file()]
    # Where capitals do not matter, one file answers to two names.
    found = list({(path.stat().st_dev, path.stat().st_ino): path for path in paths}.values())
    if len(found) > 1:
        raise DataError(f"masks {masks}: {listing(sorted(path.name for path in found))} for {key}; expected one")
    return found[0] if found else None
