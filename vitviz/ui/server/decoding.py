"""Pictures that visitors uploaded: opened one at a time in a process of its own, or refused for a while and deleted."""

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
from vitviz.errors.messages import plain as legible
from vitviz.images.clip_facts import NO_LIMITS, ClipFacts, ClipLimits
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import PreparedImage, Preprocessing
from vitviz.isolation import BACKGROUND_NICENESS, OpenPicture, Worker
from vitviz.isolation.opening import UnopenedPicture
from vitviz.ui.files import as_png, forget
from vitviz.ui.pictures import Upload
from vitviz.ui.server.fair_lock import FairLock
from vitviz.weights import resources

# Pictures of more pixels are decoded one after the other, behind a lock of their own.
LARGE_PIXELS = 16_000_000
# Of files that are no pictures: what is remembered, how long they are kept, and how many at once.
MAX_REFUSED, REFUSED_SECONDS, MAX_LEAVING = 1000, 30.0, 100
# Clips whose frames are counted, and after how many frames whoever waits may leave.
MAX_CLIPS, COUNTED_AT_ONCE = 256, 64


@dataclass(frozen=True, eq=False)
class OwnPicture:
    """One of the examples, which are no visitor's: what :class:`vitviz.isolation.OpenPicture` is of all others."""

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
        self, preprocessing: Preprocessing, patch_height: int, patch_width: int, fit: str | None, longest_side: int
    ) -> PreparedImage:
        return preprocessing.prepare(self.image, patch_height, patch_width, fit).resized(longest_side)

    def png(self) -> bytes:
        return as_png(self.image)


class UploadedPictures:
    """Opens what visitors uploaded.

    Args:
        worker: that decodes it.
        clip_limits: what a clip may have.
    """

    def __init__(self, worker: Worker, clip_limits: ClipLimits = NO_LIMITS) -> None:
        self.worker, self.clip_limits = worker, clip_limits
        # What was found of clips, by their files.
        self._clips: OrderedDict[Path, ClipFacts] = OrderedDict()
        # What was said of files that are not kept.
        self._refused: dict[Upload, str] = {}
        self._leaving: set[Path] = set()
        self._lock = threading.Lock()
        # Decoding one large picture may take half a gigabyte and seconds, for which small ones do not wait.
        self._reading, self._small, self._large = FairLock(), FairLock(), FairLock()

    @contextmanager
    def opened(
        self, upload: Upload, waiting: Callable[[int], None] | None = None
    ) -> Iterator[OpenPicture | OwnPicture]:
        """A picture, as long as the context lasts; a file that is none is kept for :data:`REFUSED_SECONDS` only.

        Args:
            upload: the file.
            waiting: as :meth:`vitviz.ui.server.fair_lock.FairLock.turn` takes it.

        Raises:
            ImageError: as :func:`vitviz.open_image`, or the file is not kept any more.
        """
        with ExitStack() as stack:
            try:
                picture = self._open(upload, stack, waiting)
            except ImageError as error:
                raise ImageError(self._refusal(upload, error)) from None
            yield picture

    def clip(self, upload: Upload, waiting: Callable[[int], None] | None = None) -> ClipFacts:
        """What is known of a clip, all of whose frames were decoded once, and so counted.

        Args:
            upload, waiting: as :meth:`opened` takes them.

        Raises:
            ImageError: as :func:`vitviz.images.clips.open_clip`, or the file is not kept any more.
            ConfigError: the extra is not installed.
        """
        with self._lock:
            known = self._clips.get(upload.path)
        if known is not None and upload.path.is_file():
            return known
        try:
            with self._large.turn(waiting), isolation.open_clip(self.worker, *upload[:2], self.clip_limits) as clip:
                found = clip.facts
                frames = 0
                while skipped := clip.skip(COUNTED_AT_ONCE):
                    frames += skipped
                    if waiting is not None:
                        waiting(0)
        except ImageError as error:
            raise ImageError(self._refusal(upload, error)) from None
        with self._lock:
            found = self._clips[upload.path] = replace(found, frames=frames)
            if len(self._clips) > MAX_CLIPS:
                self._clips.popitem(last=False)
        return found

    def _open(
        self, upload: Upload, stack: ExitStack, waiting: Callable[[int], None] | None
    ) -> OpenPicture | OwnPicture:
        if upload.path.parent == resources("assets"):
            return OwnPicture(open_image(upload.path, upload.name))
        with self._reading.turn(waiting):
            unopened = stack.enter_context(self._unopened(upload))
        is_large = unopened.pixels > LARGE_PIXELS
        stack.enter_context((self._large if is_large else self._small).turn(waiting))
        return unopened.decode(BACKGROUND_NICENESS if is_large else 0)

    def _unopened(self, upload: Upload) -> AbstractContextManager[UnopenedPicture]:
        if upload.frame is None:
            return isolation.unopened_picture(self.worker, upload.path, upload.name)
        return isolation.unopened_frame(self.worker, upload.path, upload.name, upload.frame, self.clip_limits)

    def _refusal(self, upload: Upload, error: ImageError) -> str:
        # A page tells of one file more than once.
        with self._lock:
            if upload.path.exists():
                self._refused[upload] = str(error)
                self._forget_soon(upload.path)
            if len(self._refused) > MAX_REFUSED:
                self._refused.pop(next(iter(self._refused)))
            gone = f"{legible(upload.name)}: no longer kept on this server; drop the picture here again"
            return str(error) if upload.path.exists() else self._refused.get(upload, gone)

    def _forget_soon(self, path: Path) -> None:
        """Not at once: the page is about to show it, or to tell of it once more. To be called with the lock."""
        if path in self._leaving:
            return
        if len(self._leaving) >= MAX_LEAVING:
            return forget(path)
        self._leaving.add(path)
        timer = threading.Timer(REFUSED_SECONDS, self._forget, [path])
        timer.daemon = True
        timer.start()

    def _forget(self, path: Path) -> None:
        forget(path)
        with self._lock:
            self._leaving.discard(path)
