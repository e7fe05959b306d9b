"""Names of checkpoints of the Hugging Face hub, their file of weights, and their snapshots in the cache."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.weights.formats.files import read_index
from vitviz.weights.formats.names import EXPECTED_NAMES, INDEX_SUFFIX, weight_files

# Files that are read beside the weights. If they describe a text tower, its tokenizer files are read, too.
JSON_FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")

MAIN = "main"
# The hub's own rules; two hyphens separate owner and name in the cache.
REPOSITORY = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]{0,94}\w)?/\w(?:[\w.-]{0,94}\w)?", re.ASCII)
REVISION = re.compile(r"(?!.*\.\.)[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
# A file at the top level of a repository.
TOP_LEVEL_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")


def checked_revision(repository: str, revision: str | None) -> str:
    """The revision, or the main branch for None, after both names are checked.

    Raises:
        CheckpointError: one of them is no legal name.
    """
    if not REPOSITORY.fullmatch(repository):
        raise CheckpointError(f"{quote(repository)}: not a repository of the Hugging Face hub; expected owner/name")
    if revision is not None and not REVISION.fullmatch(revision):
        raise CheckpointError(f"{repository}: no revision {quote(revision)}; expected a branch, a tag or a commit")
    return revision or MAIN


def is_cached(repository: str, revision: str | None = None) -> bool:
    """Whether the cache has a complete set of weights, so that no network is needed.

    Raises:
        CheckpointError: the repository or the revision is no legal name.
    """
    return complete_snapshot(repository, checked_revision(repository, revision)) is not None


def complete_snapshot(repository: str, revision: str) -> Path | None:
    """The cached folder of a revision if it has a complete set of weights; None otherwise."""
    with suppress(OSError, CheckpointError):
        folder = cached_snapshot(repository, revision)
        if folder is not None:
            names = {file.name for file in folder.iterdir() if file.is_file()}
            weights = choose_weights(repository, names)
            if weights.endswith(INDEX_SUFFIX):
                list_shards(repository, folder / weights, names)
            return folder
    return None


def cached_snapshot(repository: str, revision: str) -> Path | None:
    """The cached folder of a revision, which may be incomplete; None if there is none."""
    # Importing vitviz does not load huggingface_hub.
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except (OSError, ValueError) as error:
        # Only an IncompleteSnapshotError has it, which the first releases do not raise.
        path = getattr(error, "snapshot_path", None)
        if path is None:
            return None
        folder = Path(path)
    # A damaged reference may lead to another folder.
    return folder if COMMIT.fullmatch(folder.name) else None


def choose_weights(repository: str, names: Collection[str]) -> str:
    """The name of the file of weights, or of the index of their shards."""
    files = weight_files(names)
    if len(files) == 1:
        return files[0]
    if files:
        problem = f"{len(files)} files of weights, {listing(files)}"
    else:
        problem = f"no weights among its files, {listing(sorted(names), 8)}" if names else "no files"
    raise CheckpointError(f"{repository}: {problem}; expected {EXPECTED_NAMES}")


def list_shards(repository: str, index: Path, names: Collection[str]) -> list[str]:
    """The shards that an index names. Each must be in ``names``."""
    shards = sorted(read_index(index, f"{repository}: {index.name}"))
    missing = [shard for shard in shards if shard not in names]
    if missing:
        raise CheckpointError(f"{repository}: {index.name} names {quote(missing[0])}, which is no file of it")
    return shards
