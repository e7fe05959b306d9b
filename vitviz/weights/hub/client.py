"""Downloads with huggingface_hub, which verify each file and explain each failure in one sentence.

huggingface_hub retries requests and resumes within one download. A new download of a file starts from its beginning.
"""

from __future__ import annotations

import contextvars
import errno
import hashlib
import logging
import re
import shutil
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import quote
from vitviz.weights.hub.names import COMMIT

# The base error of the HTTP client, the last that is not Python's own: requests before huggingface_hub 1, httpx before
# 2, httpx2 since then.
HTTPError: type[Any] = [each for each in HfHubHTTPError.__mro__ if each.__module__ != "builtins"][-1]
# The hub's header for refusals of 429: what remains, and the seconds until there is more.
RATE_LIMIT = re.compile(r"r=0;\s*t=(\d+)")
# The git hash of a small file, or the SHA-256 of a large one.
ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def list_files(repository: str, revision: str) -> tuple[str, list[str]]:
    """The commit of a revision, and the names of its files."""
    if constants.HF_HUB_OFFLINE:
        raise CheckpointError(
            f"{repository}: not completely in the cache (HF_HUB_CACHE), and HF_HUB_OFFLINE forbids to "
            "download it; unset it"
        )
    try:
        info = HfApi(library_name="vitviz").model_info(
            repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        commit, names = str(info.sha), [str(file.rfilename) for file in info.siblings or ()]
    except (HfHubHTTPError, UnicodeError):
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        commit = ""
    if not COMMIT.fullmatch(commit):
        raise CheckpointError(
            f"{repository}: {constants.ENDPOINT} does not answer as a Hugging Face hub does; log in to the network "
            "where it asks for that, or correct HF_ENDPOINT"
        )
    return commit, names


@dataclass(frozen=True)
class RemoteFile:
    """What the hub states about a file of a commit.

    Attributes:
        etag: the hash of the file, see :data:`ETAG`.
        size: in bytes; None if the hub does not state it.
    """

    repository: str
    commit: str
    name: str
    etag: str
    size: int | None

    @classmethod
    def describe(cls, repository: str, commit: str, name: str) -> RemoteFile:
        """Ask the hub about a file."""
        url, timeout = hf_hub_url(repository, name, revision=commit), constants.HF_HUB_ETAG_TIMEOUT
        options = _supported(get_hf_file_metadata, retry_on_errors=True)
        metadata = get_hf_file_metadata(url, timeout=timeout, library_name="vitviz", **options)
        # huggingface_hub builds paths from both without checking them.
        if not ETAG.fullmatch(metadata.etag or "") or metadata.commit_hash != commit:
            raise CheckpointError(
                f"{repository}: {constants.ENDPOINT} states no hash to verify {name} by; correct HF_ENDPOINT"
            )
        return cls(repository, commit, name, metadata.etag or "", metadata.size)

    def download(self, report: Callable[[int], None]) -> Path:
        """Download the file into the cache and verify it there.

        Args:
            report: called with the number of bytes so far. An exception from it ends the download. Never called by
                releases of huggingface_hub that show a bar of their own and take no other, such as those of
                transformers 4.

        Returns:
            The path of the file in the snapshot of its commit.
        """
        received, is_interrupted = 0, False
        size_error = CheckpointError(
            f"{self.repository}: {constants.ENDPOINT} sends something else than {self.name}, of another size; "
            "log in to the network where it asks for that, or download it again later"
        )

        class Bar(tqdm):
            """A progress bar that is not drawn, and only reports the bytes."""

            def __init__(self, *_: object, **__: object) -> None:
                super().__init__(disable=True)

            def update(bar, n: float | None = 1) -> None:
                nonlocal received, is_interrupted
                received += int(n or 0)
                is_interrupted = True
                if self.size is not None and received > self.size:
                    raise size_error
                report(received)
                is_interrupted = False

        options = _supported(hf_hub_download, tqdm_class=Bar)
        try:
            path = Path(
                hf_hub_download(self.repository, self.name, revision=self.commit, library_name="vitviz", **options)
            )
        except HfHubHTTPError:
            raise
        except HTTPError as error:
            if is_interrupted or _status(error) is not None:
                raise
            total = "" if self.size is None else f" of {readable_size(self.size)}"
            raise CheckpointError(
                f"{self.repository}: the connection broke off again and again, at last at {readable_size(received)}"
                f"{total} of {self.name}; download it again"
            ) from error
        except OSError as error:
            # huggingface_hub raises a plain OSError if the size differs.
            if type(error) is OSError and error.errno is None and not is_interrupted:
                raise size_error from error
            raise
        if not self._is_intact(path):
            _remove(path)
            raise CheckpointError(
                f"{self.repository}: {self.name} arrived damaged, not of the size and hash that "
                f"{constants.ENDPOINT} states, and was deleted; download it again"
            )
        return path

    def _is_intact(self, path: Path) -> bool:
        try:
            size = path.stat().st_size
            digest = hashlib.sha256() if len(self.etag) == 64 else hashlib.sha1(usedforsecurity=False)
            if len(self.etag) == 40:
                digest.update(b"blob %d\0" % size)
            with open(path, "rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
        except FileNotFoundError:
            # Another download found the file damaged and deleted it.
            return False
        return self.size in (None, size) and digest.hexdigest() == self.etag


def _supported(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """The options that this release of huggingface_hub has."""
    return {name: value for name, value in options.items() if name in signature(function).parameters}


def check_space(repository: str, needed: int) -> None:
    """Refuse a download of ``needed`` bytes if the disk of the cache has less space."""
    cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
    free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
    if free < needed:
        raise CheckpointError(
            f"{repository}: {readable_size(needed)} to download, but the disk of the cache "
            f"(HF_HUB_CACHE) has {readable_size(free)} left; make room, or set HF_HOME to another folder"
        )


def readable_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _remove(path: Path) -> None:
    """Delete a file and all symbolic links that lead to it."""
    while path.is_symlink():
        link, path = path, path.parent / path.readlink()
        link.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


# Log lines of huggingface_hub would appear between those of a command. Other threads may still want them.
_quiet = contextvars.ContextVar("_quiet", default=False)
for _handler in logging.getLogger("huggingface_hub").handlers:
    _handler.addFilter(lambda record: not _quiet.get())


# huggingface_hub has one switch for the process, which the last of several downloads resets.
_xet_lock, _downloads, _xet_was_disabled = threading.Lock(), 0, False


@contextmanager
def download_settings() -> Iterator[None]:
    """Context in which huggingface_hub does not log in this thread, does not warn and does not use Xet.

    Xet downloads in threads of another library, where an exception from a report would not end the download.
    """
    global _downloads, _xet_was_disabled
    # catch_warnings is not thread-safe, and an app has one thread for each visitor.
    warnings.filterwarnings("ignore", module=r"huggingface_hub\.")
    token = _quiet.set(True)
    with _xet_lock:
        if not _downloads:
            # The first releases have no Xet, and nobody there reads this.
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
        _quiet.reset(token)


def explain(error: Exception, repository: str, revision: str) -> str:
    """What went wrong and what to do about it, without local folders, since visitors of an app read it too."""
    hub = constants.ENDPOINT
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, GatedRepoError):
        return f"gated: accept its terms at https://huggingface.co/{repository} and set HF_TOKEN to a token of yours"
    if isinstance(error, RepositoryNotFoundError):
        return f"no such repository at {hub}, or a private one; correct the name, or set HF_TOKEN to a token for it"
    if isinstance(error, RevisionNotFoundError):
        return f"no revision {quote(revision)}; expected a branch, a tag or a commit of it"
    if isinstance(error, EntryNotFoundError):
        return f"a file that {hub} lists is missing there; try another revision"
    if isinstance(error, HTTPError) and _status(error) is not None:
        return _refusal(error)
    if isinstance(error, UnicodeError) or type(error).__name__ == "LocalProtocolError":
        return "HF_TOKEN has characters that no token has; correct it, or unset it"
    if isinstance(error, HTTPError):
        is_timeout = "Timeout" in type(error).__name__
        cause = _first_cause(error)
        reason = "no answer in time" if is_timeout else textwrap.shorten(str(cause) or type(cause).__name__, 100)
        return (
            f"{hub} cannot be reached ({reason}), and it is not completely in the cache (HF_HUB_CACHE); check the "
            "network: without one, or with HF_HUB_OFFLINE=1, only what is in the cache can be used"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of the cache (HF_HUB_CACHE) is full; make room, or set HF_HOME to another folder"
    if isinstance(error, OSError) and error.errno is not None:
        return (
            f"the cache (HF_HUB_CACHE) cannot be used ({error.strerror}); set HF_HOME to a folder that can be written"
        )
    logging.getLogger(__name__).debug("%s", repository, exc_info=error)
    return f"cannot be downloaded ({type(error).__name__}; logging at level DEBUG tells more)"


def _first_cause(error: BaseException) -> BaseException:
    """What the HTTP client wraps, such as a refused connection."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _status(error: Any) -> int | None:
    """The status of an answer that the hub's or the HTTP client's error refuses; None if there was no answer."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _refusal(error: Any) -> str:
    hub, status = constants.ENDPOINT, _status(error)
    if status in (401, 403):
        return f"{hub} refuses access ({status}); set HF_TOKEN to a valid token, or unset one that is not"
    if status == 429:
        headers = error.response.headers
        limit = RATE_LIMIT.search(headers.get("RateLimit", ""))
        seconds = 0 if limit is None else int(limit[1])
        retry_after = headers.get("Retry-After", "")
        seconds = int(retry_after) if retry_after.isdecimal() else seconds
        when = f"in {seconds} s" if seconds else "later"
        return f"{hub} was asked too often ({status}); try again {when}, or set HF_TOKEN, which allows more"
    return f"{hub} answers with an error ({status}); try again later"
