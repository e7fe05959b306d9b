"""The JSON files beside a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import quote
from vitviz.weights.formats.names import WEIGHT_FILE_NAMES, is_weight_file


@dataclass(frozen=True)
class Beside:
    """The JSON files that timm, transformers and open_clip write beside a checkpoint; missing ones are empty.

    Args:
        config: ``config.json``, timm's or transformers'.
        preprocessor: ``preprocessor_config.json``, or ``image_processor`` in ``processor_config.json``.
        open_clip: ``open_clip_config.json``.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    open_clip: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_source(cls, weights: Path, source: Path) -> tuple[Beside, bool]:
        """The files that describe a file of weights, and whether one describes a network and is left out.

        A file with an unusual name belongs to them if they name a kind of network and it is the only one in its folder.

        Args:
            weights: the file.
            source: that the user opened: the file or its folder.

        Raises:
            CheckpointError: a file cannot be read, or is not one JSON object.
        """
        if source.is_dir() or weights.name in WEIGHT_FILE_NAMES:
            return cls.beside(weights), False
        try:
            files = cls.beside(weights)
        except CheckpointError:
            # Any JSON may have this name.
            return cls(), True
        is_only, is_of_network = sum(map(is_weight_file, os.listdir(weights.parent))) == 1, files.package is not None
        return (files, False) if is_only and is_of_network else (cls(), is_of_network)

    @classmethod
    def beside(cls, weights: Path) -> Beside:
        """The files that describe a file of weights. A folder may hold a checkpoint of open_clip beside another one."""
        folder = weights.parent
        open_clip = read_json(folder / "open_clip_config.json")
        if weights.name.startswith("open_clip_"):
            return cls(open_clip=open_clip)
        # Like transformers, prefer the file for all processors to the older one if it has an image processor.
        nested = read_json(folder / "processor_config.json").get("image_processor")
        preprocessor = nested if isinstance(nested, dict) else read_json(folder / "preprocessor_config.json")
        return cls(read_json(folder / "config.json"), preprocessor, open_clip)

    @property
    def package(self) -> str | None:
        """The package that they name, open_clip where no other one is named; None for none."""
        if "model_type" in self.config:
            return "transformers"
        return "timm" if "architecture" in self.config else "open_clip" if self.open_clip else None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file.

    Raises:
        CheckpointError: it cannot be read, or is not one JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    # Not JSON, not UTF-8, nested too deeply.
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read ({type(error).__name__}: {error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} holds {quote(value)}; expected one JSON object")
    return value
