"""One door to every checkpoint: by the name of a bundled one, or by path."""

from __future__ import annotations

import os
from pathlib import Path

from vitviz.errors import CheckpointError, choices
from vitviz.weights.checkpoint import load_checkpoint
from vitviz.weights.model import Model

BUNDLED = ("vitviz-cifar10",)


def load(source: str | os.PathLike[str] = BUNDLED[0]) -> Model:
    """Open a checkpoint.

    Args:
        source: the name of a bundled checkpoint, or the path of a file that ``vitviz train`` wrote.

    Raises:
        CheckpointError: there is no such checkpoint, or it cannot be loaded exactly.
    """
    if source in BUNDLED:
        return load_checkpoint(resources("checkpoints") / f"{source}.safetensors")
    path = Path(source)
    if not path.is_file():
        raise CheckpointError(
            f"{str(source)!r}: neither a bundled checkpoint nor a file; expected {choices(BUNDLED)}, "
            "or the path of a checkpoint that `vitviz train` wrote"
        )
    return load_checkpoint(path)


def resources(kind: str) -> Path:
    """The folder of the bundled ``"checkpoints"`` or ``"assets"``: in an installed package, or in the repository."""
    package = Path(__file__).parents[1]
    return package / kind if (package / kind).is_dir() else package.parent / kind
