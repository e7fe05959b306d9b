"""Uploaded pictures and clips: opened in a worker process, or refused and deleted after a while."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from vitviz import isolation
from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import plain
from vitviz.images.clip_facts import DEFAULT_LIMITS, ClipFacts, ClipLimits
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Fit, PreparedImage, Preprocessing
from vitviz.isolation import BACKGROUND_NICENESS, OpenPicture, Worker
from vitviz.isolation.opening import UnopenedPicture
from vitviz.ui.image_bytes import as_png
from vitviz.ui.pictures import Upload
from vitviz.ui.server.fair_lock import FairLock
from vitviz.ui.server.files import Folder
from vitviz.weights import resources

# Larger pictures have a lock of their own.
LARGE_PIXELS = 16_000_000
# Refused files: remembered messages, seconds until the file is deleted, and files that wait for it.
MAX_REFUSED, REFUSED_SECONDS, MAX_DELETIONS = 1000, 30.0, 100
# Remembered clips, and the frames after which a request that counts them may give up.
MAX_CLIPS, COUNT_BATCH = 256, 64


@dataclass(frozen=True, eq=False)
class ExamplePicture:
    """An open example, with the interface of :class:`vitviz.isolation.OpenPicture`; it needs no worker."""

    image: Image.Image

    @property
    def width(self) -> int:
        return self.image.width

    @property
    def height(self) -> int:
        return self.image.height

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size

    def prepare(
        self, preprocessing: Preprocessing, patch_height: int, patch_width: int, fit: Fit | None, longest_side: int
    ) -> PreparedImage:
        return preprocessing.prepare(self.image, patch_height, patch_width, fit).resized(longest_side)

    def png(self) -> bytes:
        return as_png(self.image)


class UploadedPictures:
    """Opens uploads.

    Args:
        worker: decodes them.
        folder: of the uploads.
        clip_limits: of clips.
    """

    def __init__(self, worker: Worker, folder: Folder, clip_limits: ClipLimits = DEFAULT_LIMITS) -> None:
        self.worker, self._folder, self.clip_limits = worker, folder, clip_limits
        self._clips: OrderedDict[Path, ClipFacts] = OrderedDict()
        # The messages about refused files, which outlive these.
        self._refused: dict[Upload, str] = {}
        # Refused files with a timer that deletes them.
        self._deletions: set[Path] = set()
        self._lock = threading.Lock()
        # A large picture may take half a gigabyte and seconds; small ones do not wait for it.
        self._reading, self._small, self._large = FairLock(), FairLock(), FairLock()

    @contextmanager
    def opened(
        self, upload: Upload, waiting: Callable[[int], None] | None = None
    ) -> Iterator[OpenPicture | ExamplePicture]:
        """Open a picture for the time of the context; a refused file is deleted after :data:`REFUSED_SECONDS`.

        Args:
            upload: the file.
            waiting: as :meth:`vitviz.ui.server.fair_lock.FairLock.turn` takes it.

        Raises:
            ImageError: as :func:`vitviz.open_image`, or the file is no longer kept.
        """
        with ExitStack() as stack:
            try:
                picture = self._open(upload, stack, waiting)
            except ImageError as error:
                raise ImageError(self._refusal(upload, error)) from None
            yield picture

    def clip(self, upload: Upload, waiting: Callable[[int], None] | None = None) -> ClipFacts:
        """The facts of a clip, whose frames are counted by decoding all of them once.

        Args:
            upload, waiting: as :meth:`opened` takes them.

        Raises:
            ImageError: as :func:`vitviz.images.clips.open_video`, or the file is no longer kept.
            ConfigError: the extra is not installed.
        """
        with self._lock:
            facts = self._clips.get(upload.path)
        if facts is not None and upload.path.is_file():
            return facts
        try:
            with self._large.turn(waiting), isolation.open_video(self.worker, *upload[:2], self.clip_limits) as clip:
                facts = clip.facts
                frames = 0
                while skipped := clip.skip(COUNT_BATCH):
                    frames += skipped
                    if waiting is not None:
                        waiting(0)
        except ImageError as error:
            raise ImageError(self._refusal(upload, error)) from None
        with self._lock:
            facts = self._clips[upload.path] = replace(facts, frames=frames)
            if len(self._clips) > MAX_CLIPS:
                self._clips.popitem(last=False)
        return facts

    def _open(
        self, upload: Upload, stack: ExitStack, waiting: Callable[[int], None] | None
    ) -> OpenPicture | ExamplePicture:
        if upload.path.parent == resources("assets"):
            return ExamplePicture(open_image(upload.path, upload.name, **upload.reading))
        with self._reading.turn(waiting):
            unopened = stack.enter_context(self._unopened(upload))
        is_large = unopened.pixels > LARGE_PIXELS
        stack.enter_context((self._large if is_large else self._small).turn(waiting))
        return unopened.decode(BACKGROUND_NICENESS if is_large else 0)

    def _unopened(self, upload: Upload) -> AbstractContextManager[UnopenedPicture]:
        if upload.frame is None:
            return isolation.unopened_picture(self.worker, upload.path, upload.name, **upload.reading)
        return isolation.unopened_frame(self.worker, upload.path, upload.name, upload.frame, self.clip_limits)

    def _refusal(self, upload: Upload, error: ImageError) -> str:
        # A page may send the same file more than once.
        with self._lock:
            if upload.path.exists():
                self._refused[upload] = str(error)
                # Another value of white may be right.
                if upload.white is None:
                    self._delete_soon(upload.path)
            if len(self._refused) > MAX_REFUSED:
                self._refused.pop(next(iter(self._refused)))
            expired = f"{plain(upload.name)}: no longer kept on this server; drop the picture here again"
            return str(error) if upload.path.exists() else self._refused.get(upload, expired)

    def _delete_soon(self, path: Path) -> None:
        """Delete a file later, since the page may show or send it once more. The caller holds the lock."""
        if path in self._deletions:
            return
        if len(self._deletions) >= MAX_DELETIONS:
            return self._folder.delete(path)
        self._deletions.add(path)
        timer = threading.Timer(REFUSED_SECONDS, self._delete, [path])
        timer.daemon = True
        timer.start()

    def _delete(self, path: Path) -> None:
        self._folder.delete(path)
        with self._lock:
            self._deletions.discard(path)
