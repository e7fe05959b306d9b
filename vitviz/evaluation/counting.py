"""Many images, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def count_images(images: Iterable[Path], report: Callable[[int], None] | None) -> Iterator[Path]:
    """The images; after each, ``report`` receives the number of those that are finished."""
    for number, path in enumerate(images):
        yield path
        if report is not None:
            report(number + 1)
