"""Downloads of checkpoints of the Hugging Face hub: one set of weights and the files beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listed
from vitviz.weights.formats.atomic import atomic_write
from vitviz.weights.hub.names import (
    COMMIT,
    INDEX,
    JSONS,
    PLAIN,
    cached_snapshot,
    checked_revision,
    choose_weights,
    complete_snapshot,
    list_shards,
)
from vitviz.weights.hub.tokenizer_files import MAX_WORDS, WORDS, expected_words, has_vocabulary, towers

SECONDS_BETWEEN_REPORTS = 0.1


@dataclass(frozen=True)
class DownloadProgress:
    """How far a download is.

    Attributes:
        repository: what is downloaded, "owner/name".
        done: bytes that are there, of all files together.
        total: bytes of all files; None where the hub does not say.
    """

    repository: str
    done: int
    total: int | None


class ProgressMeter:
    """Adds up the bytes of all files and reports them, never fewer than before."""

    def __init__(self, repository: str, report: Callable[[DownloadProgress], None] | None) -> None:
        self.repository, self.report = repository, report
        self.bytes: dict[str, int] = {}
        self.total: int | None = None
        self.failure: BaseException | None = None
        self._last_done, self._last_time = -1, 0.0

    def update(self, name: str, count: int) -> None:
        """So many bytes of a file are there."""
        self.bytes[name] = count
        if time.monotonic() - self._last_time >= SECONDS_BETWEEN_REPORTS:
            self.flush()

    def flush(self) -> None:
        """Report, unless there is nothing new."""
        done = sum(self.bytes.values())
        done = max(done if self.total is None else min(done, self.total), self._last_done)
        if self.report is not None and done != self._last_done:
            self._last_done, self._last_time = done, time.monotonic()
            try:
                self.report(DownloadProgress(self.repository, done, self.total))
            except BaseException as error:
                self.failure = error
                raise


def download(
    repository: str, revision: str | None = None, report: Callable[[DownloadProgress], None] | None = None
) -> Path:
    """Bring a checkpoint of the Hugging Face hub into the hub's cache, unless it is there.

    Every file that is downloaded is checked against the hash that the hub states.
    The hub's environment variables hold: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and others.
    Where the hub cannot be reached, a complete set in the cache is used.

    Args:
        repository: "owner/name".
        revision: a branch, a tag or a commit; the main branch where it is not given.
        report: receives how far the download is, in the thread of the caller: at the start, at most ten times a second
            and at the end; not at all where nothing is to be downloaded. What it raises ends the download.

    Returns:
        The folder of the snapshot that holds the weights and the JSON files beside them; where these speak of a text
        tower, also the files of its tokenizer, except such as are too large.

    Raises:
        CheckpointError: there is no such repository or revision, it may not be read, it does not hold exactly one set
            of weights, the hub cannot be reached, the cache is full or cannot be written, or a file is damaged.
    """
    revision = checked_revision(repository, revision)
    meter = ProgressMeter(repository, report)
    with _explained(repository, revision, meter):
        return _download(repository, revision, meter)


def download_tokenizer(repository: str, commit: str) -> None:
    """Bring the files of its tokenizer into a snapshot that was made without them.

    Args:
        repository: "owner/name".
        commit: of which the cache has a snapshot.

    Raises:
        CheckpointError: the repository has no tokenizer or one that is too large, or it cannot be downloaded, as
            :func:`download` tells.
    """
    try:
        with _explained(repository, commit, ProgressMeter(repository, None)):
            _download_tokenizer(repository, commit)
    except CheckpointError as error:
        # Without these words, the whole checkpoint would seem to be missing.
        message = str(error).removeprefix(f"{repository}: ")
        raise CheckpointError(f"{repository}: the files of its tokenizer: {message}") from None


@contextmanager
def _explained(repository: str, revision: str, meter: ProgressMeter) -> Iterator[None]:
    """Failures at the hub become one sentence; what the meter's report raises stays as it is."""
    # Importing vitviz does not load huggingface_hub.
    from vitviz.weights.hub import client

    try:
        with client.download_settings():
            yield
    except Exception as error:
        if error is meter.failure or isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{repository}: {client.explain(error, repository, revision)}") from None


