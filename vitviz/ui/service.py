"""What stands behind the page: the models, the analyses of all visitors, and the pictures made from them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from PIL import Image

from vitviz import isolation
from vitviz.analysis.analysis import Analysis
from vitviz.analysis.cache import AnalysisCache, ModelCache
from vitviz.analysis.costs import Cost
from vitviz.analysis.encoder import Encoder
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.errors.kinds import CheckpointError, ConfigError, MethodError
from vitviz.images.preprocessing import PreparedImage
from vitviz.isolation import IsolatedTower, Worker, shared_worker
from vitviz.models.targets import Target
from vitviz.progress import Progress
from vitviz.ui.explorer import Explored
from vitviz.ui.controls import told_apart
from vitviz.ui.hosting import forward, memory
from vitviz.ui.knobs import MODELS, PREFIX, Knobs
from vitviz.ui.links import link_of
from vitviz.ui.models import LOST, LOST_MESSAGE, START, ModelChoice, open_choice
from vitviz.ui.panels import Settings
from vitviz.ui.photo import Upload
from vitviz.ui.pictures import Pictures
from vitviz.ui.server.budget import MemoryBudget
from vitviz.ui.server.decoding import UploadedPictures
from vitviz.ui.server.estimates import map_bytes
from vitviz.ui.server.explorer_files import MAP, ExplorerFiles, explored_methods
from vitviz.ui.server.lanes import Lane
from vitviz.ui.sight import Sight
from vitviz.ui.texts import plain, ramp
from vitviz.visualization.figures import SheetLayout, sheet
from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.weights import BUNDLED, ZOO, DownloadProgress, Model, snapshot_of
from vitviz.weights.text_tower import TextPrompt

CANVAS_SIDE = 900
CANVAS_BYTES = 3 * CANVAS_SIDE**2
# Of the memory of the machine, where nobody says how much the app may take.
MEMORY_PART = 0.75
# The app itself and the process that opens files, half a gibibyte each, and two pictures that are being decoded.
RESERVED_BYTES, LEAST_SHARED_BYTES = 7 * 2**28, 2**28
# An analysis of more than so many floating-point operations waits among the large ones: about a second of two cores.
LARGE_FLOPS = 150e9
UNLIKE = """**Unlike anything this model was trained on.** It has to call every picture one of its classes, and for \
this one nothing speaks as clearly as is usual for the pictures that it knows."""


@dataclass(frozen=True)
class Picture:
    """A map as the page shows it: the overlay, its caption (Markdown) and the legend of its colours (HTML)."""

    overlay: Image.Image
    caption: str
    legend: str


class Step(NamedTuple):
    """How far an analysis is: ``done`` of ``total`` layers, or waiting for others."""

    said: str
    done: int = 0
    total: int = 1


class Large(Exception):
    """An analysis is to wait among the large ones."""


class Workbench:
    """The models for everybody; every visitor's analyses under their own ids.

    Args:
        start: the model with which the page opens.
        knobs: what may be taken and kept.
        worker: opens what visitors send; that of this process where it is not given.
    """

    def __init__(self, start: Model, knobs: Knobs | None = None, worker: Worker | None = None) -> None:
        self.start, self.knobs = start, knobs or Knobs()
        self.cache = AnalysisCache(self.knobs.cache_bytes)
        self.models = ModelCache(self.knobs.model_bytes, leaving=self.cache.drop)
        # A card that is lent takes its functions before the app is launched.
        self.forward = forward()
        # Who asks for much does not hold up the others.
        self.small, self.large = Lane(), Lane()
        self.worker = worker or shared_worker()
        self.uploaded = UploadedPictures(self.worker)
        self.budget = MemoryBudget(self._shared_bytes(), [self.cache, self.models])
        # Each as long as its model.
        self.towers: WeakKeyDictionary[Model, IsolatedTower] = WeakKeyDictionary()
        # Of methods that take long, each one's last map and its parameters; as long as its analysis.
        self.maps: WeakKeyDictionary[Analysis, dict[str, tuple[dict[str, Any], Heatmap]]] = WeakKeyDictionary()
        # The model, the picture and how the one saw the other, as the library takes them; as long as the analysis.
        self.sources: WeakKeyDictionary[Analysis, dict[str, Any]] = WeakKeyDictionary()
        # What was uploaded, and its width and height.
        self.uploads: WeakKeyDictionary[Analysis, Upload] = WeakKeyDictionary()
        self.sizes: WeakKeyDictionary[Analysis, tuple[int, int]] = WeakKeyDictionary()
        self.pictures = Pictures()
        self.explorer_files = ExplorerFiles(self.uploaded, self.budget)
        self._opening = threading.Lock()

    def _shared_bytes(self) -> int:
        """Of the memory of the app, what is not taken in any case."""
        whole = self.knobs.memory_bytes or int(MEMORY_PART * memory())
        left = whole - RESERVED_BYTES - self.start.nbytes
        if left < LEAST_SHARED_BYTES:
            least = RESERVED_BYTES + self.start.nbytes + LEAST_SHARED_BYTES
            raise ConfigError(f"{PREFIX}MEMORY_BYTES = {whole:,}: expected at least {least:,} with this model")
        return left

    def model(self, choice: ModelChoice, report: Callable[[DownloadProgress], None] | None = None) -> Model:
        """The model that a visitor chose, opened where it is not in memory.

        It runs where the model of the start does, and in the same precision.

        Raises:
            CheckpointError: it cannot be opened, or may not be.
        """
        if choice == START:
            return self.start
        if choice.step is not None:
            run, step = self.model(choice.run, report), choice.step
            return self.models.get(choice, lambda: self._like_the_first(self._step(run, step)))
        if choice == LOST:
            raise CheckpointError(LOST_MESSAGE)
        if self.knobs.models == "start" or (self.knobs.models == "menu" and choice.source not in (*BUNDLED, *ZOO)):
            raise CheckpointError(f"{choice.source or 'a file'}: this server opens only {MODELS[self.knobs.models]}")
        return self.models.get(choice, lambda: self._like_the_first(self._opened(choice, report)))

    def _step(self, run: Model, step: int) -> Model:
        return snapshot_of(
            run, step, lambda path, name: isolation.snapshot(self.worker, path, name, self.knobs.model_bytes)
        )

    def _room(self, nbytes: int) -> AbstractContextManager[None]:
        # What a file is expanded to is held to the same bound.
        return self.budget.share(min(nbytes, 2 * self.knobs.model_bytes), "opening this checkpoint")

    def _opened(self, choice: ModelChoice, report: Callable[[DownloadProgress], None] | None) -> Model:
        return open_choice(choice, report, worker=self.worker, max_bytes=self.knobs.model_bytes, room=self._room)

    def _like_the_first(self, model: Model) -> Model:
        first = self.start.network
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == first.precision)
        model.network.to(first.device).set_precision(precision)
        return model

    def analyze(
        self,
        model: Model,
        upload: Upload,
        sight: Sight,
        report: Callable[[Step], None] | None = None,
        waits: bool = True,
    ) -> tuple[str, Analysis]:
        """Run a model when it is this one's turn; returns the id under which the analysis is kept.

        Args:
            model, upload, sight: what is analysed.
            report: receives how far it is; an exception that it raises ends it.
            waits: whether a large analysis waits among the large ones; otherwise it is refused.

        Raises:
            Large: it is refused.
            ImageError: the upload cannot be opened, or the model cannot see it so; the message names it as the user
                does.
            ConfigError: there is no such resolution.
            LimitError: the analysis would need too much memory.
        """

        def waiting(before: int) -> None:
            if report is not None:
                report(Step(f"Waiting: {before} before this one"))

        encoder, prepared, size, is_large = self._prepared(model, upload, sight, waits, waiting)
        with (self.large if is_large else self.small).turn(waiting):
            return self._analyzed(encoder, prepared, size, upload, sight, report)

    def cost_of(
        self, model: Model, upload: Upload, fit: str | None, resolution: int | None
    ) -> tuple[Cost, tuple[int, int]]:
        """What an analysis would take, and the width and height of the picture.

        Raises:
            ImageError, ConfigError: as :meth:`analyze`.
        """
        with self.uploaded.opened(upload) as picture:
            return Encoder(model, fit, resolution).cost(picture), picture.size

    def _prepared(
        self, model: Model, upload: Upload, sight: Sight, waits: bool, waiting: Callable[[int], None]
    ) -> tuple[Encoder, PreparedImage, tuple[int, int], bool]:
        """A picture as the model's input, its size, and whether its analysis is a large one.

        Raises:
            Large: it is, and is not to wait.
        """
        with self.uploaded.opened(upload, waiting) as picture:
            encoder = Encoder(
                model,
                sight.fit,
                sight.pixels(model, picture.size),
                max_bytes=self.knobs.analysis_bytes,
                forward=self.forward,
            )
            is_large = encoder.cost(picture).flops > LARGE_FLOPS
            if is_large and not waits:
                raise Large
            encoder.check(picture)
            patch = model.network.config.patch_height, model.network.config.patch_width
            # Maps do not depend on it, and every redraw and the cache then cost what the screen needs.
            prepared = picture.prepare(encoder.preprocessing, *patch, sight.fit, CANVAS_SIDE)
            return encoder, prepared, picture.size, is_large

    def _analyzed(
        self,
        encoder: Encoder,
        prepared: PreparedImage,
        size: tuple[int, int],
        upload: Upload,
        sight: Sight,
        report: Callable[[Step], None] | None,
    ) -> tuple[str, Analysis]:
        def running(state: Progress) -> None:
            if report is not None:
                report(Step("Analysing, layer by layer", state.done, state.total))

        def waiting() -> None:
            if report is not None:
                report(Step("Waiting for memory that others use"))

        geometry = prepared.geometry
        needed = encoder.cost_at(geometry.input_height, geometry.input_width)
        with self.budget.share(needed.nbytes + CANVAS_BYTES, "this analysis", waiting):
            running(Progress(0, encoder.model.network.config.depth))
            [analysis] = encoder.encode([prepared], running)
            self.uploads[analysis], self.sizes[analysis] = upload, size
            self.sources[analysis] = {"name": upload.name, "fit": sight.fit, "resolution": encoder.resolution}
            return self.cache.put(analysis), analysis

    def recall(self, key: str, choice: ModelChoice, upload: Upload, sight: Sight) -> tuple[str, Analysis]:
        """The analysis of an id; made again if it has left the cache."""
        analysis = self.cache.get(key)
        return (key, analysis) if analysis is not None else self.analyze(self.model(choice), upload, sight)

    def file(self, key: str, name: str, folder: str) -> Path | None:
        """What the explorer asks for of an analysis, written into a folder once; None where it is not in the cache.

        Raises:
            QueryError: there is no such file.
            ImageError: the picture is not kept any more.
            LimitError: there is no room for it.
        """
        analysis = self.cache.get(key)
        if analysis is None:
            return None
        # A map may run the model.
        lane = self.small if name.startswith(MAP) else self.explorer_files.lane
        upload, about = self.uploads[analysis], self.sources[analysis]
        return self.explorer_files.file(analysis, name, folder, lane, upload, about)

    def explored(self, key: str, analysis: Analysis, choice: ModelChoice, upload: Upload, sight: Sight) -> Explored:
        """An analysis as the explorer takes it, with what a link and lines of Python say of it."""
        source = self.start.name if choice.run == START else choice.source or analysis.model.name
        query = link_of(analysis.model, choice, upload, sight, self.pictures)
        methods = explored_methods(analysis.model)
        self.sources[analysis]["source"] = source
        return Explored(
            key, analysis, query=query, pixels=self.sizes[analysis], methods=methods, **self.sources[analysis]
        )

    def predictions(self, analysis: Analysis) -> dict[str, float] | None:
        """The most probable classes; None for a model without a classifier."""
        labels = analysis.model.labels
        if not labels:
            return None
        # ImageNet has two cranes: by name alone, one would hide the other.
        best = analysis.logits.softmax(-1).topk(min(5, len(labels)))
        named = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return {told_apart(labels, index): probability for index, probability in named}

    def unlike(self, analysis: Analysis) -> str:
        """What is to be said where a picture is unlike what the model was trained on; nothing where it is not."""
        return UNLIKE if analysis.is_out_of_distribution else ""

    def takes_long(self, analysis: Analysis, settings: Settings) -> bool:
        """Whether the chosen map is of a method that reports how far it is, and not known yet."""
        return METHODS[settings.method].reports and self._known(analysis, settings) is None

    def picture(
        self, analysis: Analysis, settings: Settings, report: Callable[[Progress], None] | None = None
    ) -> Picture:
        """The chosen map over the image.

        Args:
            analysis: of the image.
            settings: which map, and how it is drawn.
            report: as :meth:`vitviz.Analysis.map` takes it.

        Raises:
            MethodError: the parameters contradict each other.
        """
        heatmap = self._known(analysis, settings)
        if heatmap is None:
            heatmap = self._computed(analysis, settings, report)
        query = settings.parameters[settings.method].get("query")
        overlay = heatmap.overlay(settings.style, mark=query if isinstance(query, tuple) else None)
        return Picture(overlay, _caption(heatmap, settings.method), _legend(heatmap, settings.style))

    def _known(self, analysis: Analysis, settings: Settings) -> Heatmap | None:
        """The map, where it was computed before and takes long."""
        parameters, heatmap = self.maps.get(analysis, {}).get(settings.method, (None, None))
        return heatmap if parameters == settings.parameters[settings.method] else None

    def _computed(self, analysis: Analysis, settings: Settings, report: Callable[[Progress], None] | None) -> Heatmap:
        said = settings.parameters[settings.method]
        about = {"target": self.target(analysis.model, said["target"])} if "target" in said else {}
        with self.budget.share(map_bytes(analysis, settings.method), "this map"):
            heatmap = analysis.map(settings.method, report=report, **{**said, **about})
        if METHODS[settings.method].reports:
            self.maps.setdefault(analysis, {})[settings.method] = (said, heatmap)
        return heatmap

    def target(self, model: Model, wanted: int | TextPrompt | None) -> int | Target | None:
        """What a map or a measure is to be about. Safe between threads, so that no tower is opened twice.

        Raises:
            MethodError: a model without classes was told no words.
            CheckpointError: what reads the words cannot be opened.
        """
        if isinstance(wanted, TextPrompt):
            with self._opening:
                if model not in self.towers:
                    self.towers[model] = IsolatedTower(self.worker, model, self.knobs.model_bytes)
            return self.towers[model].target(wanted.text)
        if not model.labels:
            raise MethodError("this map is about something: write below the token what, in words, and press Enter")
        return wanted

    def sheet(self, analysis: Analysis, settings: Settings) -> tuple[Image.Image, SheetLayout]:
        """The chosen token's attention in every layer and head."""
        said = settings.parameters["attention"]
        selected = (analysis.trace.layer_index(said["layer"]), None if isinstance(said["head"], str) else said["head"])
        cells = analysis.attention_sheet(said["query"], said["direction"])
        return sheet(cells, replace(settings.style, grid=False), settings.shared_scale, selected)

    def patch_at(self, analysis: Analysis, x: float, y: float) -> tuple[int, int] | None:
        """The patch under a point of the picture on the page; None where the model did not look."""
        layout = analysis.trace.layout
        return analysis.prepared.geometry.patch_at(x, y, layout.grid_height, layout.grid_width)


def _caption(heatmap: Heatmap, method: str) -> str:
    token_map = heatmap.token_map
    row, column = token_map.strongest
    strongest = f"Strongest: patch ({row}, {column}) with {token_map.values[row, column]:.3g}."
    # Of what has no bound, a percentage would say nothing.
    form = ".1%" if token_map.domain == (0.0, 1.0) else ".3g"
    kept = [f"{name.upper() if name == 'cls' else name} {value:{form}}" for name, value in token_map.prefix.items()]
    prefix = f" Prefix tokens: {', '.join(kept)}." if kept else ""
    return f"**{plain(token_map.description)}.** {strongest}{prefix}\n\n*{METHODS[method].interpretation}*"


def _legend(heatmap: Heatmap, style: Style) -> str:
    low, high = heatmap.token_map.range
    return ramp(style.colormap, f"{low:.3g}", f"{high:.3g}", heatmap.token_map.quantity)
