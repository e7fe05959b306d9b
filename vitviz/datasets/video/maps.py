"""The maps of all frames: they are computed once, stored in segments, and optionally averaged over time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import BatchQueue, map_batch
from vitviz.analysis.encoder import Encoder
from vitviz.attention.token_map import TokenMap
from vitviz.attribution import METHODS
from vitviz.datasets.video.request import VideoRequest
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.clip_facts import Clip, Frame
from vitviz.images.ffmpeg import TICKS_PER_SECOND
from vitviz.images.preprocessing import PreparedImage
from vitviz.system.atomic import atomic_write

# A killed run loses the maps of fewer frames than this.
SEGMENT_FRAMES = 64
# Bound on the values of all maps, which are in memory together while their scale is fitted.
MAX_VALUES = 2**25
# Beyond this distance the weights of the Gaussian are below 1.2 % of its peak, and are left out.
REACH_DEVIATIONS = 3.0
# Two threads prepare frames while the model runs.
WORKERS = 2


@dataclass(frozen=True, eq=False)
class ClipMaps:
    """The maps of consecutive frames.

    Args:
        values: ``"frame row column"``, float32.
        ticks: when each frame is shown, in 1/90,000 second.
        descriptions: how each map was made.
        targets: the class of each map if every frame has its own class, else empty strings.
        quantity, domain, signed: as :class:`vitviz.TokenMap` has them.

    Raises:
        ConfigError: their numbers differ.
    """

    values: np.ndarray
    ticks: np.ndarray
    descriptions: tuple[str, ...]
    targets: tuple[str, ...]
    quantity: str
    domain: tuple[float, float]
    signed: bool

    def __post_init__(self) -> None:
        if self.values.ndim != 3 or len({*map(len, self._of_frames())}) != 1:
            shape = f"{self.values.shape}, {self.ticks.shape}"
            raise ConfigError(f"maps of a clip: {shape} found; expected 'frame row column' and a time for every frame")

    def __len__(self) -> int:
        return len(self.values)

    def _of_frames(self) -> tuple[Sized, ...]:
        return self.values, self.ticks, self.descriptions, self.targets

    def token_map(self, frame: int) -> TokenMap:
        """The map of a frame."""
        values = torch.from_numpy(self.values[frame])
        return TokenMap(values, {}, self.quantity, self.descriptions[frame], self.domain, self.signed)

    def smoothed(self, seconds: float) -> ClipMaps:
        """The maps averaged over time, weighted by a Gaussian of the distance in time.

        Only maps of the same class are averaged, since a mean over classes explains none of them.

        Args:
            seconds: standard deviation of the Gaussian; 0 for the same maps.
        """
        if not seconds:
            return self
        times, values = self.ticks / TICKS_PER_SECOND, np.empty_like(self.values)
        classes = np.unique(np.array(self.targets), return_inverse=True)[1]
        # Half a tick more, so that frames exactly at the reach count on both sides.
        reach = REACH_DEVIATIONS * seconds + 0.5 / TICKS_PER_SECOND
        for frame, frame_time in enumerate(times):
            first, last = np.searchsorted(times, (frame_time - reach, frame_time + reach))
            weights = np.exp(-0.5 * ((times[first:last] - frame_time) / seconds) ** 2) * (
                classes[first:last] == classes[frame]
            )
            values[frame] = np.tensordot(weights / weights.sum(), self.values[first:last], 1)
        return replace(self, values=values)

    def save(self, path: Path) -> None:
        """Write the maps atomically."""
        metadata = {"quantity": self.quantity, "domain": self.domain, "signed": self.signed}
        text = json.dumps({**metadata, "descriptions": self.descriptions, "targets": self.targets})
        with atomic_write(path) as file:
            np.savez(file, values=self.values, ticks=self.ticks, about=np.array(text))

    @classmethod
    def load(cls, path: Path) -> ClipMaps:
        """The maps that :meth:`save` wrote.

        Raises:
            ConfigError: it is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                metadata = json.loads(str(arrays["about"]))
                domain = (float(metadata["domain"][0]), float(metadata["domain"][1]))
                descriptions = tuple(map(str, metadata["descriptions"]))
                targets = tuple(map(str, metadata["targets"]))
                value_range = metadata["quantity"], domain, bool(metadata["signed"])
                return cls(arrays["values"], arrays["ticks"], descriptions, targets, *value_range)
        # A damaged file raises many kinds of errors.
        except Exception as error:
            raise ConfigError(f"{path}: damaged ({type(error).__name__}); remove it to have it again") from None

    @classmethod
    def of(cls, frames: Sequence[tuple[int, str, TokenMap]]) -> ClipMaps:
        """The maps of consecutive frames, each given as its ticks, target and map."""
        first = frames[0][2]
        return cls(
            np.stack([each.values.detach().float().cpu().numpy() for *_, each in frames]),
            np.array([ticks for ticks, *_ in frames], np.int64),
            tuple(each.description for *_, each in frames),
            tuple(target for _, target, _ in frames),
            first.quantity,
            first.domain,
            first.signed,
        )

    @classmethod
    def joined(cls, segments: Sequence[ClipMaps]) -> ClipMaps:
        """Consecutive segments as one."""
        first = segments[0]
        return cls(
            np.concatenate([each.values for each in segments]),
            np.concatenate([each.ticks for each in segments]),
            tuple(text for each in segments for text in each.descriptions),
            tuple(target for each in segments for target in each.targets),
            first.quantity,
            first.domain,
            first.signed,
        )