def _download(repository: str, revision: str, meter: ProgressMeter) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.errors import RevisionNotFoundError

    from vitviz.weights.hub.client import list_files

    cached = complete_snapshot(repository, revision)
    if cached is not None and (constants.HF_HUB_OFFLINE or COMMIT.fullmatch(revision)):
        return cached
    try:
        commit, files = list_files(repository, revision)
    except RevisionNotFoundError:
        raise
    except Exception:
        if cached is None:
            raise
        return cached
    names = {name for name in files if PLAIN.fullmatch(name)}
    weights = choose_weights(repository, names)
    # The weights come last: a snapshot that has them has everything.
    downloads = [*(name for name in JSONS if name in names), weights]
    # A complete set has to serve without the network and where the cache cannot be written.
    if (cached is None or cached.name != commit) and downloads[:-1] and _tokenizer_files(names):
        folder = _bring(repository, commit, downloads[:-1])
        for name in _tokenizer_files(names) if towers(folder) is not None else ():
            # The error is raised when a text is used.
            with suppress(_TooLarge):
                _bring_tokenizer_file(repository, commit, name)
    if weights.endswith(INDEX):
        folder = _bring(repository, commit, downloads)
        downloads += list_shards(repository, folder / weights, names)
    folder = _bring(repository, commit, downloads, meter)
    _save_ref(folder, revision)
    return folder


class _TooLarge(CheckpointError):
    """A tokenizer file too large to be one."""


def _download_tokenizer(repository: str, commit: str) -> None:
    from vitviz.weights.hub.client import list_files

    names = _tokenizer_files({name for name in list_files(repository, commit)[1] if PLAIN.fullmatch(name)})
    folders = [_bring_tokenizer_file(repository, commit, name) for name in names]
    if not folders or not has_vocabulary(folders[0]):
        found = listed(names) if names else "none"
        raise CheckpointError(f"{repository}: {found} in the repository; expected {expected_words()}")


def _tokenizer_files(names: Collection[str]) -> list[str]:
    return [name for name in WORDS if name in names]


def _bring_tokenizer_file(repository: str, commit: str, name: str) -> Path:
    """Have a file of a tokenizer in the snapshot.

    Raises:
        _TooLarge: it is, by what the hub states before its content comes, or by what has come.
    """

    def check(progress: DownloadProgress) -> None:
        size = max(progress.done, progress.total or 0)
        if size > MAX_WORDS:
            found = f"{name} of {size / 2**20:,.0f} MiB"
            raise _TooLarge(f"{repository}: {found}; expected at most {MAX_WORDS >> 20} MiB")

    return _bring(repository, commit, [name], ProgressMeter(repository, check))


def _bring(repository: str, commit: str, names: list[str], meter: ProgressMeter | None = None) -> Path:
    """Have these files in the snapshot of a commit, in this order; its folder."""
    from vitviz.weights.hub.client import RemoteFile, check_space

    folder = cached_snapshot(repository, commit)
    there = {name: _size(folder / name) for name in names if (folder / name).is_file()} if folder is not None else {}
    files = [RemoteFile.describe(repository, commit, name) for name in names if name not in there]
    meter = meter or ProgressMeter(repository, None)
    meter.bytes = there
    sizes = [file.size for file in files if file.size is not None]
    check_space(repository, sum(sizes))
    if len(sizes) == len(files):
        meter.total = sum(sizes) + sum(there.values())
    if files:
        meter.flush()
    for file in files:
        path = file.download(partial(meter.update, file.name))
        meter.update(file.name, _size(path))
        folder = path.parent
    if files:
        meter.flush()
    assert folder is not None, "names is never empty"
    return folder


def _size(path: Path) -> int:
    return path.stat().st_size


def _save_ref(folder: Path, revision: str) -> None:
    """Note in the cache which commit a branch or tag is, for a time without a network.

    huggingface_hub does this before the files have come; until then, an older complete set has to serve.
    """
    # A complete cache need not be writable.
    with suppress(OSError):
        ref = folder.parents[1] / "refs" / revision
        if revision != folder.name and not (ref.is_file() and ref.read_text() == folder.name):
            ref.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(ref, shared=True) as stream:
                stream.write(folder.name.encode())
