"""The JSON files beside a checkpoint."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.formats.names import WEIGHT_FILE_NAMES, is_weight_file
from vitviz.weights.metadata.settings import Settings

SIZE_LIMIT = 8 << 20


@dataclass(frozen=True)
class Sidecars:
    """The JSON files that timm, transformers and open_clip write beside a checkpoint; missing ones are empty.

    Args:
        config: ``config.json``, timm's or transformers'.
        preprocessor: ``preprocessor_config.json``, or ``image_processor`` in ``processor_config.json``.
        open_clip: ``open_clip_config.json``.
        preprocessor_file: name of the file with the preprocessor.
    """

    config: Settings = field(default_factory=lambda: Settings({}, "config.json"))
    preprocessor: Settings = field(default_factory=lambda: Settings({}, "preprocessor_config.json"))
    open_clip: Settings = field(default_factory=lambda: Settings({}, "open_clip_config.json"))
    preprocessor_file: str = "preprocessor_config.json"

    @classmethod
    def of_source(cls, weights: Path, source: Path) -> tuple[Sidecars, str | None]:
        """The files that describe a file of weights, and the name of one that describes a network and is left out.

        A file with an unusual name belongs to them if they name a kind of network and it is the only one in its folder.

        Args:
            weights: the file.
            source: that the user opened: the file or its folder.
        """
        if source.is_dir() or weights.name in WEIGHT_FILE_NAMES:
            return cls.beside(weights), None
        try:
            sidecars = cls.beside(weights)
        except CheckpointError:
            # Any JSON may have this name.
            return cls(), "config.json"
        names = {"model_type", "architecture"}.intersection(sidecars.config)
        describes = "config.json" if names else "open_clip_config.json" if sidecars.open_clip else None
        is_only = sum(map(is_weight_file, os.listdir(weights.parent))) == 1
        return (sidecars, None) if describes and is_only else (cls(), describes)

    @classmethod
    def beside(cls, weights: Path) -> Sidecars:
        """The files that describe a file of weights. A folder may hold a checkpoint of open_clip beside another one."""
        sidecars = cls.read(weights.parent)
        if weights.name.startswith("open_clip_"):
            return cls(open_clip=sidecars.open_clip)
        return replace(sidecars, open_clip=Settings({}, sidecars.open_clip.place)) if sidecars.config else sidecars

    def without(self, patterns: Collection[str]) -> tuple[Sidecars, list[str]]:
        """Drop the image processor's file if the patterns contain ``"FILE:*"``; also returns that pattern in a list."""
        pattern = f"{self.preprocessor_file}:*"
        if pattern not in patterns or not self.preprocessor:
            return self, []
        return replace(self, preprocessor=Settings({}, self.preprocessor.place)), [pattern]

    def check_unread(self, ignore: Collection[str] = ()) -> list[str]:
        """As :meth:`Settings.check_unread`, for the files that describe the network or were read for preprocessing."""
        network = self.config or self.open_clip
        used = [network] + [self.preprocessor] * self.preprocessor.was_read
        left_out = [entry for settings in used for entry in settings.check_unread(ignore)]
        for pattern in ignore:
            if ":" in pattern and not any(fnmatchcase(entry, pattern) for entry in left_out):
                raise CheckpointError(f"ignore: no setting like {pattern!r} that vitviz does not know")
        return left_out

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Sidecars:
        """Read those that a folder has.

        Raises:
            CheckpointError: a file cannot be read, is over 8 MiB, is not one JSON object or is nested too deeply.
        """
        folder = Path(folder)
        config, open_clip = read_json(folder / "config.json"), read_json(folder / "open_clip_config.json")
        # Like transformers, prefer the file for all processors to the older one if it has an image processor.
        file = "processor_config.json"
        nested = Settings(read_json(folder / file), file).inner("image_processor")
        if nested is not None:
            preprocessor, place = nested, file
        else:
            place = "preprocessor_config.json"
            preprocessor = Settings(read_json(folder / place), place)
        return cls(Settings(config, "config.json"), preprocessor, Settings(open_clip, "open_clip_config.json"), place)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        CheckpointError: as :meth:`Sidecars.read`.
    """
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            text = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read ({error.strerror})") from None
    if len(text) > SIZE_LIMIT:
        raise CheckpointError(f"{path.name}: over {SIZE_LIMIT >> 20} MiB; expected a small JSON object")
    try:
        values = json.loads(text.decode())
    except RecursionError:
        raise CheckpointError(f"{path.name}: nested too deeply; expected a small JSON object") from None
    except ValueError as error:
        raise CheckpointError(f"{path.name}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path.name}: {reprlib.repr(values)}: expected a JSON object")
    return values
