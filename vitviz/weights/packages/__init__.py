"""The packages that checkpoints come from, to hold vitviz's numbers to theirs where they are installed."""

from vitviz.weights.packages import open_clip, timm, transformers
from vitviz.weights.packages.reference import Answer, Package, ReferenceModel, find_package, open_reference

__all__ = ["PACKAGES", "Answer", "Package", "ReferenceModel", "find_package", "open_reference"]

PACKAGES = (timm.PACKAGE, transformers.PACKAGE, open_clip.PACKAGE)
"""In the order in which the files of a folder are asked."""
