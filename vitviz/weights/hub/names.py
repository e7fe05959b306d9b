"""Checkpoints of the Hugging Face hub: one set of weights and the files beside it, in the hub's own cache."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitviz.errors.kinds import CheckpointError, listed, shown
from vitviz.weights.formats.files import SUFFIXES, USUAL
from vitviz.weights.hub.tokenizer_files import MAX_WORDS, WORDS, expected_words, has_vocabulary, towers

if TYPE_CHECKING:
    from vitviz.weights.hub.transfer import Snapshot

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
        The folder of the snapshot that holds the weights and the JSON files beside them; where these speak of a text
        tower, also the files of its tokenizer, except such as are too large.

    Raises:
        CheckpointError: there is no such repository or revision, it may not be read, it does not hold exactly one set
            of weights, the hub cannot be reached, the cache is full or cannot be written, or a file is damaged.
    """
    revision = _checked(repository, revision)
    meter = Meter(repository, report)
    with _explained(repository, revision, meter):
        return _download(repository, revision, meter)


def download_words(repository: str, commit: str) -> None:
    """Bring the files of its tokenizer into a snapshot that was made without them.

    Args:
        repository: "owner/name".
        commit: of which the cache has a snapshot.

    Raises:
        CheckpointError: the repository has no tokenizer or one that is too large, or it cannot be downloaded, as
            :func:`download` tells.
    """
    try:
        with _explained(repository, commit, Meter(repository, None)):
            _download_words(repository, commit)
    except CheckpointError as error:
        # Else it would seem that the whole checkpoint were missing.
        message = str(error).removeprefix(f"{repository}: ")
        raise CheckpointError(f"{repository}: the files of its tokenizer: {message}") from None


@contextmanager
def _explained(repository: str, revision: str, meter: Meter) -> Iterator[None]:
    """What goes wrong at the hub, in one sentence; what the meter's report raises, as it is."""
    # Not before: importing vitviz does not load the hub's client.
    from vitviz.weights.hub import client as hub_client

    try:
        with hub_client.quiet():
            yield
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

    from vitviz.weights.hub.client import list_files
    from vitviz.weights.hub.transfer import Snapshot

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
    # What is complete has to serve without the network and where it cannot be written.
    if kept != snapshot.folder and _words(names):
        snapshot.bring(wanted[:-1])
        for name in _words(names) if towers(snapshot.folder) is not None else ():
            # Whoever asks for a text is told.
            with suppress(_TooLarge):
                _bring_words(snapshot, name)
    if weights.endswith(INDEX):
        snapshot.bring(wanted)
        wanted += _shards(repository, snapshot.folder / weights, names)
    snapshot.bring(wanted, meter)
    snapshot.remember(revision)
    return snapshot.folder


class _TooLarge(CheckpointError):
    """A file of a tokenizer that nobody would expect to be one."""


def _download_words(repository: str, commit: str) -> None:
    from vitviz.weights.hub.client import list_files
    from vitviz.weights.hub.transfer import Snapshot

    _, files = list_files(repository, commit, once=False)
    snapshot, names = Snapshot(repository, commit), {name for name in files if PLAIN.fullmatch(name)}
    for name in _words(names):
        _bring_words(snapshot, name)
    if not has_vocabulary(snapshot.folder):
        found = listed(_words(names)) if _words(names) else "none"
        raise CheckpointError(f"{repository}: {found} in the repository; expected {expected_words()}")


def _words(names: Collection[str]) -> list[str]:
    return [name for name in WORDS if name in names]


def _bring_words(snapshot: Snapshot, name: str) -> None:
    """Have a file of a tokenizer in the snapshot.

    Raises:
        _TooLarge: it is, by what the hub states before its content comes, or by what has come.
    """

    def check(state: Progress) -> None:
        size = max(state.done, state.total or 0)
        if size > MAX_WORDS:
            found = f"{name} of {size / 2**20:,.0f} MiB"
            raise _TooLarge(f"{snapshot.repository}: {found}; expected at most {MAX_WORDS >> 20} MiB")

    snapshot.bring([name], Meter(snapshot.repository, check))


def _in_cache(repository: str, revision: str) -> Path | None:
    """The folder of the snapshot where the cache has a complete one."""
    from vitviz.weights.hub.client import storage_of

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
