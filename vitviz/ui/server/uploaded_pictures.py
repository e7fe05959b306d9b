"""Uploaded pictures and clips, opened in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import plain
from vitviz.images.isolated_pictures import LIMITS, SHORT_LIMITS, OpenPicture, open_picture
from vitviz.ui.holdings import Bound, Holdings
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ProgressReport, Report, no_report
from vitviz.ui.server.line import Line, Once, current_visitor
from vitviz.video.clip_facts import DEFAULT_LIMITS, ClipFacts, ClipLimits
from vitviz.video.isolated_clips import open_frame, open_video
from vitviz.worker import Limits, Worker

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
        use: Callable[[OpenPicture, Report], Result],
        report: Report = no_report,
    ) -> Result:
        """What a function makes of an open picture.

        Args:
            upload: the file.
            use: the function, which takes the report of its progress.
            report: receives how many pictures come first, and the progress.

        Raises:
            ImageError: as :func:`vitviz.open_image`, or the file is no longer kept.
        """

        def work(limits: Limits, report: Report) -> Result:
            _check_kept(upload)
            with (
                open_picture(self.worker, upload.path, upload.name, **upload.reading, limits=limits)
                if upload.frame is None
                else open_frame(
                    self.worker, upload.path, upload.name, upload.frame, self.clip_limits, upload.color_profile
                )
            ) as picture:
                return use(picture, report)

        if upload.frame is None:
            try:
                return await self._short.run(partial(work, SHORT_LIMITS), report)
            except ImageError as error:
                if not error.is_over_limit:
                    raise
        return await self._long.run(partial(work, LIMITS), report)

    async def clip(self, upload: Upload, report: Report = no_report) -> ClipFacts:
        """The facts of a clip, whose frames are counted by decoding all of them once.

        Args:
            upload, report: as :meth:`opened` takes them.

        Raises:
            ImageError: as :func:`vitviz.video.clips.open_video`, or the file is no longer kept.
            ConfigError: the extra is not installed.
        """
        async with self._counting(upload.path):
            facts = self._clips.get(upload.path)
            if facts is None or not upload.path.is_file():
                facts = await self._long.run(partial(self._count, upload), report)
                self._clips.put(upload.path, facts, current_visitor())
        return facts

    def _count(self, upload: Upload, report: Report) -> ClipFacts:
        _check_kept(upload)
        with open_video(self.worker, *upload[:2], self.clip_limits) as clip:
            frames = 0
            while skipped := clip.skip(COUNT_BATCH):
                frames += skipped
                report(ProgressReport("Reading the clip"))
            return replace(clip.facts, frames=frames, is_cut=clip.is_cut)


def _check_kept(upload: Upload) -> None:
    if not upload.path.exists():
        raise ImageError(f"{plain(upload.name)}: no longer kept on this server; drop the picture here again")
