"""Files of one commit on their way from the Hugging Face hub into its cache.

huggingface_hub says where they are, and they are received here: the hub's own client begins anew after a break, waits
for minutes, and puts into the cache what nobody has verified.
What is stored in Xet comes by HTTP as everything does, because only that resumes where it broke off.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from huggingface_hub import constants, get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import WeakFileLock, build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.hub import client as hub_client
from vitviz.weights.hub.client import HTTPError, Retries, patiently, storage_of
from vitviz.weights.hub.names import Meter

# The git hash of a small file, the SHA-256 of a large one.
ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class _File:
    """What the hub states about a file."""

    name: str
    etag: str
    size: int | None

    def is_intact(self, path: Path) -> bool:
        size = path.stat().st_size
        if self.size not in (None, size):
            return False
        if len(self.etag) == 64:
            digest = hashlib.sha256()
        else:
            digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        return digest.hexdigest() == self.etag


class Snapshot:
    """The files of one commit in the cache.

    Attributes:
        folder: where they are linked by their names.
    """

    def __init__(self, repository: str, commit: str) -> None:
        self.repository, self.commit = repository, commit
        self._storage = storage_of(repository)
        self.folder = self._storage / "snapshots" / commit

    def bring(self, names: list[str], meter: Meter | None = None) -> None:
        """Have these files in the snapshot, in this order."""
        files = [self._describe(name) for name in names if not (self.folder / name).is_file()]
        if not files:
            return
        meter = meter or Meter(self.repository, None)
        meter.bytes = {name: _size(self.folder / name) for name in names}
        meter.bytes |= {file.name: _size(self._partial(file)) for file in files}
        sizes = {file.name: file.size for file in files}
        if None not in sizes.values():
            meter.total = sum(sizes.get(name) or count for name, count in meter.bytes.items())
            self._check_space(meter.total - sum(meter.bytes.values()))
        meter.say()
        for file in files:
            self._bring(file, meter)
            meter.at(file.name, _size(self.folder / file.name))
        meter.say()

    def remember(self, revision: str) -> None:
        """Note which commit a branch or tag is, for a time without a network."""
        path = self._storage / "refs" / revision
        # A cache that is complete need not be one that can be written.
        with suppress(OSError):
            if revision != self.commit and not (path.is_file() and path.read_text() == self.commit):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
                partial.write_text(self.commit)
                os.replace(partial, path)

    def _describe(self, name: str) -> _File:
        url, timeout = hf_hub_url(self.repository, name, revision=self.commit), constants.HF_HUB_ETAG_TIMEOUT
        found = patiently(lambda: get_hf_file_metadata(url, timeout=timeout, library_name="vitviz"))
        if not ETAG.fullmatch(found.etag or ""):
            raise CheckpointError(
                f"{self.repository}: {constants.ENDPOINT} states no hash to verify {name} by; correct HF_ENDPOINT"
            )
        return _File(name, found.etag or "", found.size)

    def _partial(self, file: _File) -> Path:
        # Not the name that the hub's client gives: older ones take what is there for a beginning of theirs.
        return self._storage / "blobs" / f"{file.etag}.vitviz.incomplete"

    def _check_space(self, needed: int) -> None:
        folder = next(path for path in (self._storage, *self._storage.parents) if path.exists())
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise CheckpointError(
                f"{self.repository}: {_readable(needed)} to download, but the disk of the cache "
                f"(HF_HUB_CACHE) has {_readable(free)} left; make room, or set HF_HOME to another folder"
            )

    def _bring(self, file: _File, meter: Meter) -> None:
        pointer, blob, partial = self.folder / file.name, self._storage / "blobs" / file.etag, self._partial(file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with self._alone(file, meter):
            if pointer.is_file():
                return
            if blob.is_file() and not file.is_intact(blob):
                _remove(blob)
            if not blob.is_file():
                self._receive(file, partial, meter)
                if not file.is_intact(partial):
                    partial.unlink()
                    raise CheckpointError(
                        f"{self.repository}: {file.name} arrived damaged, not of the size and hash that "
                        f"{constants.ENDPOINT} states, and was deleted; download it again"
                    )
                os.replace(partial, blob)
            _link(blob, pointer)

    @contextmanager
    def _alone(self, file: _File, meter: Meter) -> Iterator[None]:
        """Nobody else receives the file at the same time; as long as somebody does, how far that is."""
        lock = self._storage.parent / ".locks" / self._storage.name / f"{file.etag}.vitviz.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        seen, since = 0, time.monotonic()
        with ExitStack() as stack:
            while True:
                with suppress(TimeoutError):
                    stack.enter_context(WeakFileLock(lock, timeout=0.2))
                    break
                there = _size(self._partial(file))
                if there != seen:
                    seen, since = there, time.monotonic()
                    meter.at(file.name, there)
                if time.monotonic() - since > 2 * hub_client.PATIENCE:
                    raise CheckpointError(
                        f"{self.repository}: another process keeps {file.name} to itself without receiving it; end it, "
                        f"or delete {lock.name} in the folder .locks of the cache (HF_HUB_CACHE)"
                    )
            yield

    def _receive(self, file: _File, partial: Path, meter: Meter) -> None:
        """What of a file is not there yet, over as many connections as it takes."""
        retries = Retries(hub_client.ATTEMPTS)
        with open(partial, "ab") as out:
            while file.size is None or out.tell() < file.size:
                start, failure = out.tell(), None
                try:
                    self._go_on(file, out, retries, meter)
                    if file.size is None:
                        return
                except HTTPError as error:
                    failure = error
                if (file.size is None or out.tell() < file.size) and not retries.again(failure, out.tell() - start):
                    if isinstance(failure, HfHubHTTPError):
                        raise failure
                    of = "" if file.size is None else f" of {_readable(file.size)}"
                    raise CheckpointError(
                        f"{self.repository}: the connection broke off again and again, at last at "
                        f"{_readable(out.tell())}{of} of {file.name}; download it again to go on from there"
                    )

    def _go_on(self, file: _File, out: IO[bytes], retries: Retries, meter: Meter) -> None:
        """As much as one connection brings."""
        url = hf_hub_url(self.repository, file.name, revision=self.commit)
        # What is compressed on its way has other ranges than the file.
        headers = build_hf_headers(library_name="vitviz", headers={"Accept-Encoding": "identity"})
        # Of a size that nobody knows, a beginning may be everything.
        if out.tell() and file.size is not None:
            headers["Range"] = f"bytes={out.tell()}-"
        with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as answer:
            hf_raise_for_status(answer)
            start = out.tell() if answer.status_code == 206 else 0
            comes = None if "Content-Encoding" in answer.headers else answer.headers.get("Content-Length")
            if file.size is not None and comes not in (None, str(file.size - start)):
                raise CheckpointError(
                    f"{self.repository}: {constants.ENDPOINT} sends something else than {file.name}, of another size; "
                    "log in to the network where it asks for that, or download it again later"
                )
            if start != out.tell():
                out.seek(start)
                out.truncate()
            for chunk in answer.iter_bytes():
                out.write(chunk)
                # What has come is there for the next, however this process ends.
                out.flush()
                retries.heard()
                meter.at(file.name, out.tell())
                if file.size is not None and out.tell() > file.size:
                    return


def _link(blob: Path, pointer: Path) -> None:
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    if not constants.HF_HUB_DISABLE_SYMLINKS:
        with suppress(OSError):
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
            return
    # As the hub's client does where there are no links.
    os.replace(blob, pointer)


def _remove(path: Path) -> None:
    """Delete a file and every link on the way to it."""
    while path.is_symlink():
        link, path = path, path.parent / path.readlink()
        link.unlink()
    path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _readable(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
