"""A clip of a page as a video of the map that the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradio.utils import get_upload_folder

from vitviz import isolation
from vitviz.analysis.encoder import Encoder
from vitviz.attribution import METHODS
from vitviz.datasets.request import MapRequest
from vitviz.datasets.video.render import COMPUTING, render_video
from vitviz.datasets.video.request import VideoRequest
from vitviz.errors.kinds import ImageError, MethodError
from vitviz.progress import Progress
from vitviz.ui.arguments import number, parameters_of
from vitviz.ui.files import keep
from vitviz.ui.server.estimates import map_bytes
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import PageState
from vitviz.ui.steps import Report, Step

# More at once would make others wait for longer; of the longer side, videos of a page are smaller than the command's.
FRAMES_AT_ONCE, LONGEST_SIDE = 4, 960
PHASE_TITLES = {COMPUTING: "Maps of all frames"}
DRAWING_TITLE = "Drawing all frames"


class Films:
    """Answers the requests of pages for videos, one at a time of all pages.

    Args:
        service: the models and the clips.
    """

    def __init__(self, service: AnalysisService) -> None:
        self.service = service

    def film(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """The file of a video of one view's map, of every frame of its clip.

        Raises:
            ExpiredError: the analysis of the view is not kept.
            ImageError: it is of no clip, or the clip is not kept.
            MethodError: the map is about something else than a class.
            LimitError: there is no room for it.
        """
        state = PageState.from_json(request.get("state"))
        view = state.views[int(number("index", request.get("index"), 0, len(state.views) - 1, whole=True))]
        analysis = self.service.cached(request.get("uid"))
        origin, method = self.service.origins[analysis], METHODS[view.method]
        if origin.upload.frame is None:
            raise ImageError(f"{origin.upload.name}: a picture; expected a clip to make a video of")
        parameters = parameters_of(method, view.parameters, analysis.model, analysis.trace.layout)
        if not isinstance(parameters.get("target"), int | str | None):
            raise MethodError(f"{method.title}: a video is about one class, or about each frame's most probable one")
        asked = VideoRequest(
            analysis.model,
            MapRequest(method.name, {name: value for name, value in parameters.items() if value is not None}),
            origin.settings.fit,
            origin.resolution,
            state.style,
            longest_side=LONGEST_SIDE,
        )

        def opened(path: Path) -> Any:
            return isolation.open_clip(
                self.service.worker, path, origin.upload.name, self.service.server_settings.clip_limits
            )

        def done(phase: str, at: Progress) -> None:
            report(Step(PHASE_TITLES.get(phase, DRAWING_TITLE), at.done, max(at.total, 1)))

        width, height = origin.size
        # The frames that wait and those that are drawn, in their own size.
        geometry = analysis.prepared.geometry
        cost = Encoder(analysis.model).cost_at(geometry.input_height, geometry.input_width, FRAMES_AT_ONCE)
        needed = cost.nbytes + map_bytes(analysis, method.name)
        needed += 3 * width * height * 4 * FRAMES_AT_ONCE
        with (
            self.service.turn(self.service.films, needed, "this video", report),
            TemporaryDirectory(dir=_folder(), prefix="film-") as folder,
        ):
            report(Step(PHASE_TITLES[COMPUTING]))
            output = Path(folder) / "maps.mp4"
            summary = render_video(
                asked, origin.upload.path, output, batch_size=FRAMES_AT_ONCE, open_clip=opened, report=done
            )
            path = keep(output.read_bytes(), "maps.mp4", get_upload_folder())
        return {"path": path, "caption": summary.caption, "sound": summary.sound}


def _folder() -> str:
    folder = Path(get_upload_folder())
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
