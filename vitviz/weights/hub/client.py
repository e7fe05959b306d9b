"""huggingface_hub as vitviz asks it: quietly, for no longer than anybody waits, with one sentence for a failure."""

from __future__ import annotations

import contextvars
import errno
import logging
import re
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

from vitviz.errors.kinds import CheckpointError, shown
from vitviz.weights.hub.names import COMMIT

# A request is tried so often, again after so many seconds at first, and given up when nothing came for so long.
ATTEMPTS = 5
WAIT = 0.5
PATIENCE = 30.0
# After as many bytes in one go, a connection that breaks is worth as many attempts again.
STEP = 2**18
RETRIED = (408, 429, 500, 502, 503, 504)

# What the hub's HTTP client raises: httpx's before huggingface_hub 2, httpx2's from then on.
HTTPError: type[Any] = HfHubHTTPError.__bases__[0]

Result = TypeVar("Result")


def storage_of(repository: str) -> Path:
    """The folder of a repository in the cache."""
    cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
    return cache / repo_folder_name(repo_id=repository, repo_type="model")


def list_files(repository: str, revision: str, once: bool) -> tuple[str, list[str]]:
    """The commit that a revision is, and its files; where a request fails, it is not made again if once is enough."""
    if constants.HF_HUB_OFFLINE:
        raise CheckpointError(
            f"{repository}: not completely in the cache (HF_HUB_CACHE), and HF_HUB_OFFLINE forbids to "
            "download it; unset it"
        )
    api, timeout = HfApi(library_name="vitviz"), constants.HF_HUB_ETAG_TIMEOUT
    try:
        info = patiently(
            lambda: api.model_info(repository, revision=revision, timeout=timeout), 1 if once else ATTEMPTS
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


class Retries:
    """Waits after a failure if another attempt is worth it."""

    def __init__(self, attempts: int) -> None:
        self._attempts, self._failures = attempts, 0
        self.heard()

    def heard(self) -> None:
        self._since = time.monotonic()

    def again(self, failure: Exception | None, came: int = 0) -> bool:
        self._failures = 1 if came >= STEP else self._failures + 1
        wait = min(WAIT * 2 ** (self._failures - 1), 8.0)
        if isinstance(failure, HfHubHTTPError):
            if failure.response.status_code not in RETRIED:
                return False
            wait = max(wait, asked_wait(failure))
        if self._failures >= self._attempts or time.monotonic() + wait - self._since > PATIENCE:
            return False
        time.sleep(wait)
        return True


def patiently(request: Callable[[], Result], attempts: int = ATTEMPTS) -> Result:
    """What a request to the hub returns, made again where a failure may pass."""
    retries = Retries(attempts)
    while True:
        try:
            return request()
        except HTTPError as error:
            if not retries.again(error):
                raise


def asked_wait(error: HfHubHTTPError) -> int:
    """The seconds after which the hub wants to be asked again, 0 where it does not say."""
    headers = error.response.headers
    found = re.fullmatch(r"\d+", headers.get("Retry-After", ""))
    if found is None and error.response.status_code == 429:
        # r requests remain, until there are new ones in t seconds.
        found = re.search(r"(?<=;r=0;t=)\d+", headers.get("RateLimit", "").replace(" ", ""))
    return int(found[0]) if found else 0


# Lines of the hub's client would stand between those of a command. Set for a thread: another may want to read them.
_quiet = contextvars.ContextVar("_quiet", default=False)
for _handler in logging.getLogger("huggingface_hub").handlers:
    _handler.addFilter(lambda record: not _quiet.get())


@contextmanager
def quiet() -> Iterator[None]:
    """The hub's client says nothing of its own."""
    # Not within catch_warnings, which is not for several threads: an app has one for each visitor.
    warnings.filterwarnings("ignore", module=r"huggingface_hub\.")
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def explain(error: Exception, repository: str, revision: str) -> str:
    """What went wrong, and what to do about it; no folder of this machine, since visitors of an app read it too."""
    hub = constants.ENDPOINT
    if isinstance(error, GatedRepoError):
        return f"gated: accept its terms at https://huggingface.co/{repository} and set HF_TOKEN to a token of yours"
    if isinstance(error, RepositoryNotFoundError):
        return f"no such repository at {hub}, or a private one; correct the name, or set HF_TOKEN to a token for it"
    if isinstance(error, RevisionNotFoundError):
        return f"no revision {shown(revision)}; expected a branch, a tag or a commit of it"
    if isinstance(error, EntryNotFoundError):
        return f"a file that {hub} lists is missing there; try another revision"
    if isinstance(error, HfHubHTTPError):
        return _refusal(error, error.response.status_code)
    if isinstance(error, UnicodeError) or type(error).__name__ == "LocalProtocolError":
        return "HF_TOKEN has characters that no token has; correct it, or unset it"
    if isinstance(error, HTTPError):
        late = "Timeout" in type(error).__name__
        reason = "no answer in time" if late else textwrap.shorten(str(error) or type(error).__name__, 100)
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


def _refusal(error: HfHubHTTPError, status: int) -> str:
    hub = constants.ENDPOINT
    if status in (401, 403):
        return f"{hub} refuses access ({status}); set HF_TOKEN to a valid token, or unset one that is not"
    if status == 429:
        seconds = asked_wait(error)
        when = f"in {seconds} s" if seconds else "later"
        return f"{hub} was asked too often ({status}); try again {when}, or set HF_TOKEN, which allows more"
    return f"{hub} answers with an error ({status}); try again later"
