"""Uploaded pictures and clips, opened in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import plain
from vitviz.images.isolated_pictures import LIMITS, OpenPicture, UnopenedPicture, unopened_picture
from vitviz.system.strangers import SHORT_SECONDS
from vitviz.ui.holdings import Bound, Holdings
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ProgressReport, Report, no_report
from vitviz.ui.server.line import Line, Once, current_visitor
from vitviz.video.facts import DEFAULT_LIMITS, ClipFacts, ClipLimits
from vitviz.video.isolated_clips import open_video, unopened_frame
from vitviz.worker import Worker

Result = TypeVar("Result")

# The frames after which a request that counts those of a clip may give up.
COUNT_BATCH = 64


class UploadedPictures:
    """Opens uploads.

    Args:
        worker: decodes them.
        short, long: where pictures wait, and where slow ones and clips do.
        memory: the bound of what is remembered.
        clip_limits: of clips.
    """

    def __init__(
        self, worker: Worker, short: Line, long: Line, memory: Bound, clip_limits: ClipLimits = DEFAULT_LIMITS
    ) -> None:
        self.worker, self.clip_limits = worker, clip_limits
        self._clips = Holdings[ClipFacts](memory, "lengths of clips")
        self._counting = Once()
        self._short, self._long = short, long

    async def opened(
        self,
        upload: Upload,
        use: Callable[[OpenPicture], Result],
        report: Report = no_report,
        then: Callable[[Result, Report], Any] = lambda result, _: result,
    ) -> Any:
        """What a function makes of an open picture, and what another makes of that in the same turn.

        Args:
            upload: the file.
            use: the function.
            report: receives how many pictures come first, and the progress.
            then: the other, when the picture is closed; by default, nothing is made of it.

        Raises:
            ImageError: as :func:`vitviz.open_image`, or the file is no longer kept.
        """
        line = self._short if upload.frame is None else self._long
        with _expiry_explained(upload):
            try:
                return await line.run(lambda report: then(self._use(upload, use, line), report), report)
            except ImageError as error:
                if line is self._long or not error.is_over_limit:
                    raise
                return await self._long.run(lambda report: then(self._use(upload, use, self._long), report), report)

    async def clip(self, upload: Upload, report: Report = no_report) -> ClipFacts:
        """The facts of a clip, whose frames are counted by decoding all of them once.

        Args:
            upload, report: as :meth:`opened` takes them.

        Raises:
            ImageError: as :func:`vitviz.video.clips.open_video`, or the file is no longer kept.
            ConfigError: the extra is not installed.
        """
        with _expiry_explained(upload):
            async with self._counting(upload.path):
                facts = self._clips.get(upload.path)
                if facts is None or not upload.path.is_file():
                    facts = await self._long.run(partial(self._count, upload), report)
                    self._clips.put(upload.path, facts, current_visitor())
        return facts

    def _count(self, upload: Upload, report: Report) -> ClipFacts:
        with open_video(self.worker, *upload[:2], self.clip_limits) as clip:
            frames = 0
            while skipped := clip.skip(COUNT_BATCH):
                frames += skipped
                report(ProgressReport("Reading the clip"))
            return replace(clip.facts, frames=frames, is_cut=clip.is_cut)

    def _use(self, upload: Upload, use: Callable[[OpenPicture], Result], line: Line) -> Result:
        (path, name), seconds = upload[:2], SHORT_SECONDS if line is self._short else LIMITS.cpu_seconds
        opened: AbstractContextManager[UnopenedPicture] = (
            unopened_picture(self.worker, path, name, **upload.reading, cpu_seconds=seconds)
            if upload.frame is None
            else unopened_frame(self.worker, path, name, upload.frame, self.clip_limits, upload.color_profile)
        )
        with opened as unopened:
            return use(unopened.decode())


@contextmanager
def _expiry_explained(upload: Upload) -> Iterator[None]:
    try:
        yield
    except ImageError:
        if upload.path.exists():
            raise
        raise ImageError(f"{plain(upload.name)}: no longer kept on this server; drop the picture here again") from None
