"""What stands behind the page: the models, the analyses of all visitors, and the pictures made from them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from PIL import Image

from vitviz.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.cache import AnalysisCache, ModelCache
from vitviz.encoder import analyze, cost
from vitviz.errors import CheckpointError, ImageError, MethodError
from vitviz.errors import plain as legible
from vitviz.figures import SheetLayout, sheet
from vitviz.heatmaps import Heatmap, Style
from vitviz.images import open_image
from vitviz.precision import PRECISIONS
from vitviz.progress import Progress as Done
from vitviz.targets import Target
from vitviz.text import TextTower, Words, open_text_tower
from vitviz.ui.attention_explorer import Explored, map_pack, pack, whole_page
from vitviz.ui.controls import told_apart
from vitviz.ui.files import forget
from vitviz.ui.hosting import forward
from vitviz.ui.knobs import MODELS, Knobs
from vitviz.ui.lanes import Lane
from vitviz.ui.links import link_of
from vitviz.ui.models import LOST, START, ModelChoice, open_choice
from vitviz.ui.panels import Settings
from vitviz.ui.photo import Upload
from vitviz.ui.picture import as_png
from vitviz.ui.pictures import Pictures
from vitviz.ui.sight import Sight
from vitviz.ui.texts import plain, ramp
from vitviz.weights import BUNDLED, ZOO, Model, Progress, open_step

CANVAS_SIDE = 900
# An analysis of more than so many floating-point operations waits among the large ones: about a second of two cores.
LARGE_FLOPS = 150e9
# Of files that are no pictures: what is remembered, how long they are kept, and how many at once.
MOST_REFUSED, REFUSED_SECONDS, MOST_LEAVING = 1000, 30.0, 100
UNLIKE = """**Unlike anything this model was trained on.** It has to call every picture one of its classes, and for \
this one nothing speaks as clearly as is usual for the pictures that it knows."""
# The name by which the explorer asks for itself as one file.
PAGE = "page"
# The picture as it was given.
PICTURE = "picture"
# Before the name of a method whose map it asks for.
MAP = "map "


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
    """

    def __init__(self, start: Model, knobs: Knobs | None = None) -> None:
        self.start, self.knobs = start, knobs or Knobs()
        self.cache = AnalysisCache(self.knobs.cache_bytes)
        self.models = ModelCache(self.knobs.model_bytes, leaving=self.cache.drop)
        # A card that is lent takes its functions before the app is launched.
        self.forward = forward()
        # Who asks for much does not hold up the others.
        self.small, self.large = Lane(), Lane()
        # Each as long as its model.
        self.towers: WeakKeyDictionary[Model, TextTower] = WeakKeyDictionary()
        # Of methods that take long, each one's last map and its parameters; as long as its analysis.
        self.maps: WeakKeyDictionary[Analysis, dict[str, tuple[dict[str, Any], Heatmap]]] = WeakKeyDictionary()
        # The model, the picture and how the one saw the other, as the library takes them; as long as the analysis.
        self.sources: WeakKeyDictionary[Analysis, dict[str, Any]] = WeakKeyDictionary()
        # What was uploaded, and its width and height.
        self.uploads: WeakKeyDictionary[Analysis, tuple[Upload, tuple[int, int]]] = WeakKeyDictionary()
        self.pictures = Pictures()
        # What was said of files that are not kept.
        self.refused: dict[Upload, str] = {}
        self.leaving: set[Path] = set()
        self._opening, self._refusing = threading.Lock(), threading.Lock()

    def model(self, choice: ModelChoice, report: Callable[[Progress], None] | None = None) -> Model:
        """The model that a visitor chose, opened where it is not in memory.

        It runs where the model of the start does, and in the same precision.

        Raises:
            CheckpointError: it cannot be opened, or may not be.
        """
        if choice == START:
            return self.start
        if choice.step is not None:
            run, step = self.model(choice.run, report), choice.step
            return self.models.get(choice, lambda: self._like_the_first(open_step(run, step)))
        if choice == LOST:
            raise CheckpointError("this server was started again: reload the page, whose link restores what it showed")
        if self.knobs.models == "start" or (self.knobs.models == "menu" and choice.source not in (*BUNDLED, *ZOO)):
            raise CheckpointError(f"{choice.source or 'a file'}: this server opens only {MODELS[self.knobs.models]}")
        return self.models.get(choice, lambda: self._like_the_first(open_choice(choice, report)))

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
            report: is told how far it is; an exception that it raises ends it.
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

        # Opening a picture takes memory, too.
        with self.small.turn(waiting):
            image = self.open(upload)
            if not self._is_large(model, image, sight):
                return self._analyzed(model, image, upload, sight, report)
            if not waits:
                raise Large
            del image
        with self.large.turn(waiting):
            return self._analyzed(model, self.open(upload), upload, sight, report)

    def open(self, upload: Upload) -> Image.Image:
        """The picture of an upload; a file that is none is kept for :data:`REFUSED_SECONDS` only.

        Raises:
            ImageError: as :func:`vitviz.open_image`, or the file is not kept any more.
        """
        try:
            return open_image(upload.path, upload.name)
        except ImageError as error:
            # A page tells of one file more than once.
            with self._refusing:
                if upload.path.exists():
                    self.refused[upload] = str(error)
                    self._forget_soon(upload.path)
                if len(self.refused) > MOST_REFUSED:
                    self.refused.pop(next(iter(self.refused)))
                gone = f"{legible(upload.name)}: no longer kept on this server; drop the picture here again"
                said = str(error) if upload.path.exists() else self.refused.get(upload, gone)
            raise ImageError(said) from None

    def _forget_soon(self, path: Path) -> None:
        """Not at once: the page is about to show it, or to tell of it once more. To be called by who refuses."""
        if path in self.leaving:
            return
        if len(self.leaving) >= MOST_LEAVING:
            return forget(path)
        self.leaving.add(path)
        timer = threading.Timer(REFUSED_SECONDS, self._forget, [path])
        timer.daemon = True
        timer.start()

    def _forget(self, path: Path) -> None:
        forget(path)
        with self._refusing:
            self.leaving.discard(path)

    def _is_large(self, model: Model, image: Image.Image, sight: Sight) -> bool:
        return cost(image, model, sight.fit, resolution=sight.pixels(model, image)).flops > LARGE_FLOPS

    def _analyzed(
        self, model: Model, image: Image.Image, upload: Upload, sight: Sight, report: Callable[[Step], None] | None
    ) -> tuple[str, Analysis]:
        resolution = sight.pixels(model, image)

        def running(state: Done) -> None:
            if report is not None:
                report(Step("Analysing, layer by layer", state.done, state.total))

        running(Done(0, model.network.config.depth))
        said: dict[str, Any] = {"resolution": resolution, "max_bytes": self.knobs.analysis_bytes}
        analysis = analyze(image, model, sight.fit, report=running, forward=self.forward, **said)
        # Maps do not depend on it, and every redraw and the cache then cost what the screen needs.
        analysis = replace(analysis, prepared=analysis.prepared.resized(CANVAS_SIDE))
        self.uploads[analysis] = upload, image.size
        self.sources[analysis] = {"name": upload.name, "fit": sight.fit, "resolution": resolution}
        return self.cache.put(analysis), analysis

    def recall(self, key: str, choice: ModelChoice, upload: Upload, sight: Sight) -> tuple[str, Analysis]:
        """The analysis of an id; made again if it has left the cache."""
        analysis = self.cache.get(key)
        return (key, analysis) if analysis is not None else self.analyze(self.model(choice), upload, sight)

    def file(self, key: str, name: str) -> bytes | None:
        """What the explorer asks for of an analysis; None where it is not in the cache.

        Raises:
            QueryError: there is no such file.
            ImageError: the picture is not kept any more.
        """
        analysis = self.cache.get(key)
        if analysis is None:
            return None
        if name == PAGE:
            said = self.sources[analysis]
            return whole_page(analysis, said["name"], **said).encode()
        if name == PICTURE:
            upload, _ = self.uploads[analysis]
            return as_png(self.open(upload))
        if name.startswith(MAP) and name.removeprefix(MAP) in self.explored_methods(analysis.model):
            return map_pack(analysis.map(name.removeprefix(MAP)).token_map, analysis.trace.layout)
        return pack(analysis.trace, name)

    def explored_methods(self, model: Model) -> tuple[str, ...]:
        """The methods whose maps the explorer may ask for: what it does not compute itself and what is soon there."""
        config = model.network.config
        offered = [name for name, method in METHODS.items() if not method.reports and method.refusal(config) is None]
        return tuple(name for name in offered if name not in ("attention", "rollout"))

    def explored(self, key: str, analysis: Analysis, choice: ModelChoice, upload: Upload, sight: Sight) -> Explored:
        """An analysis as the explorer takes it, with what a link and lines of Python say of it."""
        source = self.start.name if choice.run == START else choice.source or analysis.model.name
        query = link_of(analysis.model, choice, upload, sight, self.pictures)
        methods = self.explored_methods(analysis.model)
        self.sources[analysis]["source"] = source
        _, size = self.uploads[analysis]
        return Explored(key, analysis, query=query, pixels=size, methods=methods, **self.sources[analysis])

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
        return UNLIKE if analysis.is_unlike else ""

    def takes_long(self, analysis: Analysis, settings: Settings) -> bool:
        """Whether the chosen map is of a method that reports how far it is, and not known yet."""
        return METHODS[settings.method].reports and self._known(analysis, settings) is None

    def picture(self, analysis: Analysis, settings: Settings, report: Callable[[Done], None] | None = None) -> Picture:
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

    def _computed(self, analysis: Analysis, settings: Settings, report: Callable[[Done], None] | None) -> Heatmap:
        said = settings.parameters[settings.method]
        about = {"target": self.target(analysis.model, said["target"])} if "target" in said else {}
        heatmap = analysis.map(settings.method, report=report, **{**said, **about})
        if METHODS[settings.method].reports:
            self.maps.setdefault(analysis, {})[settings.method] = (said, heatmap)
        return heatmap

    def target(self, model: Model, wanted: int | Words | None) -> int | Target | None:
        """What a map or a measure is to be about. Safe between threads, so that no tower is opened twice.

        Raises:
            MethodError: a model without classes was told no words.
            CheckpointError: what reads the words cannot be opened.
        """
        if isinstance(wanted, Words):
            with self._opening:
                if model not in self.towers:
                    self.towers[model] = open_text_tower(model)
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
    return f"**{plain(token_map.description)}.** {strongest}{prefix}\n\n*{METHODS[method].reading}*"


def _legend(heatmap: Heatmap, style: Style) -> str:
    low, high = heatmap.token_map.range
    return ramp(style.colormap, f"{low:.3g}", f"{high:.3g}", heatmap.token_map.quantity)
