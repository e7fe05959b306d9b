"""A video of the maps of a clip's frames, on one scale. Needs the extra ``vitviz[video]``."""

from vitviz.datasets.video.render import VideoSummary, render_video
from vitviz.datasets.video.request import VideoRequest

__all__ = ["VideoRequest", "VideoSummary", "render_video"]
