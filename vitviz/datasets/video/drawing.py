"""A frame with its map, and below it the colour bar and the caption, which all frames have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np
from PIL import Image

from vitviz.analysis.encoder import Encoder
from vitviz.datasets.video.maps import ClipMaps
from vitviz.datasets.video.request import VideoRequest
from vitviz.images.geometry import Geometry
from vitviz.visualization.captioned import caption_lines, caption_strip
from vitviz.visualization.heatmaps import Heatmap, colour_table
from vitviz.visualization.scales import FittedScale, fit

# Smaller pictures are enlarged to this longer side, and a caption is at least so wide.
MIN_SHOWN = 320
# That are named of a clip whose frames have classes of their own.
MAX_CLASSES = 5


def clip_scale(request: VideoRequest, maps: ClipMaps) -> FittedScale:
    """The one scale of all frames: the style's, fitted to all of their maps together."""
    style = request.style
    assert not isinstance(style.scale, FittedScale)
    ends = {"low": style.low, "high": style.high}
    return fit(style.scale, [maps.values], percentiles=style.percentiles, signed=maps.signed, **ends)


class FramePainter:
    """Draws frames.

    Args:
        request: how.
        maps: as they are drawn, of all frames.
        encoder: that says where the model's input lies on a frame.
    """

    def __init__(self, request: VideoRequest, maps: ClipMaps, encoder: Encoder) -> None:
        self.request, self.maps, self.encoder = request, maps, encoder
        self.scale = clip_scale(request, maps)
        self.style = replace(request.style, scale=self.scale, low=None, high=None)
        self.beyond = self.scale.beyond(maps.values)
        query = request.map.parameters.get("query")
        self.mark = query if isinstance(query, tuple) else None
        self._geometry: Geometry | None = None
        self._strip = lru_cache(maxsize=16)(self._drawn_strip)

    def caption(self, description: str) -> str:
        """What stands below a frame whose map was made so."""
        return f"{description}. {self._drawn_how()}"

    def clip_caption(self) -> str:
        """What is said of the whole clip: as of frame 0, and where the frames differ, how."""
        descriptions, counts = self.maps.descriptions, Counter(self.maps.targets).most_common()
        if len(set(descriptions)) == 1:
            return self.caption(descriptions[0])
        if len(counts) == 1:
            return f"{descriptions[0]} (frame 0; what is said of the frames differs). {self._drawn_how()}"
        frames, others = len(self.maps), sum(count for _, count in counts[MAX_CLASSES:])
        classes = [f"{label} in {count:,}" for label, count in counts[:MAX_CLASSES]]
        classes += [f"{len(counts) - MAX_CLASSES:,} others in {others:,}"] * bool(others)
        about = f"Each is about its own most probable class: {', '.join(classes)} of {frames:,} frames."
        return f"{descriptions[0]} (frame 0). {about} {self._drawn_how()}"

    def _drawn_how(self) -> str:
        about = self.scale.caption(self.maps.values)
        seconds = self.request.smoothing_seconds
        within = ", within the frames of one class" if len(set(self.maps.targets)) > 1 else ""
        parts = [
            f"One scale for all {len(self.maps):,} frames{'' if about else ', linear'}.",
            about,
            f"Maps averaged over time by a Gaussian of {seconds:g} s{within}." if seconds else "",
        ]
        return " ".join(part for part in parts if part)

    def draw(self, frame: int, image: Image.Image) -> Image.Image:
        """A frame, RGB, of the same even width and height for all frames.

        Args:
            frame: its number, counted from 0.
            image: what it shows.
        """
        heatmap = Heatmap(self.maps.token_map(frame), image, self._place(image))
        side = self._side(image)
        overlay = (heatmap if side == max(image.size) else heatmap.resized(side)).overlay(self.style, self.mark)
        if not self.request.caption:
            return _pasted(overlay, *map(_even, overlay.size))
        width = _even(max(MIN_SHOWN, overlay.width))
        strip = self._strip(self.caption(self.maps.descriptions[frame]), width)
        drawn = _pasted(overlay, width, _even(overlay.height + strip.height))
        drawn.paste(strip, (0, overlay.height))
        return drawn

    def _side(self, image: Image.Image) -> int:
        longest = max(image.size)
        return min(max(longest, MIN_SHOWN), self.request.longest_side)

    def _place(self, image: Image.Image) -> Geometry:
        """Where the model's input lies; the same for all frames, which are of one size."""
        if self._geometry is None or (image.width, image.height) != (
            self._geometry.image_width,
            self._geometry.image_height,
        ):
            self._geometry = self.encoder.prepare(image).geometry
        return self._geometry

    def _drawn_strip(self, caption: str, width: int) -> Image.Image:
        lines = caption_lines(caption, width)
        most = self._most_lines(width)
        colours: np.ndarray = colour_table(self.style.colormap)
        # All strips are as high as the one with the longest caption.
        return caption_strip(width, colours, self.scale.ends, self.beyond, [*lines, *[""] * (most - len(lines))])

    def _most_lines(self, width: int) -> int:
        return max(len(caption_lines(self.caption(text), width)) for text in set(self.maps.descriptions))


def _even(side: int) -> int:
    """The codec halves the resolution of colours."""
    return side + side % 2


def _pasted(image: Image.Image, width: int, height: int) -> Image.Image:
    if image.size == (width, height):
        return image
    drawn = Image.new("RGB", (width, height), "white")
    drawn.paste(image, ((width - image.width) // 2, 0))
    return drawn
