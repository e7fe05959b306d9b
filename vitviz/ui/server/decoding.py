"""Uploaded pictures and clips: opened in a worker process, or refused and deleted after a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from PIL import Image

from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import plain
from vitviz.images.clip_facts import DEFAULT_LIMITS, ClipFacts, ClipLimits
from vitviz.images.isolated_clips import open_video, unopened_frame
from vitviz.images.isolated_pictures import BACKGROUND_NICENESS, OpenPicture, UnopenedPicture, unopened_picture
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Fit, PreparedImage, Preprocessing
from vitviz.ui.holdings import Holdings
from vitviz.ui.image_bytes import as_png
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ProgressReport, Report, no_report
from vitviz.ui.server.files import Folder
from vitviz.ui.server.line import Line, Once, current_visitor
from vitviz.weights import resources
from vitviz.worker import Worker

Result = TypeVar("Result")

# Larger pictures have a line of their own.
LARGE_PIXELS = 16_000_000
# Refused files: remembered messages, seconds until the file is deleted, and files that wait for it.
MAX_REFUSED, REFUSED_SECONDS, MAX_DELETIONS = 1000, 30.0, 100
# Remembered clips, and the frames after which a request that counts them may give up.
MAX_CLIPS, COUNT_BATCH = 256, 64


@dataclass(frozen=True, eq=False)
class ExamplePicture:
    """An open example, with the interface of :class:`~vitviz.images.isolated_pictures.OpenPicture`."""

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

    def model_input(
        self, preprocessing: Preprocessing, patch_height: int, patch_width: int, fit: Fit | None, longest_side: int
    ) -> PreparedImage:
        return preprocessing.prepare(self.image, patch_height, patch_width, fit).resized(longest_side)

    def png(self) -> bytes:
        return as_png(self.image)


class _LargePictureError(Exception):
    """A picture has too many pixels for the line of small ones."""


class UploadedPictures:
    """Opens uploads.

    Args:
        worker: decodes them.
        folder: of the uploads.
        clip_limits: of clips.
    """

    def __init__(self, worker: Worker, folder: Folder, clip_limits: ClipLimits = DEFAULT_LIMITS) -> None:
        self.worker, self._folder, self.clip_limits = worker, folder, clip_limits
        self._clips: Holdings[ClipFacts] = Holdings(MAX_CLIPS)
        self._counting: Once[ClipFacts] = Once()
        # The messages about refused files, which outlive these.
        self._refused: Holdings[str] = Holdings(MAX_REFUSED)
        # Refused files with a timer that deletes them.
        self._deletions: set[Path] = set()
        self._lock = threading.Lock()
        # A large picture may take half a gigabyte, a clip a minute; others wait for neither.
        self._small_line, self._large_line, self._clip_line = Line(places=2), Line(), Line(places=2, begun=3)

    async def opened(
        self, upload: Upload, use: Callable[[OpenPicture | ExamplePicture], Result], report: Report = no_report
    ) -> Result:
        """What a function makes of an open picture; a refused file is deleted after :data:`REFUSED_SECONDS`.

        Args:
            upload: the file.
            use: the function.
            report: receives how many pictures come first.

        Raises:
            ImageError: as :func:`vitviz.open_image`, or the file is no longer kept.
        """
        line = self._small_line if upload.frame is None else self._clip_line
        try:
            try:
                return await line.run(lambda _: self._use(upload, use, line), report)
            except _LargePictureError:
                return await self._large_line.run(lambda _: self._use(upload, use, self._large_line), report)
        except ImageError as error:
            raise ImageError(self._refusal(upload, error)) from None

    async def clip(self, upload: Upload, report: Report = no_report) -> ClipFacts:
        """The facts of a clip, whose frames are counted by decoding all of them once.

        Args:
            upload, report: as :meth:`opened` takes them.

        Raises:
            ImageError: as :func:`vitviz.images.clips.open_video`, or the file is no longer kept.
            ConfigError: the extra is not installed.
        """
        facts = self._clips.get(upload.path)
        if facts is not None and upload.path.is_file():
            return facts

        async def count(report: Report) -> ClipFacts:
            return await self._clip_line.run(partial(self._count, upload), report)

        try:
            facts = await self._counting.get(upload.path, count, report)
        except ImageError as error:
            raise ImageError(self._refusal(upload, error)) from None
        self._clips.put(upload.path, facts, current_visitor())
        return facts

    def _count(self, upload: Upload, report: Report) -> ClipFacts:
        with open_video(self.worker, *upload[:2], self.clip_limits) as clip:
            frames = 0
            while skipped := clip.skip(COUNT_BATCH):
                frames += skipped
                report(ProgressReport("Reading the clip"))
            return replace(clip.facts, frames=frames)

    def _use(self, upload: Upload, use: Callable[[OpenPicture | ExamplePicture], Result], line: Line) -> Result:
        if upload.path.parent == resources("assets"):
            return use(ExamplePicture(open_image(upload.path, upload.name, **upload.reading)))
        with self._unopened(upload) as unopened:
            is_large = unopened.pixels > LARGE_PIXELS
            if is_large and line is self._small_line:
                raise _LargePictureError
            return use(unopened.decode(BACKGROUND_NICENESS if is_large else 0))

    def _unopened(self, upload: Upload) -> AbstractContextManager[UnopenedPicture]:
        if upload.frame is None:
            return unopened_picture(self.worker, upload.path, upload.name, **upload.reading)
        return unopened_frame(self.worker, upload.path, upload.name, upload.frame, self.clip_limits)

    def _refusal(self, upload: Upload, error: ImageError) -> str:
        # A page may send the same file more than once.
        with self._lock:
            if upload.path.exists():
                self._refused.put(upload, str(error), current_visitor())
                # Another value of white may be right.
                if upload.white is None:
                    self._delete_soon(upload.path)
            expired = f"{plain(upload.name)}: no longer kept on this server; drop the picture here again"
            return str(error) if upload.path.exists() else self._refused.get(upload) or expired

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
