"""The packages that checkpoints come from: references for vitviz's numbers, and models to watch."""

from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages import open_clip, timm, transformers
from vitviz.weights.packages.reference import Package, ReferenceModel

__all__ = ["PACKAGES", "Package", "ReferenceModel", "find_package"]

PACKAGES = (timm.PACKAGE, transformers.PACKAGE, open_clip.PACKAGE)
"""In the order in which the files of a folder are searched for a mention of them."""


def find_package(sidecars: Sidecars) -> Package | None:
    """The package that the files beside a checkpoint name; None for none."""
    return next((package for package in PACKAGES if package.find_mention(sidecars) is not None), None)