class MapSegments:
    """The files of the maps: segments of :data:`SEGMENT_FRAMES` frames, and the number of frames once all are written.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, segment: int) -> Path:
        return self.folder / f"maps-{segment:06d}.npz"

    def count(self) -> int:
        """How many segments are written."""
        return len(list(self.folder.glob("maps-*.npz")))

    def frames(self) -> int | None:
        """How many frames the clip has; None as long as a segment is missing."""
        try:
            return int((self.folder / "frames.txt").read_text())
        except (OSError, ValueError):
            return None

    def finish(self, frames: int) -> None:
        with atomic_write(self.folder / "frames.txt") as file:
            file.write(str(frames).encode())

    def read(self) -> ClipMaps:
        """All maps.

        Raises:
            ConfigError: a segment is damaged, or missing.
        """
        return ClipMaps.joined([ClipMaps.load(path) for path in sorted(self.folder.glob("maps-*.npz"))])


def compute_maps(
    request: VideoRequest,
    encoder: Encoder,
    clip: Clip,
    segments: MapSegments,
    batch_size: int,
    report: Callable[[int, int], None],
) -> int:
    """Write the maps of all missing segments; returns how many frames had maps from an earlier run.

    Args:
        request: the maps to compute.
        encoder: of the request.
        clip: positioned at its first frame.
        segments: receives the maps.
        batch_size: most frames that are encoded together.
        report: receives how many frames are done, and the total; an exception that it raises ends the run.

    Raises:
        ImageError: the clip is damaged, or the maps of all frames take more than :data:`MAX_VALUES` values.
        LimitError: one frame alone needs too much memory.
        MethodError, QueryError: the model does not support the request.
    """
    run = _Run(request, encoder, clip, segments, report)
    run.start()
    queue = BatchQueue(encoder, run.missing(), batch_size, workers=WORKERS, raises=True, prepare=run.frame_input)
    batches = queue.batches()
    try:
        for results in batches:
            run.add([each for each in results if isinstance(each, Analysis)])
    finally:
        batches.close()
    run.finish()
    return run.skipped


class _Run:
    """One pass over a clip. Frames come in order, so one segment is completed after the other."""

    def __init__(
        self,
        request: VideoRequest,
        encoder: Encoder,
        clip: Clip,
        segments: MapSegments,
        report: Callable[[int, int], None],
    ) -> None:
        self.request, self.encoder, self.clip, self.segments, self.report = request, encoder, clip, segments, report
        self._pending: deque[tuple[int, int]] = deque()
        self.segment_maps: list[tuple[int, str, TokenMap]] = []
        map_request = request.map
        self.per_frame_classes = (
            METHODS[map_request.method].class_specific and map_request.parameters.get("target") is None
        )
        self.segment = self.frames_read = self.done = self.skipped = 0

    def start(self) -> None:
        """Report the stored frames first, so that the rate counts only the others."""
        stored, total = self.segments.count() * SEGMENT_FRAMES, self.clip.facts.frames
        self.report(min(stored, total) if total else stored, total)

    def missing(self) -> Iterator[Frame]:
        """The frames of the missing segments."""
        segment = 0
        while True:
            if self.segments.path(segment).is_file():
                skipped = self.clip.skip(SEGMENT_FRAMES)
                self.skipped += skipped
                self.frames_read += skipped
                if skipped < SEGMENT_FRAMES:
                    return
            else:
                for _ in range(SEGMENT_FRAMES):
                    frames = self.clip.read(1)
                    if not frames:
                        return
                    self.frames_read += 1
                    self._pending.append((segment, frames[0].ticks))
                    yield frames[0]
            segment += 1

    def frame_input(self, frame: Frame, position: int) -> PreparedImage:
        return self.encoder.prepare(frame.image, frame.index)

    def add(self, analyses: list[Analysis]) -> None:
        maps = map_batch(analyses, self.request.map.method, **self.request.map.parameters)
        for analysis, heatmap in zip(analyses, maps, strict=True):
            segment, ticks = self._pending.popleft()
            if segment != self.segment:
                self._write()
                self.segment = segment
            token_map = heatmap.token_map
            if self.frames_read * token_map.values.numel() > MAX_VALUES:
                max_frames = MAX_VALUES // token_map.values.numel()
                raise ImageError(
                    f"{self.clip.name}: more than {max_frames:,} frames of {token_map.values.numel():,} patches each; "
                    "expected a shorter clip, or a smaller resolution"
                )
            target = analysis.model.labels[int(analysis.logits.argmax())] if self.per_frame_classes else ""
            self.segment_maps.append((ticks, target, token_map))
        self.done += len(maps)
        total = max(self.clip.facts.frames, self.skipped + self.done) if self.clip.facts.frames else 0
        self.report(self.skipped + self.done, total)

    def finish(self) -> None:
        self._write()
        self.segments.finish(self.frames_read)

    def _write(self) -> None:
        if self.segment_maps:
            ClipMaps.of(self.segment_maps).save(self.segments.path(self.segment))
        self.segment_maps = []
