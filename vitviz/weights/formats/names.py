"""Names of files that hold weights."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".npz")
# The usual names of weights in a folder; the first that exists counts.
WEIGHT_FILE_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)


def is_weight_file(name: str | Path) -> bool:
    """Whether a file has a suffix of weights, in capitals or not."""
    return Path(name).suffix.lower() in SUFFIXES
