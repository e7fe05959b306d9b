"""What stands behind the page and the API: the models, the analyses of all visitors, and their maps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from vitviz import isolation
from vitviz.analysis.analysis import Analysis
from vitviz.analysis.cache import AnalysisCache, ModelCache
from vitviz.analysis.costs import Cost, cost_of
from vitviz.analysis.encoder import Encoder
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import Method
from vitviz.errors.kinds import CheckpointError, MethodError
from vitviz.errors.messages import quote
from vitviz.images.preprocessing import PreparedImage
from vitviz.isolation import Worker, shared_worker
from vitviz.models.require import require_vit
from vitviz.models.targets import ClassDifference, Target, TargetChoice
from vitviz.progress import Progress
from vitviz.ui.arguments import LikenessRequest, TargetRequest
from vitviz.ui.hosting import forward
from vitviz.ui.inputs import InputSettings, Origin
from vitviz.ui.models import DEFAULT_MODEL, SERIES, ModelChoice, OwnModels, open_choice
from vitviz.ui.packs import rolls
from vitviz.ui.pictures import Pictures, Upload, example_of
from vitviz.ui.server.budget import MemoryBudget, shared_bytes
from vitviz.ui.server.decoding import UploadedPictures
from vitviz.ui.server.estimates import map_bytes
from vitviz.ui.server.explorer_files import ExplorerFiles
from vitviz.ui.server.fair_lock import FairLock
from vitviz.ui.server.kept_maps import KeptMaps
from vitviz.ui.server.likenesses import Likenesses
from vitviz.ui.server.settings import MODELS, ServerSettings
from vitviz.ui.server.text_towers import TextTowers
from vitviz.ui.steps import ExpiredError, Report, Step, unheard, waiting, waiting_for_memory
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import BUNDLED, ZOO, DownloadProgress, Model, snapshot_of
from vitviz.weights.text_tower import TextPrompt, reads_text

CANVAS_SIDE = 900
CANVAS_BYTES = 3 * CANVAS_SIDE**2
# What takes more floating-point operations waits among the large: about a second of two cores.
LARGE_FLOPS = 150e9
# A pass back costs twice what a pass forwards does.
GRADIENT_PASSES = 3
NO_WORDS = "This model has no classes, but reads texts: write what the map is about, or choose a picture to be like"
NO_TARGET = "This model has no classifier, so no map can be about a class: choose a picture to be like"


class AnalysisService:
    """The models for everybody; every visitor's analyses under their own ids.

    Args:
        start: the model with which the page opens.
        server_settings: what may be taken and kept.
        worker: opens what visitors send; that of this process where it is not given.
    """

    def __init__(
        self, start: Model, server_settings: ServerSettings | None = None, worker: Worker | None = None
    ) -> None:
        self.start, self.server_settings = start, server_settings or ServerSettings()
        self.cache = AnalysisCache(self.server_settings.cache_bytes)
        self.models = ModelCache(self.server_settings.model_bytes, on_evict=self.cache.drop)
        # A card that is lent takes its functions before the app is launched.
        self.forward = forward()
        # Who asks for much does not hold up the others.
        self.small, self.large = FairLock(), FairLock()
        self.worker = worker or shared_worker()
        self.uploaded = UploadedPictures(self.worker, self.server_settings.clip_limits)
        self.towers = TextTowers(self.worker)
        self.budget = MemoryBudget(
            shared_bytes(self.server_settings, start.nbytes), [self.cache, self.towers, self.models]
        )
        self.likenesses = Likenesses(self.budget, self._seen_alike)
        self.maps = KeptMaps()
        # What each was made of; as long as the analysis.
        self.origins: WeakKeyDictionary[Analysis, Origin] = WeakKeyDictionary()
        # Maps that take long, studies of many passes, and videos.
        self.long, self.studies, self.films = FairLock(), FairLock(), FairLock()
        self.own_models = OwnModels()
        self.pictures = Pictures()
        self.explorer_files = ExplorerFiles(self.uploaded, self.budget)

    def model(self, choice: ModelChoice, report: Callable[[DownloadProgress], None] | None = None) -> Model:
        """The model that a visitor chose, opened where it is not in memory.

        It runs where the model of the start does, and in the same precision.

        Raises:
            CheckpointError: it cannot be opened, or may not be.
        """
        if choice == DEFAULT_MODEL:
            return self.start
        if choice.step is not None:
            run, step = self.model(choice.run, report), choice.step
            return self.models.get(choice, lambda: self._like_the_first(self._step(run, step)))
        if self.server_settings.models == "start" or (
            self.server_settings.models == "menu" and choice.source not in (*BUNDLED, *ZOO)
        ):
            raise CheckpointError(
                f"{choice.source or 'a file'}: this server opens only {MODELS[self.server_settings.models]}"
            )
        return self.models.get(choice, lambda: self._like_the_first(self._opened(choice, report)))

    def _step(self, run: Model, step: int) -> Model:
        return snapshot_of(
            run,
            step,
            lambda path, name: isolation.open_snapshot(self.worker, path, name, self.server_settings.model_bytes),
        )

    def _room(self, nbytes: int) -> AbstractContextManager[None]:
        # What a file is expanded to is held to the same bound.
        return self.budget.share(min(nbytes, 2 * self.server_settings.model_bytes), "opening this checkpoint")

    def _opened(self, choice: ModelChoice, report: Callable[[DownloadProgress], None] | None) -> Model:
        return open_choice(
            choice, report, worker=self.worker, max_bytes=self.server_settings.model_bytes, room=self._room
        )

    def _like_the_first(self, model: Model) -> Model:
        first = self.start.network
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == first.precision)
        require_vit(model.network, model.name).to(first.device).set_precision(precision)
        return model

    def choice(self, name: str, step: int | None = None) -> ModelChoice:
        """The model that a state calls so.

        Raises:
            CheckpointError: a visitor's own checkpoint is not kept any more.
        """
        if name.startswith("own:"):
            return self.own_models.get(name).choice._replace(step=step)
        return DEFAULT_MODEL._replace(step=step) if name in ("", self.start.name) else ModelChoice(name, step=step)

    def analyze(
        self,
        model: Model,
        upload: Upload,
        settings: InputSettings | None = None,
        report: Report | None = None,
        choice: ModelChoice = DEFAULT_MODEL,
    ) -> tuple[str, Analysis]:
        """Run a model when it is this one's turn; returns the id under which the analysis is kept.

        Args:
            model, upload, settings: what is analysed, and how; an example that is kept is not run again.
            report: receives how far it is; an exception that it raises ends it.
            choice: by which the model was opened.

        Raises:
            ImageError: the upload cannot be opened, or the model cannot see it so; the message names it as the user
                does.
            ConfigError: there is no such resolution.
            LimitError: the analysis would need too much memory.
        """
        settings, report, example = settings or InputSettings(), report or unheard, example_of(upload)
        # The examples are nobody's own, and every page begins with one.
        shared = None if example is None else (choice, example, settings)
        kept = self.cache.find(shared)
        if kept is not None and kept[1].model is model:
            return kept
        encoder, prepared, size, is_large = self._prepared(model, upload, settings, waiting(report))
        with (self.large if is_large else self.small).turn(waiting(report)):
            key, analysis = self._analyzed(encoder, prepared, report, shared)
        self.origins[analysis] = Origin(choice, upload, size, settings, encoder.resolution)
        return key, analysis

    def cost_of(
        self, model: Model, upload: Upload, fit: str | None, resolution: int | None
    ) -> tuple[Cost, tuple[int, int]]:
        """What an analysis would take, and the width and height of the picture.

        Raises:
            ImageError, ConfigError: as :meth:`analyze`.
        """
        with self.uploaded.opened(upload) as picture:
            return Encoder(model, fit, resolution).cost(picture), picture.size

    def seen_share(
        self, model: Model, upload: Upload, settings: InputSettings, waiting: Callable[[int], None] | None = None
    ) -> float:
        """How much of a picture a model sees, of its area.

        Raises:
            ImageError, ConfigError, LimitError: as :meth:`analyze`.
        """
        geometry = self._prepared(model, upload, settings, waiting)[1].geometry
        left, top, right, bottom = geometry.box
        return (right - left) * (bottom - top) / (geometry.image_width * geometry.image_height)

    def _prepared(
        self, model: Model, upload: Upload, settings: InputSettings, waiting: Callable[[int], None] | None
    ) -> tuple[Encoder, PreparedImage, tuple[int, int], bool]:
        """A picture as the model's input, its size, and whether its analysis is a large one."""
        with self.uploaded.opened(upload, waiting) as picture:
            pixels, most = settings.pixels(model, picture.size), self.server_settings.analysis_bytes
            encoder = Encoder(model, settings.fit, pixels, max_bytes=most, forward=self.forward)
            is_large = encoder.cost(picture).flops > LARGE_FLOPS
            encoder.check(picture)
            patch = model.network.config.patch_height, model.network.config.patch_width
            # Maps do not depend on it, and every redraw and the cache then cost what the screen needs.
            prepared = picture.prepare(encoder.preprocessing, *patch, settings.fit, CANVAS_SIDE)
            return encoder, prepared, picture.size, is_large

    def _analyzed(
        self, encoder: Encoder, prepared: PreparedImage, report: Report, shared: Hashable
    ) -> tuple[str, Analysis]:
        def running(state: Progress) -> None:
            report(Step("Analysing, layer by layer", state.done, state.total))

        geometry = prepared.geometry
        needed = encoder.cost_at(geometry.input_height, geometry.input_width)
        with self.budget.share(needed.nbytes + CANVAS_BYTES, "this analysis", waiting_for_memory(report)):
            running(Progress(0, encoder.model.network.config.depth))
            [analysis] = encoder.encode([prepared], running)
            return self.cache.put(analysis, shared), analysis

    def cached(self, uid: object) -> Analysis:
        """The analysis of an id.

        Raises:
            ExpiredError: it is not kept, or never was.
            MethodError: this is no id.
        """
        if not isinstance(uid, str):
            raise MethodError(f"uid = {quote(uid)}: expected the id of an analysis")
        found = self.cache.get(uid)
        if found is None:
            raise ExpiredError
        return found

    def file(self, key: str, name: str, folder: str) -> Path:
        """What the explorer asks for of an analysis, written into a folder once.

        Raises:
            ExpiredError: the analysis is not kept.
            QueryError: there is no such file.
            ImageError: the picture is not kept any more.
            LimitError: there is no room for it.
        """
        analysis = self.cached(key)
        origin = self.origins[analysis]
        about = {
            "source": self.source(origin.choice, analysis.model),
            "name": origin.upload.name,
            "fit": origin.settings.fit or analysis.model.preprocessing.fit,
            "resolution": origin.resolution,
        }
        return self.explorer_files.file(analysis, name, folder, origin.upload, about)

    def source(self, choice: ModelChoice, model: Model) -> str:
        """A model as :func:`vitviz.load` takes it; of a visitor's own checkpoint, the name of its file."""
        if choice.run == DEFAULT_MODEL:
            return self.start.name
        is_series = model.snapshots is not None and len(choice.weight_files) > 1
        return SERIES if is_series else choice.source or choice.largest_file

    def is_quick(self, analysis: Analysis, method: Method) -> bool:
        """Whether a map is soon there, and needs the trace alone."""
        return method.requires == "trace" and not method.reports and rolls(analysis.trace)

    def lock(self, analysis: Analysis, method: Method) -> FairLock:
        """Where a map waits for its turn."""
        if method.reports:
            return self.long
        return self.small if method.requires == "trace" else self.pass_lock(analysis, GRADIENT_PASSES)

    @contextmanager
    def turn(self, lock: FairLock, needed: int, name: str, report: Report) -> Iterator[None]:
        """Wait for a turn and then for memory, and have both.

        Args:
            lock: whose turn it is.
            needed: bytes.
            name: of what needs them, such as ``"this probe"``.
            report: receives what it waits for; an exception that it raises ends it.

        Raises:
            LimitError: there is no room for it.
        """
        with lock.turn(waiting(report)), self.budget.share(needed, name, waiting_for_memory(report)):
            yield

    def pass_lock(self, analysis: Analysis, passes: int = 1) -> FairLock:
        """Where so many forward passes wait for their turn."""
        needed = cost_of(analysis.model.network.config, analysis.trace.layout).flops
        return self.large if passes * needed > LARGE_FLOPS else self.small

    def heatmap(
        self,
        analysis: Analysis,
        method: Method,
        parameters: Mapping[str, Any],
        report: Callable[[Progress], None] | None = None,
        waiting: Callable[[], None] | None = None,
    ) -> Heatmap:
        """A map, which is kept with the last ones.

        Args:
            analysis: of the picture.
            method, parameters: as :func:`vitviz.ui.arguments.parameters_of` gives them.
            report: as :meth:`vitviz.Analysis.map` takes it.
            waiting: called now and then while others have the memory; an exception that it raises ends it.

        Raises:
            MethodError: the parameters contradict each other, or the model cannot serve the method.
            LimitError: there is no room for it.
        """
        known = self.maps.get(analysis, method, parameters)
        if known is not None:
            return known
        given = dict(parameters)
        if "target" in given:
            given["target"] = self.target_of(analysis, given["target"], waiting)
        with self.budget.share(map_bytes(analysis, method.name), "this map", waiting):
            heatmap = analysis.map(method.name, report=report, **given)
        self.maps.put(analysis, method, parameters, heatmap)
        return heatmap

    def target_of(
        self, analysis: Analysis, request: TargetRequest | None, asking: Callable[[], None] | None = None
    ) -> TargetChoice:
        """What a map or a measure is to be about; a picture to be like is run through the model first.

        Args:
            analysis: of the picture.
            request: as :func:`vitviz.ui.arguments.parameter_of` gives it.
            asking: called now and then while others have their turn or the memory; an exception that it raises ends it.

        Raises:
            VitvizError: as :meth:`target`, or the other picture cannot be opened, or has no such patch.
        """
        if isinstance(request, LikenessRequest):
            return self.likenesses.target(analysis, request, asking)
        return self.target(analysis.model, request, asking)

    def target(
        self,
        model: Model,
        request: int | str | ClassDifference | TextPrompt | None,
        asking: Callable[[], None] | None = None,
    ) -> int | str | ClassDifference | Target | None:
        """Classes or a text that a map is about.

        Raises:
            MethodError: the model has no classes, and no other target is given.
            CheckpointError, LimitError: what reads a text cannot be opened.
        """
        if isinstance(request, TextPrompt):
            return self.towers.target(
                model, request.text, lambda needed: self.budget.share(needed, "reading texts", asking), asking
            )
        if not model.labels:
            raise MethodError(NO_WORDS if reads_text(model) else NO_TARGET)
        return request

    def _seen_alike(
        self, analysis: Analysis, picture: str | Upload, waiting: Callable[[int], None] | None
    ) -> tuple[PreparedImage, str]:
        """Another picture, brought to the model's input as that of an analysis was, and its name."""
        upload = self.pictures.upload(picture) if isinstance(picture, str) else picture
        return self._prepared(analysis.model, upload, self.origins[analysis].settings, waiting)[1], upload.name
