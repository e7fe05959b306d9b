"""Names of files that hold weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.weights.formats.foreign import foreign_format

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".npz")
INDEX_SUFFIX = ".index.json"
# The usual names of weights in a folder; the first that exists counts.
WEIGHT_FILE_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
EXPECTED_NAMES = f"{WEIGHT_FILE_NAMES[0]} or one file {', '.join(SUFFIXES)}"


def is_weight_file(name: str | Path) -> bool:
    """Whether a file has a suffix of weights, in capitals or not."""
    return str(name).lower().endswith(SUFFIXES)


def weight_files(names: Collection[str]) -> list[str]:
    """The files of weights in a folder: the one with a usual name, or all, but of one stem only the safetensors."""
    files = sorted(filter(is_weight_file, names))
    stems = {Path(name).stem for name in files if name.lower().endswith(SUFFIXES[0])}
    others = [name for name in files if name.lower().endswith(SUFFIXES[0]) or Path(name).stem not in stems]
    return [name for name in WEIGHT_FILE_NAMES if name in names][:1] or others


def choose_weights(name: str, names: Collection[str], instead: str = "") -> str:
    """The file of weights in a folder or a repository, or the index of its shards.

    Args:
        name: of the folder or the repository in messages.
        names: of its files, and of its folders with a slash.
        instead: what else may open one of several.

    Raises:
        CheckpointError: there is none, or there are several.
    """
    files = weight_files(names)
    if len(files) == 1:
        return files[0]
    foreign = (f", only {quote(each)} ({kind})" for each in sorted(names) if (kind := foreign_format(each)))
    if files:
        problem = f"{len(files)} files of weights, {listing(files)}"
    else:
        problem = f"no weights{next(foreign, f', only {listing(sorted(names), 8)}' if names else '')}"
    raise CheckpointError(f"{name}: {problem}; expected {EXPECTED_NAMES}{instead * bool(files)}")
