"""Whether a checkpoint has a text tower, and the files of the tokenizer that makes tokens of its texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitviz.weights.metadata.sidecars import SIZE_LIMIT

CONFIGURATIONS = ("open_clip_config.json", "config.json")
"""What says which towers a checkpoint has; the first that is there counts."""
# Those with the vocabulary come last: where a download broke off before them, there is none.
WORDS = (
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "tokenizer.json",
)
"""The files of a tokenizer."""
VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",), ("vocab.txt",))
"""The files of which each group is a whole vocabulary."""
# Limit of one file; SigLIP 2's multilingual vocabulary takes half of it.
MAX_WORDS = 64 * 2**20


def towers(folder: Path) -> dict[str, Any] | None:
    """What the configuration in a folder says of a checkpoint with a text tower; None where it speaks of none."""
    config = next((folder / name for name in CONFIGURATIONS if (folder / name).is_file()), None)
    if config is None:
        return None
    try:
        with config.open("rb") as file:
            configuration = json.loads(file.read(SIZE_LIMIT).decode())
    except (OSError, ValueError, RecursionError):
        return None
    configuration = configuration.get("model_cfg", configuration) if isinstance(configuration, dict) else None
    has_text = isinstance(configuration, dict) and any(
        isinstance(configuration.get(name), dict) for name in ("text_cfg", "text_config")
    )
    return configuration if has_text else None


def has_vocabulary(folder: Path) -> bool:
    """Whether a whole vocabulary is in a folder."""
    return any(all((folder / name).is_file() for name in group) for group in VOCABULARIES)


def expected_words() -> str:
    """The files that make a vocabulary, for a message."""
    *most, last = (" with ".join(group) for group in VOCABULARIES)
    return f"{', '.join(most)} or {last}"
