"""Download checkpoints of the Hugging Face hub: one set of weights and the files beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing
from vitviz.progress import DownloadProgress
from vitviz.system.atomic import atomic_write
from vitviz.weights.hub.names import (
    COMMIT,
    INDEX_SUFFIX,
    JSON_FILES,
    TOP_LEVEL_NAME,
    cached_snapshot,
    checked_revision,
    choose_weights,
    complete_snapshot,
    list_shards,
)
from vitviz.weights.hub.tokenizer_files import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER_FILES,
    expected_vocabulary,
    has_vocabulary,
    text_tower_config,
)

SECONDS_BETWEEN_REPORTS = 0.1


class ProgressMeter:
    """Reports the sum of the bytes of all files, which never decreases."""

    def __init__(self, repository: str, report: Callable[[DownloadProgress], None] | None) -> None:
        self.repository, self.report = repository, report
        self.bytes: dict[str, int] = {}
        self.total: int | None = None
        self.failure: BaseException | None = None
        self._last_done, self._last_time = -1, 0.0

    def update(self, name: str, count: int) -> None:
        """Record the number of bytes of a file that have arrived."""
        self.bytes[name] = count
        if time.monotonic() - self._last_time >= SECONDS_BETWEEN_REPORTS:
            self.flush()

    def flush(self) -> None:
        """Report the sum if it has changed."""
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
    """Download a checkpoint of the Hugging Face hub into the hub's cache, unless it is there.

    Every downloaded file is checked against the hash that the hub states. The environment variables of the hub apply:
    HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and others. If the hub cannot be reached, a complete
    set in the cache is used.

    Args:
        repository: "owner/name".
        revision: a branch, a tag or a commit; None for the main branch.
        report: called in this thread at the start, at most ten times a second, and at the end; never if there is
            nothing to download. An exception from it ends the download.

    Returns:
        The folder of the snapshot with the weights and the JSON files beside them. If these describe a text tower, the
        folder also has the files of its tokenizer, unless they are too large.

    Raises:
        CheckpointError: there is no such repository or revision, it may not be read, it does not hold exactly one set
            of weights, the hub cannot be reached, the cache is full or cannot be written, or a file is damaged.
    """
    revision = checked_revision(repository, revision)
    meter = ProgressMeter(repository, report)
    with _hub_errors(repository, revision, meter):
        return _download(repository, revision, meter)


def download_tokenizer(repository: str, commit: str) -> None:
    """Add the files of the tokenizer to a cached snapshot without them.

    Args:
        repository: "owner/name".
        commit: of the cached snapshot.

    Raises:
        CheckpointError: the repository has no tokenizer or one that is too large, or it cannot be downloaded, see
            :func:`download`.
    """
    try:
        with _hub_errors(repository, commit, ProgressMeter(repository, None)):
            _download_tokenizer(repository, commit)
    except CheckpointError as error:
        # Without this prefix, the whole checkpoint would seem to be missing.
        message = str(error).removeprefix(f"{repository}: ")
        raise CheckpointError(f"{repository}: the files of its tokenizer: {message}") from None


@contextmanager
def _hub_errors(repository: str, revision: str, meter: ProgressMeter) -> Iterator[None]:
    """Turn failures at the hub into a :class:`CheckpointError`; exceptions from the meter's report stay as they are."""
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
    names = {name for name in files if TOP_LEVEL_NAME.fullmatch(name)}
    weights = choose_weights(repository, names)
    # The weights come last, so that a snapshot with weights is complete.
    downloads = [*(name for name in JSON_FILES if name in names), weights]
    # Skipped for a complete set, which must work without a network and in a read-only cache.
    if (cached is None or cached.name != commit) and downloads[:-1] and _tokenizer_files(names):
        folder = _download_files(repository, commit, downloads[:-1])
        for name in _tokenizer_files(names) if text_tower_config(folder) is not None else ():
            # The error is raised later, when a text is used.
            with suppress(_TooLarge):
                _download_tokenizer_file(repository, commit, name)
    if weights.endswith(INDEX_SUFFIX):
        folder = _download_files(repository, commit, downloads)
        downloads += list_shards(repository, folder / weights, names)
    folder = _download_files(repository, commit, downloads, meter)
    _save_ref(folder, revision)
    return folder


class _TooLarge(CheckpointError):
    """A tokenizer file too large to be one."""


def _download_tokenizer(repository: str, commit: str) -> None:
    from vitviz.weights.hub.client import list_files

    names = _tokenizer_files({name for name in list_files(repository, commit)[1] if TOP_LEVEL_NAME.fullmatch(name)})
    folders = [_download_tokenizer_file(repository, commit, name) for name in names]
    if not folders or not has_vocabulary(folders[0]):
        files = listing(names) if names else "none"
        raise CheckpointError(f"{repository}: {files} in the repository; expected {expected_vocabulary()}")


def _tokenizer_files(names: Collection[str]) -> list[str]:
    return [name for name in TOKENIZER_FILES if name in names]


def _download_tokenizer_file(repository: str, commit: str, name: str) -> Path:
    """Download a tokenizer file into the snapshot, unless it is there.

    Raises:
        _TooLarge: it is too large, by the size that the hub states or by the bytes that have arrived.
    """

    def check(progress: DownloadProgress) -> None:
        size = max(progress.done, progress.total or 0)
        if size > MAX_TOKENIZER_BYTES:
            file = f"{name} of {size / 2**20:,.0f} MiB"
            raise _TooLarge(f"{repository}: {file}; expected at most {MAX_TOKENIZER_BYTES >> 20} MiB")

    return _download_files(repository, commit, [name], ProgressMeter(repository, check))


def _download_files(repository: str, commit: str, names: list[str], meter: ProgressMeter | None = None) -> Path:
    """Download files into the snapshot of a commit, in this order, unless they are there; returns its folder."""
    from vitviz.weights.hub.client import RemoteFile, check_space

    folder = cached_snapshot(repository, commit)
    cached = {name: _size(folder / name) for name in names if (folder / name).is_file()} if folder is not None else {}
    files = [RemoteFile.describe(repository, commit, name) for name in names if name not in cached]
    meter = meter or ProgressMeter(repository, None)
    meter.bytes = cached
    sizes = [file.size for file in files if file.size is not None]
    check_space(repository, sum(sizes))
    if len(sizes) == len(files):
        meter.total = sum(sizes) + sum(cached.values())
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
    """Record the commit of a branch or tag in the cache, for use without a network.

    huggingface_hub would do this before the files have arrived, and then an older complete set could no longer be used.
    """
    # A complete cache may be read-only.
    with suppress(OSError):
        ref = folder.parents[1] / "refs" / revision
        if revision != folder.name and not (ref.is_file() and ref.read_text() == folder.name):
            ref.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(ref, shared=True) as stream:
                stream.write(folder.name.encode())
