"""A clip of a page as a video of the map that the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.datasets.request import MapRequest
from vitviz.errors.kinds import ImageError, MethodError
from vitviz.ui.normalize import parameters_of
from vitviz.ui.progress_reports import ProgressReport, Report
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import PageState
from vitviz.video import isolated_clips
from vitviz.video.render import COMPUTING, VideoRequest, VideoSummary, render_video

# A larger batch makes others wait longer; the longer side in pixels is less than that of the command's videos.
BATCH_FRAMES, MAX_SIDE = 4, 960
PHASE_TITLES = {COMPUTING: "Maps of all frames"}
DRAWING_TITLE = "Drawing all frames"


async def film(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """A video file of one view's map, in every frame of its clip.

    Raises:
        ExpiredError: the analysis of the view is no longer cached.
        ImageError: the view shows no clip, or the clip is no longer kept.
        MethodError: the map is about something else than a class.
        LimitError: there is not enough memory.
    """
    state, index = PageState.of_request(request)
    view = state.views[index]
    uid = request.get("uid")
    analysis = service.cached(uid)
    origin, method = service.origins[analysis], METHODS[view.method]
    if origin.upload.frame is None:
        raise ImageError(f"{origin.upload.name}: a picture; expected a clip to make a video of")
    max_bytes = service.server_settings.analysis_bytes
    parameters = parameters_of(method, view.parameters, analysis, max_bytes=max_bytes)
    if not isinstance(parameters.get("target"), int | str | None):
        raise MethodError(f"{method.title}: a video is about one class, or about each frame's most probable one")
    video = VideoRequest(
        analysis.model,
        MapRequest(method.name, {name: value for name, value in parameters.items() if value is not None}),
        origin.fit,
        origin.pixels,
        state.style,
        longest_side=MAX_SIDE,
    )
    # It may be dropped while this waits.
    del analysis

    def render(_: Analysis, report: Report) -> tuple[str, VideoSummary]:
        report(ProgressReport(PHASE_TITLES[COMPUTING]))
        limits = service.server_settings.clip_limits
        with TemporaryDirectory(prefix="vitviz-film-") as temporary:
            output = Path(temporary) / "maps.mp4"
            summary = render_video(
                video,
                origin.upload.path,
                output,
                batch_size=BATCH_FRAMES,
                max_bytes=max_bytes,
                open_video=lambda path, color_profile: isolated_clips.open_video(
                    service.worker, path, origin.upload.name, limits, color_profile
                ),
                report=lambda phase, progress: report(
                    ProgressReport(PHASE_TITLES.get(phase, DRAWING_TITLE), progress.done, max(progress.total, 1))
                ),
            )
            return service.folder.publish(output.read_bytes(), "maps.mp4"), summary

    address, summary = await service.run(service.long, uid, render, report)
    return {"address": address, "caption": summary.caption, "sound": summary.sound}
