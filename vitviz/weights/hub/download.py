"""Download checkpoints of the Hugging Face hub: a set of weights and the files beside it, checked by their hashes."""

from __future__ import annotations

import contextvars
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import listing
from vitviz.progress import DownloadProgress
from vitviz.system.atomic import atomic_write
from vitviz.weights.formats.names import INDEX_SUFFIX
from vitviz.weights.hub.names import (
    COMMIT,
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
# The git hash of a small file, or the SHA-256 of a large one.
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
Report = Callable[[DownloadProgress], None]


@dataclass(frozen=True)
class RemoteFile:
    """What the hub states about a file.

    Args:
        size: in bytes.
        digest: its SHA-256, or the git hash of a small file.
    """

    size: int
    digest: str


@dataclass(eq=False)
class ProgressMeter:
    """Reports the sum of the bytes of all files, which never decreases.

    Args:
        repository: of the files.
        report: receives the progress; None before the number of bytes is known.
        total: bytes of all files.
    """

    repository: str
    report: Report | None = None
    total: int = 0
    failure: BaseException | None = None
    _last: tuple[int, float] = field(default=(-1, 0.0))

    def update(self, done: int, always: bool = False) -> None:
        """Report this number of bytes, if it is higher and the last report is long ago."""
        done, now = min(done, self.total), time.monotonic()
        is_due = always or now - self._last[1] >= SECONDS_BETWEEN_REPORTS
        if self.report is None or done <= self._last[0] or not is_due:
            return
        self._last = done, now
        try:
            self.report(DownloadProgress(self.repository, done, self.total))
        except BaseException as error:
            self.failure = error
            raise


def download(repository: str, revision: str | None = None, report: Report | None = None) -> Path:
    """Download a checkpoint of the Hugging Face hub into the hub's cache, unless it is there.

    Every downloaded file is checked against the hash that the hub states. The environment variables of the hub apply:
    HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and others. If the hub cannot be reached, a complete
    set in the cache is used.

    Args:
        repository: "owner/name".
        revision: a branch, a tag or a commit; None for the main branch.
        report: called in this thread before the weights, at most ten times a second, and at the end; never if there is
            nothing to download. An exception from it ends the download.

    Returns:
        The folder of the snapshot with the weights and the JSON files beside them. If these describe a text tower, the
        folder also has the files of its tokenizer, unless they are too large.

    Raises:
        CheckpointError: there is no such repository or revision, it may not be read, it does not hold exactly one set
            of weights, the hub cannot be reached, the cache is full or cannot be written, or a file is damaged.
    """
    revision = checked_revision(repository, revision)
    meter = ProgressMeter(repository)
    with _hub_errors(repository, revision, meter):
        return _download(repository, revision, meter, report)


def download_tokenizer(repository: str, commit: str) -> None:
    """Add the files of the tokenizer to a cached snapshot without them.

    Args:
        repository: "owner/name".
        commit: of the cached snapshot.

    Raises:
        CheckpointError: the repository has no tokenizer or one that is too large, or it cannot be downloaded, see
            :func:`download`.
    """
    meter = ProgressMeter(repository)
    try:
        with _hub_errors(repository, commit, meter):
            _, files = _list_files(repository, commit)
            names = [name for name in TOKENIZER_FILES if name in files]
            large = [name for name in names if files[name].size > MAX_TOKENIZER_BYTES]
            if large:
                problem = f"{large[0]} of {files[large[0]].size / 2**20:,.0f} MiB"
                raise CheckpointError(f"{problem}; expected at most {MAX_TOKENIZER_BYTES >> 20} MiB")
            folder = _fetch(repository, commit, files, names, meter) if names else None
            if folder is None or not has_vocabulary(folder):
                found = listing(names) if names else "none"
                raise CheckpointError(f"{found} in the repository; expected {expected_vocabulary()}")
    except CheckpointError as error:
        # Without this prefix, the whole checkpoint would seem to be missing.
        message = str(error).removeprefix(f"{repository}: ")
        raise CheckpointError(f"{repository}: the files of its tokenizer: {message}") from None


@contextmanager
def _hub_errors(repository: str, revision: str, meter: ProgressMeter) -> Iterator[None]:
    """Turn failures at the hub into a :class:`CheckpointError`; exceptions from the meter's report stay as they are."""
    # Importing vitviz does not load huggingface_hub.
    from vitviz.weights.hub.refusals import explain

    try:
        with _download_settings():
            yield
    except Exception as error:
        if error is meter.failure or isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{repository}: {explain(error, repository, revision)}") from None


# huggingface_hub has one switch for the process: the last of several downloads resets it.
_xet_lock, _downloads, _xet_was_disabled = threading.Lock(), 0, False
# Other threads may want the log lines of huggingface_hub.
_is_downloading = contextvars.ContextVar("_is_downloading", default=False)


def _may_log(record: logging.LogRecord) -> bool:
    return not _is_downloading.get()


@contextmanager
def _download_settings() -> Iterator[None]:
    """Context in which huggingface_hub does not log in this thread, and does not use Xet.

    Its log lines have addresses, which may be signed, and would break up the lines of a command. Xet downloads in
    threads of another library, where an exception from a report would not end the download.
    """
    global _downloads, _xet_was_disabled
    from huggingface_hub import constants

    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(_may_log)
    token = _is_downloading.set(True)
    with _xet_lock:
        if not _downloads:
            # The first releases have no such switch, and nobody there reads it.
            _xet_was_disabled = getattr(constants, "HF_HUB_DISABLE_XET", True)
            constants.HF_HUB_DISABLE_XET = True
        _downloads += 1
    try:
        yield
    finally:
        with _xet_lock:
            _downloads -= 1
            if not _downloads:
                constants.HF_HUB_DISABLE_XET = _xet_was_disabled
        _is_downloading.reset(token)


def _download(repository: str, revision: str, meter: ProgressMeter, report: Report | None) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.errors import RevisionNotFoundError

    cached = complete_snapshot(repository, revision)
    if cached is not None and (constants.HF_HUB_OFFLINE or COMMIT.fullmatch(revision)):
        return cached
    try:
        commit, files = _list_files(repository, revision)
    except RevisionNotFoundError:
        raise
    except Exception:
        if cached is None:
            raise
        return cached
    if cached is not None and cached.name == commit:
        return cached
    weights = choose_weights(repository, files)
    # The weights come last, so that a snapshot with weights is complete.
    names = [name for name in JSON_FILES if name in files]
    if names and text_tower_config(_fetch(repository, commit, files, names, meter)) is not None:
        # A larger one is an error only when a text is used.
        names += [name for name in TOKENIZER_FILES if name in files and files[name].size <= MAX_TOKENIZER_BYTES]
    names.append(weights)
    if weights.endswith(INDEX_SUFFIX):
        names += list_shards(repository, _fetch(repository, commit, files, names, meter) / weights, files)
    meter.total, meter.report = sum(files[name].size for name in names), report
    folder = _fetch(repository, commit, files, names, meter)
    _save_ref(folder, revision)
    return folder


def _list_files(repository: str, revision: str) -> tuple[str, dict[str, RemoteFile]]:
    """The commit of a revision, and its files at the top level."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        raise CheckpointError(
            f"{repository}: not completely in the cache (HF_HUB_CACHE), and HF_HUB_OFFLINE forbids to "
            "download it; unset it"
        )
    api = HfApi(library_name="vitviz")
    try:
        info = api.model_info(repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT, files_metadata=True)
        found = {
            str(file.rfilename): RemoteFile(file.size or 0, file.lfs.sha256 if file.lfs else file.blob_id or "")
            for file in info.siblings or ()
        }
        commit = str(info.sha)
    except (HfHubHTTPError, UnicodeError):
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        commit = ""
    if not COMMIT.fullmatch(commit):
        raise CheckpointError(
            f"{repository}: {constants.ENDPOINT} does not answer as a Hugging Face hub does; log in to the network "
            "where it asks for that, or correct HF_ENDPOINT"
        )
    return commit, {name: file for name, file in found.items() if TOP_LEVEL_NAME.fullmatch(name)}


def _fetch(
    repository: str, commit: str, files: Mapping[str, RemoteFile], names: Collection[str], meter: ProgressMeter
) -> Path:
    """Download files into the snapshot of a commit, in this order, unless they are there; returns its folder."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    folder = cached_snapshot(repository, commit)
    missing = [name for name in names if folder is None or not (folder / name).is_file()]
    done = sum(files[name].size for name in names if name not in missing)
    if missing:
        meter.update(done, always=True)
    for name in missing:
        _check_metadata(repository, commit, name, files[name])
        arrived = done

        class Bar(tqdm):
            """A progress bar that is not drawn, and only reports the bytes."""

            def __init__(self, *_: object, **__: object) -> None:
                super().__init__(disable=True)

            def update(bar, n: float | None = 1, end: int = done + files[name].size) -> None:
                nonlocal arrived
                arrived += int(n or 0)
                if arrived > end:
                    # As huggingface_hub does, but only after it has received everything.
                    raise OSError("more bytes than the hub states")
                meter.update(arrived)

        # The first releases show a bar of their own.
        options: dict[str, Any] = {"tqdm_class": Bar} if "tqdm_class" in signature(hf_hub_download).parameters else {}
        path = Path(hf_hub_download(repository, name, revision=commit, library_name="vitviz", **options))
        if not _is_intact(path, files[name]):
            _remove(path)
            raise CheckpointError(f"{repository}: {name} arrived damaged and was deleted; download it again")
        done += files[name].size
        folder = path.parent
        meter.update(done, always=True)
    assert folder is not None, "names is never empty"
    return folder


def _check_metadata(repository: str, commit: str, name: str, expected: RemoteFile) -> None:
    """Ask the hub about a file: huggingface_hub builds paths from its hash and its commit without checking them."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    options: dict[str, Any] = {"timeout": constants.HF_HUB_ETAG_TIMEOUT, "library_name": "vitviz"}
    if "retry_on_errors" in signature(get_hf_file_metadata).parameters:
        options["retry_on_errors"] = True
    found = get_hf_file_metadata(hf_hub_url(repository, name, revision=commit), **options)
    if not DIGEST.fullmatch(expected.digest) or (found.etag, found.commit_hash) != (expected.digest, commit):
        raise CheckpointError(
            f"{repository}: {constants.ENDPOINT} states no hash to verify {name} by; correct HF_ENDPOINT"
        )


def _is_intact(path: Path, expected: RemoteFile) -> bool:
    digest = hashlib.sha256()
    if len(expected.digest) != 64:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest() == expected.digest


def _remove(path: Path) -> None:
    """Delete a file and the link that leads to it."""
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _save_ref(folder: Path, revision: str) -> None:
    """Record the commit of a branch or tag in the cache, for use without a network.

    huggingface_hub would do this before the files have arrived, and then an older complete set could no longer be used.
    """
    # A complete cache may be read-only.
    with suppress(OSError, ConfigError):
        ref = folder.parents[1] / "refs" / revision
        if revision != folder.name and not (ref.is_file() and ref.read_text() == folder.name):
            ref.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(ref, shared=True) as stream:
                stream.write(folder.name.encode())
