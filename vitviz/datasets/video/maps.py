"""The maps of all frames: computed once, kept in segments, and averaged over time where that is asked for."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitviz.analysis.analysis import Analysis, map_batch
from vitviz.analysis.batches import BatchQueue
from vitviz.analysis.encoder import Encoder
from vitviz.attention.token_map import TokenMap
from vitviz.attribution import METHODS
from vitviz.datasets.video.request import VideoRequest
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.clip_facts import Clip, Frame
from vitviz.images.ffmpeg import TICKS
from vitviz.images.preprocessing import PreparedImage
from vitviz.weights.formats.atomic import atomic_write

# A run that is killed has to compute so many frames again at most.
SEGMENT_FRAMES = 64
# Of the maps of all frames together, which are held in memory while their scale is fitted.
MAX_VALUES = 2**25
# The weights of a Gaussian beyond are below 1.2 %, and are left out.
REACH_DEVIATIONS = 3.0
# Two threads prepare frames while the model runs.
WORKERS = 2


@dataclass(frozen=True, eq=False)
class ClipMaps:
    """The maps of some frames that follow one another.

    Args:
        values: ``"frame row column"``, float32.
        ticks: when each frame is shown, in 1/90,000 second.
        descriptions: how each map was made.
        targets: the class that each map is about where every frame has its own, else empty texts.
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
        """Every map as the mean of those before and after, weighted by a Gaussian of their distance in time.

        Maps about another class are left out: a mean of both is about neither.

        Args:
            seconds: its standard deviation; 0 for the same maps.
        """
        if not seconds:
            return self
        times, found = self.ticks / TICKS, np.empty_like(self.values)
        classes = np.unique(np.array(self.targets), return_inverse=True)[1]
        # Frames exactly as far before and after both count.
        reach = REACH_DEVIATIONS * seconds + 0.5 / TICKS
        for frame, time in enumerate(times):
            first, behind = np.searchsorted(times, (time - reach, time + reach))
            weights = np.exp(-0.5 * ((times[first:behind] - time) / seconds) ** 2) * (
                classes[first:behind] == classes[frame]
            )
            found[frame] = np.tensordot(weights / weights.sum(), self.values[first:behind], 1)
        return replace(self, values=found)

    def save(self, path: Path) -> None:
        """Write them, whole or not at all."""
        about = {"quantity": self.quantity, "domain": self.domain, "signed": self.signed}
        text = json.dumps({**about, "descriptions": self.descriptions, "targets": self.targets})
        with atomic_write(path) as file:
            np.savez(file, values=self.values, ticks=self.ticks, about=np.array(text))

    @classmethod
    def load(cls, path: Path) -> ClipMaps:
        """What :meth:`save` wrote.

        Raises:
            ConfigError: it is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as parts:
                about = json.loads(str(parts["about"]))
                domain = (float(about["domain"][0]), float(about["domain"][1]))
                descriptions = tuple(map(str, about["descriptions"]))
                targets = tuple(map(str, about["targets"]))
                made = about["quantity"], domain, bool(about["signed"])
                return cls(parts["values"], parts["ticks"], descriptions, targets, *made)
        # A damaged file shows in many ways.
        except Exception as error:
            raise ConfigError(f"{path}: damaged ({type(error).__name__}); remove it to have it again") from None

    @classmethod
    def of(cls, frames: Sequence[tuple[int, str, TokenMap]]) -> ClipMaps:
        """Of times, classes and maps."""
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
        """Of segments in their order."""
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
    """The files of the maps: segments of :data:`SEGMENT_FRAMES` frames, and how many frames there are once all are.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, segment: int) -> Path:
        return self.folder / f"maps-{segment:06d}.npz"

    def count(self) -> int:
        """How many segments are there."""
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
    """Write the maps of all segments that are missing; returns how many frames were there before.

    Args:
        request, encoder: what is computed, and by what.
        clip: of which no frame was read yet.
        segments: where the maps go.
        batch_size: most frames that are encoded together.
        report: receives the frames that are done and how many there are; an exception that it raises ends the run.

    Raises:
        ImageError: the clip is damaged.
        LimitError: the maps of all frames take too many values.
        MethodError, QueryError: the model cannot serve the request.
    """
    run = _Run(request, encoder, clip, segments, report)
    run.start()
    queue = BatchQueue(encoder, run.missing(), batch_size, workers=WORKERS, raises=True, prepare=run.prepare)
    batches = queue.batches()
    try:
        for found in batches:
            run.take([each for each in found if isinstance(each, Analysis)])
    finally:
        batches.close()
    run.finish()
    return run.kept


class _Run:
    """One pass over a clip; segments are complete one after the other, since frames come in their order."""

    def __init__(
        self,
        request: VideoRequest,
        encoder: Encoder,
        clip: Clip,
        segments: MapSegments,
        report: Callable[[int, int], None],
    ) -> None:
        self.request, self.encoder, self.clip, self.segments, self.report = request, encoder, clip, segments, report
        self.coming: deque[tuple[int, int]] = deque()
        self.found: list[tuple[int, str, TokenMap]] = []
        asked = request.map
        self.own_classes = METHODS[asked.method].class_specific and asked.parameters.get("target") is None
        self.segment = self.passed = self.done = self.kept = 0

    def start(self) -> None:
        """Report what was there before, by which the rate of the others is told."""
        there, total = self.segments.count() * SEGMENT_FRAMES, self.clip.facts.frames
        self.report(min(there, total) if total else there, total)

    def missing(self) -> Iterator[Frame]:
        """The frames of segments that are not there."""
        segment = 0
        while True:
            if self.segments.path(segment).is_file():
                skipped = self.clip.skip(SEGMENT_FRAMES)
                self.kept += skipped
                self.passed += skipped
                if skipped < SEGMENT_FRAMES:
                    return
            else:
                for _ in range(SEGMENT_FRAMES):
                    frames = self.clip.read(1)
                    if not frames:
                        return
                    self.passed += 1
                    self.coming.append((segment, frames[0].ticks))
                    yield frames[0]
            segment += 1

    def prepare(self, frame: Frame, place: int) -> PreparedImage:
        return self.encoder.prepare(frame.image, frame.index)

    def take(self, analyses: list[Analysis]) -> None:
        maps = map_batch(analyses, self.request.map.method, **self.request.map.parameters)
        for analysis, heatmap in zip(analyses, maps, strict=True):
            segment, ticks = self.coming.popleft()
            if segment != self.segment:
                self._write()
                self.segment = segment
            token_map = heatmap.token_map
            if (self.passed) * token_map.values.numel() > MAX_VALUES:
                most = MAX_VALUES // token_map.values.numel()
                raise ImageError(
                    f"{self.clip.name}: more than {most:,} frames of {token_map.values.numel():,} patches each; "
                    "expected a shorter clip, or a smaller resolution"
                )
            target = analysis.predictions(1)[0].label if self.own_classes else ""
            self.found.append((ticks, target, token_map))
        self.done += len(maps)
        total = max(self.clip.facts.frames, self.kept + self.done) if self.clip.facts.frames else 0
        self.report(self.kept + self.done, total)

    def finish(self) -> None:
        self._write()
        self.segments.finish(self.passed)

    def _write(self) -> None:
        if self.found:
            ClipMaps.of(self.found).save(self.segments.path(self.segment))
        self.found = []
