"""Many images, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vitviz.errors.kinds import DataError


def count_images(images: Iterable[Path], report: Callable[[int], None] | None) -> Iterator[Path]:
    """The images; after each, ``report`` receives the number of those that are finished.

    Raises:
        DataError: there is none.
    """
    number = 0
    for number, path in enumerate(images, 1):
        yield path
        if report is not None:
            report(number)
    if not number:
        raise DataError("images: none found; expected the path of at least one picture")
