"""Checkpoints of the Hugging Face hub: one set of weights and the JSON files beside it, in the hub's own cache."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitviz.errors import CheckpointError, listed, shown
from vitviz.weights.files import SUFFIXES, USUAL

# Everything that is read beside the weights.
JSONS = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
INDEX = ".index.json"
MAX_INDEX = 16 * 2**20

MAIN = "main"
# As the hub has them; two hyphens separate owner and name in the cache.
REPOSITORY = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]{0,94}\w)?/\w(?:[\w.-]{0,94}\w)?", re.ASCII)
REVISION = re.compile(r"(?!.*\.\.)[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
# A file at the top of a repository.
PLAIN = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")


@dataclass(frozen=True)
class Progress:
    """How far a download is.

    Attributes:
        repository: what is downloaded, "owner/name".
        done: bytes that are there, of all files together.
        total: bytes of all files; None where the hub does not say.
    """

    repository: str
    done: int
    total: int | None


class Meter:
    """Adds up the bytes of all files and reports them, never fewer than before."""

    def __init__(self, repository: str, report: Callable[[Progress], None] | None) -> None:
        self.repository, self.report = repository, report
        self.bytes: dict[str, int] = {}
        self.total: int | None = None
        self.failure: BaseException | None = None
        self._said, self._when = -1, 0.0

    def at(self, name: str, count: int) -> None:
        self.bytes[name] = count
        if time.monotonic() - self._when >= 0.1:
            self.say()

    def say(self) -> None:
        done = sum(self.bytes.values())
        done = max(done if self.total is None else min(done, self.total), self._said)
        if self.report is not None and done != self._said:
            self._said, self._when = done, time.monotonic()
            try:
                self.report(Progress(self.repository, done, self.total))
            except BaseException as error:
                self.failure = error
                raise


def download(repository: str, revision: str | None = None, report: Callable[[Progress], None] | None = None) -> Path:
    """Bring a checkpoint of the Hugging Face hub into the hub's cache, unless it is there.

    Every file is checked against the hash that the hub states, and what broke off goes on from there the next time.
    The hub's environment variables hold: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and others.
    Where the hub cannot be reached, a complete set in the cache is used.

    Args:
        repository: "owner/name".
        revision: a branch, a tag or a commit; the main branch where it is not given.
        report: is told how far the download is, in the thread of the caller: at the start, at most ten times a second
            and at the end; not at all where nothing is to be downloaded. What it raises ends the download.

    Returns:
        The folder of the snapshot that holds the weights and the JSON files beside them.

    Raises:
        CheckpointError: there is no such repository or revision, it may not be read, it does not hold exactly one set
            of weights, the hub cannot be reached, the cache is full or cannot be written, or a file is damaged.
    """
    revision = _checked(repository, revision)
    # Not before: importing vitviz does not load the hub's client.
    from vitviz.weights import hub_client

    meter = Meter(repository, report)
    try:
        with hub_client.quiet():
            return _download(repository, revision, meter)
    except Exception as error:
        if error is meter.failure or isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{repository}: {hub_client.explain(error, repository, revision)}") from None


def is_cached(repository: str, revision: str | None = None) -> bool:
    """Whether the cache holds a complete set of weights, which needs no network.

    Raises:
        CheckpointError: it is no name of a repository, or no name of a revision.
    """
    return _in_cache(repository, _checked(repository, revision)) is not None


def _checked(repository: str, revision: str | None) -> str:
    if not REPOSITORY.fullmatch(repository):
        raise CheckpointError(f"{shown(repository)}: not a repository of the Hugging Face hub; expected owner/name")
    if revision is not None and not REVISION.fullmatch(revision):
        raise CheckpointError(f"{repository}: no revision {shown(revision)}; expected a branch, a tag or a commit")
    return revision or MAIN


def _download(repository: str, revision: str, meter: Meter) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.errors import RevisionNotFoundError

    from vitviz.weights.hub_client import list_files
    from vitviz.weights.transfer import Snapshot

    kept = _in_cache(repository, revision)
    if kept is not None and (constants.HF_HUB_OFFLINE or COMMIT.fullmatch(revision)):
        return kept
    try:
        commit, files = list_files(repository, revision, once=kept is not None)
    except RevisionNotFoundError:
        raise
    except Exception:
        if kept is None:
            raise
        return kept
    names = {name for name in files if PLAIN.fullmatch(name)}
    snapshot = Snapshot(repository, commit)
    weights = _choose(repository, names)
    # The weights come last: a snapshot that has them has everything.
    wanted = [*(name for name in JSONS if name in names), weights]
    if weights.endswith(INDEX):
        snapshot.bring(wanted)
        wanted += _shards(repository, snapshot.folder / weights, names)
    snapshot.bring(wanted, meter)
    snapshot.remember(revision)
    return snapshot.folder


def _in_cache(repository: str, revision: str) -> Path | None:
    """The folder of the snapshot where the cache has a complete one."""
    from vitviz.weights.hub_client import storage_of

    storage = storage_of(repository)
    with suppress(OSError, ValueError, CheckpointError):
        commit = revision if COMMIT.fullmatch(revision) else (storage / "refs" / revision).read_text().strip()
        if COMMIT.fullmatch(commit):
            folder = storage / "snapshots" / commit
            names = {file.name for file in folder.iterdir() if file.is_file()}
            weights = _choose(repository, names)
            if weights.endswith(INDEX):
                _shards(repository, folder / weights, names)
            return folder
    return None


def _choose(repository: str, names: Collection[str]) -> str:
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


def _shards(repository: str, index: Path, names: Collection[str]) -> list[str]:
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
