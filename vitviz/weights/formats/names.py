"""Names of files that hold weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

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
    return Path(name).suffix.lower() in SUFFIXES


def weight_files(names: Collection[str]) -> list[str]:
    """The files of weights in a folder: the one with a usual name, or all, but of one stem only the safetensors."""
    files = sorted(filter(is_weight_file, names))
    stems = {Path(name).stem for name in files if name.lower().endswith(SUFFIXES[0])}
    others = [name for name in files if name.lower().endswith(SUFFIXES[0]) or Path(name).stem not in stems]
    return [name for name in WEIGHT_FILE_NAMES if name in names][:1] or others
