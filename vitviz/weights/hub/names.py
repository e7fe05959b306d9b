"""Checkpoints of the Hugging Face hub: how they are named, which file has the weights, and what is in the cache."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listed, shown
from vitviz.weights.formats.files import SUFFIXES, USUAL

# What is read beside the weights; where that speaks of a text tower, the files of its tokenizer are too.
JSONS = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
INDEX = ".index.json"
MAX_INDEX = 8 * 2**20

MAIN = "main"
# As the hub has them; two hyphens separate owner and name in the cache.
REPOSITORY = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]{0,94}\w)?/\w(?:[\w.-]{0,94}\w)?", re.ASCII)
REVISION = re.compile(r"(?!.*\.\.)[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
# A file at the top of a repository.
PLAIN = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")


def checked_revision(repository: str, revision: str | None) -> str:
    """The revision that is meant, the main branch where none is given.

    Raises:
        CheckpointError: it is no name of a repository, or no name of a revision.
    """
    if not REPOSITORY.fullmatch(repository):
        raise CheckpointError(f"{shown(repository)}: not a repository of the Hugging Face hub; expected owner/name")
    if revision is not None and not REVISION.fullmatch(revision):
        raise CheckpointError(f"{repository}: no revision {shown(revision)}; expected a branch, a tag or a commit")
    return revision or MAIN


def is_cached(repository: str, revision: str | None = None) -> bool:
    """Whether the cache holds a complete set of weights, which needs no network.

    Raises:
        CheckpointError: it is no name of a repository, or no name of a revision.
    """
    return complete_snapshot(repository, checked_revision(repository, revision)) is not None


def complete_snapshot(repository: str, revision: str) -> Path | None:
    """The folder of a revision in the cache if it holds a complete set of weights."""
    with suppress(OSError, CheckpointError):
        folder = cached_snapshot(repository, revision)
        if folder is not None:
            names = {file.name for file in folder.iterdir() if file.is_file()}
            weights = choose_weights(repository, names)
            if weights.endswith(INDEX):
                list_shards(repository, folder / weights, names)
            return folder
    return None


def cached_snapshot(repository: str, revision: str) -> Path | None:
    """The folder of a revision in the cache, which may lack files."""
    # Importing vitviz does not load huggingface_hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import IncompleteSnapshotError

    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except IncompleteSnapshotError as error:
        folder = Path(error.snapshot_path)
    except (OSError, ValueError):
        return None
    # A damaged reference to a commit leads elsewhere.
    return folder if COMMIT.fullmatch(folder.name) else None


def choose_weights(repository: str, names: Collection[str]) -> str:
    """The file of the weights, or the index of their shards."""
    for usual in USUAL:
        if usual in names:
            return usual
    files = {name for name in names if name.lower().endswith(SUFFIXES)}
    safe = {name for name in files if name.lower().endswith(".safetensors")}
    # Its twin of the same name holds the same.
    stems = {Path(name).stem for name in safe}
    files = safe | {name for name in files if Path(name).stem not in stems}
    if len(files) == 1:
        return files.pop()
    if files:
        found = f"{len(files)} files of weights, {listed(sorted(files))}"
    else:
        found = f"no weights among its files, {listed(sorted(names), 8)}" if names else "no files"
    raise CheckpointError(f"{repository}: {found}; expected {USUAL[0]} or one file {', '.join(SUFFIXES)}")


def list_shards(repository: str, index: Path, names: Collection[str]) -> list[str]:
    """The files that an index names; what is among the names is a plain one."""
    try:
        content = index.read_bytes() if index.stat().st_size <= MAX_INDEX else b""
        shards = sorted(set(json.loads(content)["weight_map"].values()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        shards = []
    if not shards:
        raise CheckpointError(f"{repository}: {index.name} does not say in which files the weights are")
    suffix = Path(index.name.removesuffix(INDEX)).suffix
    for shard in shards:
        if shard not in names or not shard.endswith(suffix):
            raise CheckpointError(f"{repository}: {index.name} names {shown(shard)}, which is no {suffix} file of it")
    return shards
