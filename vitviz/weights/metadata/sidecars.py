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
from vitviz.weights.metadata.settings import Settings

SIZE_LIMIT = 8 << 20


@dataclass(frozen=True)
class Sidecars:
    """The JSON files that timm, transformers and open_clip put beside a checkpoint; empty where there is none.

    Args:
        config: ``config.json``, timm's or transformers'.
        preprocessor: ``preprocessor_config.json``, or what ``processor_config.json`` has under ``image_processor``.
        open_clip: ``open_clip_config.json``.
        preprocessor_file: the name of the file that the preprocessor is from.
    """

    config: Settings = field(default_factory=lambda: Settings({}, "config.json"))
    preprocessor: Settings = field(default_factory=lambda: Settings({}, "preprocessor_config.json"))
    open_clip: Settings = field(default_factory=lambda: Settings({}, "open_clip_config.json"))
    preprocessor_file: str = "preprocessor_config.json"

    def __post_init__(self) -> None:
        # Plain dicts are accepted, too.
        places = {"config": "config.json", "preprocessor": self.preprocessor_file, "open_clip": "open_clip_config.json"}
        for name, place in places.items():
            values = getattr(self, name)
            object.__setattr__(self, name, values if isinstance(values, Settings) else Settings(values, place))

    @classmethod
    def beside(cls, weights: Path) -> Sidecars:
        """Those that speak of a file of weights: of two checkpoints in one folder, open_clip's has its own name."""
        found = cls.read(weights.parent)
        if weights.name.startswith("open_clip_"):
            return cls(open_clip=found.open_clip)
        return replace(found, open_clip=Settings({}, found.open_clip.place)) if found.config else found

    def without(self, patterns: Collection[str]) -> tuple[Sidecars, list[str]]:
        """These files without the one of the image processor, where ``"FILE:*"`` is among the patterns; and those."""
        whole = f"{self.preprocessor_file}:*"
        if whole not in patterns or not self.preprocessor:
            return self, []
        return replace(self, preprocessor=Settings({}, self.preprocessor.place)), [whole]

    def check_whole(self, ignore: Collection[str] = ()) -> list[str]:
        """As :meth:`Settings.check_whole`, of every file that speaks of the network or was read for its pictures."""
        networks = self.config or self.open_clip
        read = [networks] + [self.preprocessor] * self.preprocessor.was_read
        left_out = [entry for settings in read for entry in settings.check_whole(ignore)]
        for pattern in ignore:
            if ":" in pattern and not any(fnmatchcase(entry, pattern) for entry in left_out):
                raise CheckpointError(f"ignore: no setting like {pattern!r} that vitviz does not know")
        return left_out

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Sidecars:
        """What there is of them in a folder.

        Raises:
            CheckpointError: a file cannot be read, is over 8 MiB, is not one JSON object or is nested too deeply.
        """
        folder = Path(folder)
        config, open_clip = read_json(folder / "config.json"), read_json(folder / "open_clip_config.json")
        # As transformers does: one file for all processors, where it has the image's, comes before the older one.
        file = "processor_config.json"
        nested = Settings(read_json(folder / file), file).inner("image_processor")
        if nested is not None:
            preprocessor, place = nested, file
        else:
            place = "preprocessor_config.json"
            preprocessor = Settings(read_json(folder / place), place)
        return cls(Settings(config, "config.json"), preprocessor, Settings(open_clip, "open_clip_config.json"), place)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no such file.

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
