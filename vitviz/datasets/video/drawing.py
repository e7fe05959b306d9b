"""A frame with its map, above the colour bar and the caption."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from PIL import Image

from vitviz.analysis.encoder import Encoder
from vitviz.datasets.video.maps import ClipMaps
from vitviz.datasets.video.request import VideoRequest
from vitviz.images.geometry import Geometry
from vitviz.visualization.captioned import caption_lines, caption_strip
from vitviz.visualization.heatmaps import Heatmap
from vitviz.visualization.scales import FittedScale, fit

# Pictures are enlarged to this longer side, and captions are at least this wide, in pixels.
MIN_PICTURE_SIDE = 320
# How many classes a caption names if each frame has its own class.
MAX_CLASSES = 5


def clip_scale(request: VideoRequest, maps: ClipMaps) -> FittedScale:
    """The scale of all frames: the style's scale, fitted to all maps together."""
    style = request.style
    assert not isinstance(style.scale, FittedScale)
    ends = {"low": style.low, "high": style.high}
    return fit(style.scale, [maps.values], percentiles=style.percentiles, signed=maps.signed, **ends)


class FramePainter:
    """Draws frames.

    Args:
        request: the style, the size and whether there is a caption.
        maps: of all frames, already smoothed.
        encoder: locates the model's input on a frame.
    """

    def __init__(self, request: VideoRequest, maps: ClipMaps, encoder: Encoder) -> None:
        self.request, self.maps, self.encoder = request, maps, encoder
        self.scale = clip_scale(request, maps)
        self.style = replace(request.style, scale=self.scale, low=None, high=None)
        self.beyond = self.scale.beyond(maps.values)
        query = request.map.parameters.get("query")
        self.mark = query if isinstance(query, tuple) else None
        self._geometry: Geometry | None = None
        self._strip = lru_cache(maxsize=16)(self._draw_strip)

    def caption(self, description: str) -> str:
        """The caption of a frame whose map has this description."""
        return f"{description}. {self._rendering_note()}"

    def clip_caption(self) -> str:
        """The caption of the whole clip: that of frame 0, and how the captions of the frames differ."""
        descriptions, counts = self.maps.descriptions, Counter(self.maps.targets).most_common()
        if len(set(descriptions)) == 1:
            return self.caption(descriptions[0])
        if len(counts) == 1:
            return f"{descriptions[0]} (frame 0; the captions of the frames differ). {self._rendering_note()}"
        frames, other_count = len(self.maps), sum(count for _, count in counts[MAX_CLASSES:])
        classes = [f"{label} in {count:,}" for label, count in counts[:MAX_CLASSES]]
        classes += [f"{len(counts) - MAX_CLASSES:,} others in {other_count:,}"] * bool(other_count)
        class_counts = f"Each is about its own most probable class: {', '.join(classes)} of {frames:,} frames."
        return f"{descriptions[0]} (frame 0). {class_counts} {self._rendering_note()}"

    def _rendering_note(self) -> str:
        """The sentences about the scale and the smoothing."""
        scale_note = self.scale.caption(self.maps.values)
        seconds = self.request.smoothing_seconds
        within = ", within the frames of one class" if len(set(self.maps.targets)) > 1 else ""
        sentences = [
            f"One scale for all {len(self.maps):,} frames{'' if scale_note else ', linear'}.",
            scale_note,
            f"Maps averaged over time by a Gaussian of {seconds:g} s{within}." if seconds else "",
        ]
        return " ".join(sentence for sentence in sentences if sentence)

    def draw(self, frame: int, image: Image.Image) -> Image.Image:
        """A drawn frame, RGB; all frames have the same even width and height.

        Args:
            frame: its number, counted from 0.
            image: the frame of the clip.
        """
        heatmap = Heatmap(self.maps.token_map(frame), image, self._geometry_on(image))
        side = self._side(image)
        overlay = (heatmap if side == max(image.size) else heatmap.resized(side)).overlay(self.style, self.mark)
        if not self.request.caption:
            return _pad(overlay, *map(_even, overlay.size))
        width = _even(max(MIN_PICTURE_SIDE, overlay.width))
        strip = self._strip(self.caption(self.maps.descriptions[frame]), width)
        canvas = _pad(overlay, width, _even(overlay.height + strip.height))
        canvas.paste(strip, (0, overlay.height))
        return canvas

    def _side(self, image: Image.Image) -> int:
        longest = max(image.size)
        return min(max(longest, MIN_PICTURE_SIDE), self.request.longest_side)

    def _geometry_on(self, image: Image.Image) -> Geometry:
        """The position of the model's input on the frames, which all have one size."""
        if self._geometry is None or (image.width, image.height) != (
            self._geometry.image_width,
            self._geometry.image_height,
        ):
            self._geometry = self.encoder.prepare(image).geometry
        return self._geometry

    def _draw_strip(self, caption: str, width: int) -> Image.Image:
        lines = caption_lines(caption, width)
        colours = self.style.colours(self.scale.signed)
        # All strips are as high as the one with the longest caption.
        padding = [""] * (self._max_lines(width) - len(lines))
        return caption_strip(width, colours, self.scale.ends, self.beyond, [*lines, *padding])

    def _max_lines(self, width: int) -> int:
        return max(len(caption_lines(self.caption(text), width)) for text in set(self.maps.descriptions))


def _even(side: int) -> int:
    """A side rounded up to an even number, since the codec halves the resolution of colours."""
    return side + side % 2


def _pad(image: Image.Image, width: int, height: int) -> Image.Image:
    if image.size == (width, height):
        return image
    canvas = Image.new("RGB", (width, height), "white")
    canvas.paste(image, ((width - image.width) // 2, 0))
    return canvas
