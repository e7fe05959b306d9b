"""Whether a checkpoint has a text tower, and the files of its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.metadata.sidecars import read_json

CONFIGURATIONS = ("open_clip_config.json", "config.json")
"""The files that describe the towers of a checkpoint; the first that exists counts."""
# The vocabulary comes last, so that an interrupted download leaves none.
TOKENIZER_FILES = (
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "tokenizer.json",
)
"""The files of tokenizers, in the order of their download."""
VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",), ("vocab.txt",))
"""Groups of files; each group is a complete vocabulary."""
# Limit of one file; SigLIP 2's multilingual vocabulary takes half of it.
MAX_TOKENIZER_BYTES = 64 * 2**20


def text_tower_config(folder: Path) -> dict[str, Any] | None:
    """The configuration in a folder if it describes a text tower; None otherwise."""
    path = next((folder / name for name in CONFIGURATIONS if (folder / name).is_file()), None)
    try:
        configuration: Any = {} if path is None else read_json(path)
    except CheckpointError:
        return None
    configuration = configuration.get("model_cfg", configuration)
    has_text = isinstance(configuration, dict) and any(
        isinstance(configuration.get(name), dict) for name in ("text_cfg", "text_config")
    )
    return configuration if has_text else None


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder has a complete vocabulary."""
    return any(all((folder / name).is_file() for name in group) for group in VOCABULARIES)


def expected_vocabulary() -> str:
    """The files of a vocabulary, for a message."""
    *groups, last = (" with ".join(group) for group in VOCABULARIES)
    return f"{', '.join(groups)} or {last}"
