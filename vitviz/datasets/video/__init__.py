"""A clip in, a video of its maps out: frame by frame, on one scale. Needs the extra ``vitviz[video]``."""

from vitviz.datasets.video.render import VideoSummary, render_video
from vitviz.datasets.video.request import VideoRequest

__all__ = ["VideoRequest", "VideoSummary", "render_video"]
