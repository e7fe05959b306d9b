"""Checkpoints of the Hugging Face hub, in the cache of its own client, ``huggingface_hub``.

The client's environment variables apply: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and others. It is
imported on first use, since importing vitviz does not need it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import legible, quote
from vitviz.progress import DownloadProgress
from vitviz.weights.formats.names import INDEX_SUFFIX, choose_weights, weight_files

JSON_FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
TOKENIZER_FILES = (
    *("special_tokens_map.json", "added_tokens.json", "tokenizer_config.json", "tokenizer.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "spiece.model"),
)
Report = Callable[[DownloadProgress], None]


def download(repository: str, revision: str | None = None, report: Report | None = None) -> Path:
    """Download one set of weights, and the files that are read beside it, unless they are in the cache.

    Where the hub cannot be asked, a set of weights in the cache is used.

    Args:
        repository: "owner/name".
        revision: a branch, a tag or a commit; None for the main branch.
        report: receives the bytes that have arrived, in the client's threads and in place of its bars; never if there
            is nothing to download. Releases of the client before 1.2 count no bytes.

    Returns:
        The folder of the snapshot.

    Raises:
        CheckpointError: there is no such repository or revision, it may not be read, it does not hold exactly one set
            of weights, or it cannot be downloaded.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RevisionNotFoundError

    with _hub_errors(repository, revision):
        cached = _cached_snapshot(repository, revision)
        try:
            info = HfApi(library_name="vitviz").model_info(repository, revision=revision, files_metadata=True)
        except Exception as error:
            if cached is None or isinstance(error, RevisionNotFoundError):
                raise
            return cached
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        names = _files_to_read(repository, sizes)
        if cached is not None and cached.name == info.sha and all((cached / name).exists() for name in names):
            return cached
        options: dict[str, Any] = {"allow_patterns": names, "library_name": "vitviz"}
        if report is not None:
            options["tqdm_class"] = _reporting_bar(repository, sum(sizes[name] for name in names), report)
        return Path(snapshot_download(repository, revision=revision, **options))


def is_cached(repository: str, revision: str | None = None) -> bool:
    """Whether the cache has weights of a repository, so that no network is needed."""
    return _cached_snapshot(repository, revision) is not None


def _cached_snapshot(repository: str, revision: str | None) -> Path | None:
    """The folder of a revision in the cache; None if it has no weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # Without patterns, the client takes files that vitviz does not read for missing ones.
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True, allow_patterns=[]))
    except LocalEntryNotFoundError:
        return None
    return folder if weight_files([file.name for file in folder.iterdir() if file.exists()]) else None


def _files_to_read(repository: str, paths: Collection[str]) -> list[str]:
    """The weights, in one format, and the files beside them."""
    names = [path for path in paths if "/" not in path]
    weights = choose_weights(repository, names)
    patterns = [weights, *JSON_FILES, *TOKENIZER_FILES]
    if weights.endswith(INDEX_SUFFIX):
        stem, _, suffix = weights.removesuffix(INDEX_SUFFIX).rpartition(".")
        patterns.append(f"{stem}-*.{suffix}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _reporting_bar(repository: str, total: int, report: Report) -> type:
    """A class of bars that are not drawn, and report the most bytes of any."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    most = 0
    report(DownloadProgress(repository, most, total))

    class Bar(tqdm):
        def __init__(self, *arguments: object, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})
            self.counts_bytes = options.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            nonlocal most
            self.n += n or 0
            if self.counts_bytes and self.n > most:
                most = int(self.n)
                report(DownloadProgress(repository, min(most, total), total))

    return Bar


@contextmanager
def _hub_errors(repository: str, revision: str | None) -> Iterator[None]:
    """Turn an error of the client into a :class:`CheckpointError` that says what to do."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    advice: dict[type[Exception], str] = {
        errors.GatedRepoError: f"gated: accept its terms at https://huggingface.co/{repository}, and set HF_TOKEN to a "
        "token of yours",
        errors.RepositoryNotFoundError: f"no such repository at {hub}, or a private one; correct the name, expected "
        "owner/name, or set HF_TOKEN to a token for it",
        errors.RevisionNotFoundError: f"no revision {quote(revision or 'main')}; expected a branch, a tag or a commit",
        errors.HFValidationError: "not a repository of the Hugging Face hub; expected owner/name",
    }
    try:
        yield
    # Errors of HTTP are those of httpx, or of requests in releases before 1.0.
    except (errors.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
        sentence = next((text for kind, text in advice.items() if isinstance(error, kind)), None)
        # Without folders of this machine, since visitors of an app read it too.
        reason = textwrap.shorten(getattr(error, "strerror", None) or str(error) or type(error).__name__, 200)
        default = f"not in the cache (HF_HUB_CACHE), and cannot be downloaded from {hub} ({reason}); where there is a "
        default += f"network, `vitviz inspect hf:{repository:.200}` downloads it"
        raise CheckpointError(f"{legible(repository)}: {sentence or default}") from None
