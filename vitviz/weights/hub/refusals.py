"""What went wrong at the Hugging Face hub, and what to do about it, in one sentence."""

from __future__ import annotations

import errno
import re
import textwrap
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from vitviz.errors.messages import quote

# The hub's header of a refusal by 429: what remains, and the seconds until there is more.
RATE_LIMIT = re.compile(r"r=0;\s*t=(\d+)")


def explain(error: Exception, repository: str, revision: str) -> str:
    """The sentence, without local folders, since visitors of an app read it too."""
    hub = constants.ENDPOINT
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    sentences: dict[type[Exception], str] = {
        GatedRepoError: f"gated: accept its terms at https://huggingface.co/{repository} and set HF_TOKEN to a token "
        "of yours",
        RepositoryNotFoundError: f"no such repository at {hub}, or a private one; correct the name, or set HF_TOKEN to "
        "a token for it",
        RevisionNotFoundError: f"no revision {quote(revision)}; expected a branch, a tag or a commit of it",
        EntryNotFoundError: f"a file that {hub} lists is missing there; try another revision",
        UnicodeError: "HF_TOKEN has characters that no token has; correct it, or unset it",
    }
    for kind, sentence in sentences.items():
        if isinstance(error, kind):
            return sentence
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status in (401, 403):
        return f"{hub} refuses access ({status}); set HF_TOKEN to a valid token, or unset one that is not"
    if status == 429:
        limit, wait = RATE_LIMIT.search(response.headers.get("RateLimit", "")), response.headers.get("Retry-After", "")
        seconds = wait if wait.isdecimal() else limit and limit[1]
        when = f"in {seconds} s" if seconds else "later"
        return f"{hub} was asked too often ({status}); try again {when}, or set HF_TOKEN, which allows more"
    if status is not None:
        return f"{hub} answers with an error ({status}); try again later"
    if type(error) is OSError and error.errno is None:
        # huggingface_hub's error for a file of another size than the hub states.
        return f"{hub} sent something else than the file; log in to the network where it asks for that, or try again"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of the cache (HF_HUB_CACHE) is full; make room, or set HF_HOME to another folder"
    if isinstance(error, OSError) and error.errno is not None:
        return f"the cache (HF_HUB_CACHE) cannot be used ({error.strerror}); set HF_HOME to a folder to write to"
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    reason = textwrap.shorten(str(cause) or type(cause).__name__, 100)
    return (
        f"{hub} cannot be reached ({reason}), and it is not completely in the cache (HF_HUB_CACHE); check the "
        "network: without one, or with HF_HUB_OFFLINE=1, only what is in the cache can be used"
    )
