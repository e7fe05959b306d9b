"""The service behind the page and the API: models, analyses of all visitors, and their maps."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from vitviz import isolation
from vitviz.analysis.analysis import Analysis
from vitviz.analysis.cache import AnalysisCache, ModelCache
from vitviz.analysis.costs import Cost, cost_of
from vitviz.analysis.encoder import Encoder
from vitviz.analysis.likeness import likeness_target
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import Method
from vitviz.attribution.requests import LikenessRequest, TargetRequest, TextPrompt
from vitviz.errors.kinds import CheckpointError, MethodError
from vitviz.errors.messages import quote
from vitviz.images.preprocessing import Fit, PreparedImage
from vitviz.isolation import Worker, shared_worker
from vitviz.models.require import require_vit
from vitviz.models.targets import ClassDifference, Target, TargetChoice
from vitviz.progress import Progress
from vitviz.ui.hosting import forward
from vitviz.ui.inputs import InputSettings, Origin
from vitviz.ui.models import DEFAULT_MODEL, SERIES, ModelChoice, OwnModels, open_choice
from vitviz.ui.pictures import Pictures, Upload, example_of
from vitviz.ui.progress_reports import ExpiredError, ProgressReport, Report, no_report, report_memory, report_queue
from vitviz.ui.server.budget import MemoryBudget, shared_bytes
from vitviz.ui.server.decoding import UploadedPictures
from vitviz.ui.server.estimates import forward_bytes, map_bytes
from vitviz.ui.server.explorer_files import ExplorerFiles
from vitviz.ui.server.fair_lock import FairLock
from vitviz.ui.server.files import Folder
from vitviz.ui.server.recent import RecentResults
from vitviz.ui.server.settings import MODELS, ServerSettings
from vitviz.ui.server.text_towers import TextTowers
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import BUNDLED, ZOO, Model, snapshot_of
from vitviz.weights.text_tower import reads_text

CANVAS_SIDE = 900
CANVAS_BYTES = 3 * CANVAS_SIDE**2
# Larger analyses queue separately: about a second of two cores.
LARGE_FLOPS = 150e9
# A backward pass costs as much as two forward passes.
GRADIENT_PASSES = 3
# Kept of each analysis: a map is a number per token, a likeness target the features of one token.
MAX_MAPS, MAX_LIKENESSES = 16, 8
THIS_PICTURE = "this picture"
NO_WORDS = (
    "This model has no classes, but reads texts: write what the map is about, or choose a picture to compare with"
)
NO_TARGET = "This model has no classifier, so no map can be about a class: choose a picture to compare with"


class AnalysisService:
    """Models shared by everybody, and each visitor's analyses under ids of their own.

    Args:
        start: the model with which the page opens.
        server_settings: limits of uploads, memory and models.
        worker: opens what visitors send; the worker of this process by default.
    """

    def __init__(
        self, start: Model, server_settings: ServerSettings | None = None, worker: Worker | None = None
    ) -> None:
        self.start, self.server_settings = start, server_settings or ServerSettings()
        self.cache = AnalysisCache(self.server_settings.cache_bytes)
        self.models = ModelCache(self.server_settings.model_bytes, on_evict=self.cache.drop)
        # ZeroGPU must see the decorated functions before launch.
        self.forward = forward()
        self.worker = worker or shared_worker()
        self.folder = Folder(self.server_settings.files_bytes, self.server_settings.keep_seconds)
        self.uploaded = UploadedPictures(self.worker, self.folder, self.server_settings.clip_limits)
        self.towers = TextTowers(self.worker)
        self.budget = MemoryBudget(
            shared_bytes(self.server_settings, start.nbytes), [self.cache, self.towers, self.models]
        )
        self.maps: RecentResults[Heatmap] = RecentResults(MAX_MAPS)
        self.likenesses: RecentResults[Target] = RecentResults(MAX_LIKENESSES)
        # Model, picture and settings of each analysis.
        self.origins: WeakKeyDictionary[Analysis, Origin] = WeakKeyDictionary()
        # One queue for each kind of work, so that long work does not hold up short work.
        self.small, self.large, self.long = FairLock(), FairLock(), FairLock()
        self.studies, self.films = FairLock(), FairLock()
        # A request that waits here may hold another lock; whoever holds this one waits for no other.
        self._likeness_lock = FairLock()
        self.own_models = OwnModels()
        self.pictures = Pictures()
        self.explorer_files = ExplorerFiles(self.uploaded, self.budget, self.folder)

    def model(self, choice: ModelChoice, report: Report | None = None) -> Model:
        """The model that a visitor chose, opened unless it is in memory.

        It gets the device and the precision of the default model.

        Raises:
            CheckpointError: it cannot be opened, or the settings do not allow it.
        """
        if choice == DEFAULT_MODEL:
            return self.start
        if choice.step is not None:
            run, step, max_bytes = self.model(choice.run, report), choice.step, self.server_settings.model_bytes
            snapshot = partial(isolation.open_snapshot, self.worker, max_bytes=max_bytes)
            return self.models.get(choice, lambda: self._like_start(snapshot_of(run, step, snapshot)))
        legal = self.server_settings.models
        if legal == "start" or (legal == "menu" and choice.source not in (*BUNDLED, *ZOO)):
            raise CheckpointError(f"{choice.source or 'a file'}: this server opens only {MODELS[legal]}")
        return self.models.get(choice, lambda: self._like_start(self._opened(choice, report)))

    def _opened(self, choice: ModelChoice, report: Report | None) -> Model:
        max_bytes = self.server_settings.model_bytes

        def room(nbytes: int) -> AbstractContextManager[None]:
            # A compressed file expands to no more than this.
            return self.budget.share(min(nbytes, 2 * max_bytes), "opening this checkpoint")

        return open_choice(choice, report, worker=self.worker, max_bytes=max_bytes, room=room)

    def _like_start(self, model: Model) -> Model:
        first = self.start.network
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == first.precision)
        require_vit(model.network, model.name).to(first.device).set_precision(precision)
        return model

    def choice(self, name: str, step: int | None = None) -> ModelChoice:
        """The model choice of a name in a state.

        Raises:
            CheckpointError: a visitor's own checkpoint is no longer kept.
        """
        if name.startswith("own:"):
            return self.own_models.get(name).choice._replace(step=step)
        return DEFAULT_MODEL._replace(step=step) if name in ("", self.start.name) else ModelChoice(name, step=step)

    def analyze(
        self,
        model: Model,
        upload: Upload,
        settings: InputSettings | None = None,
        report: Report = no_report,
        choice: ModelChoice = DEFAULT_MODEL,
    ) -> tuple[str, Analysis]:
        """Run a model on a picture, in this visitor's turn; returns the analysis and its id in the cache.

        Args:
            model, upload, settings: what is analysed, and how; visitors share the analyses of examples.
            report: receives the progress.
            choice: with which the model was opened.

        Raises:
            ImageError: the upload cannot be opened or does not fit the model; the message has the visitor's name of it.
            ConfigError: the model cannot have this resolution.
            LimitError: the analysis would need too much memory.
        """
        settings, example = settings or InputSettings(), example_of(upload)
        shared_key = None if example is None else (choice, example, upload.white, upload.color_profile, settings)
        cached = self.cache.find(shared_key)
        if cached is not None and cached[1].model is model:
            return cached
        encoder, prepared, size, is_large = self._prepared(model, upload, settings, report)
        with (self.large if is_large else self.small).turn(report_queue(report)):
            key, analysis = self._analyzed(encoder, prepared, report, shared_key)
        self.origins[analysis] = Origin(choice, upload, size, settings, encoder.resolution)
        return key, analysis

    def cost_of(
        self, model: Model, upload: Upload, fit: Fit | None, resolution: int | None
    ) -> tuple[Cost, tuple[int, int]]:
        """The cost of an analysis, and width and height of the picture.

        Raises:
            ImageError, ConfigError: as :meth:`analyze`.
        """
        with self.uploaded.opened(upload) as picture:
            return Encoder(model, fit, resolution).cost(picture), picture.size

    def visible_share(self, model: Model, upload: Upload, settings: InputSettings, report: Report) -> float:
        """The share of a picture's area that the model sees, in [0, 1].

        Raises:
            ImageError, ConfigError, LimitError: as :meth:`analyze`.
        """
        geometry = self._prepared(model, upload, settings, report)[1].geometry
        left, top, right, bottom = geometry.box
        return (right - left) * (bottom - top) / (geometry.image_width * geometry.image_height)

    def _prepared(
        self, model: Model, upload: Upload, settings: InputSettings, report: Report
    ) -> tuple[Encoder, PreparedImage, tuple[int, int], bool]:
        """The picture as the model's input, its size, and whether its analysis counts as large."""
        with self.uploaded.opened(upload, report_queue(report)) as picture:
            pixels, max_bytes = settings.pixels(model, picture.size), self.server_settings.analysis_bytes
            encoder = Encoder(model, settings.fit, pixels, max_bytes=max_bytes, forward=self.forward)
            is_large = encoder.cost(picture).flops > LARGE_FLOPS
            encoder.check(picture)
            patch = model.network.config.patch_height, model.network.config.patch_width
            # The canvas shows no more pixels; maps do not depend on them.
            prepared = picture.prepare(encoder.preprocessing, *patch, settings.fit, CANVAS_SIDE)
            return encoder, prepared, picture.size, is_large

    def _analyzed(
        self, encoder: Encoder, prepared: PreparedImage, report: Report, shared_key: Hashable
    ) -> tuple[str, Analysis]:
        def report_layer(progress: Progress) -> None:
            report(ProgressReport("Analysing, layer by layer", progress.done, progress.total))

        geometry = prepared.geometry
        cost = encoder.cost_at(geometry.input_height, geometry.input_width)
        with self.budget.share(cost.nbytes + CANVAS_BYTES, "this analysis", report_memory(report)):
            report_layer(Progress(0, encoder.model.network.config.depth))
            [analysis] = encoder.encode([prepared], report_layer)
            return self.cache.put(analysis, shared_key), analysis

    def cached(self, uid: object) -> Analysis:
        """The analysis of an id.

        Raises:
            ExpiredError: the cache has none of this id.
            MethodError: the id is no text.
        """
        if not isinstance(uid, str):
            raise MethodError(f"uid = {quote(uid)}: expected the id of an analysis")
        analysis = self.cache.get(uid)
        if analysis is None:
            raise ExpiredError
        self._note_use(self.origins.get(analysis))
        return analysis

    def _note_use(self, origin: Origin | None) -> None:
        """Keep the files of an analysis: what is in use is not old."""
        for path in () if origin is None else (origin.upload.path, *map(Path, origin.choice.files)):
            self.folder.find(path)

    def file(self, uid: str, name: str) -> Path:
        """A file of an analysis for the explorer, written once.

        Raises:
            ExpiredError: the analysis is no longer cached.
            QueryError: there is no such file.
            ImageError: the picture is no longer kept.
            LimitError: the disk or the memory is full.
        """
        analysis = self.cached(uid)
        origin = self.origins[analysis]
        source = {
            "source": self.source(origin.choice, analysis.model),
            "name": origin.upload.name,
            "fit": origin.settings.fit or analysis.model.preprocessing.fit,
            "resolution": origin.resolution,
        }
        return self.explorer_files.file(analysis, name, origin.upload, source)

    def source(self, choice: ModelChoice, model: Model) -> str:
        """The argument of :func:`vitviz.load` for a model; the file name of a visitor's own checkpoint."""
        if choice.run == DEFAULT_MODEL:
            return self.start.name
        is_series = model.snapshots is not None and len(choice.weight_files) > 1
        return SERIES if is_series else choice.source or choice.largest_file

    def lock(self, analysis: Analysis, method: Method) -> FairLock:
        """The queue of a method's maps."""
        if method.reports:
            return self.long
        return self.small if method.requires == "trace" else self.pass_lock(analysis, GRADIENT_PASSES)

    @contextmanager
    def turn(self, lock: FairLock, nbytes: int, purpose: str, report: Report) -> Iterator[None]:
        """Wait for a turn and then for memory, and hold both.

        Args:
            lock: the queue.
            nbytes: the memory.
            purpose: for the message, such as ``"this probe"``.
            report: receives how long the queue is.

        Raises:
            LimitError: the server never has this much memory.
        """
        with lock.turn(report_queue(report)), self.budget.share(nbytes, purpose, report_memory(report)):
            yield

    def pass_lock(self, analysis: Analysis, passes: int = 1) -> FairLock:
        """The queue for work of this many forward passes."""
        flops = cost_of(analysis.model.network.config, analysis.trace.layout).flops
        return self.large if passes * flops > LARGE_FLOPS else self.small

    def heatmap(
        self, analysis: Analysis, method: Method, parameters: Mapping[str, Any], report: Report = no_report
    ) -> Heatmap:
        """A map, computed or among the latest.

        Args:
            analysis: of the picture.
            method, parameters: as :func:`vitviz.ui.arguments.parameters_of` returns them.
            report: receives the progress.

        Raises:
            MethodError: the parameters contradict each other, or the model cannot serve the method.
            LimitError: the server never has this much memory.
        """
        heatmap = self.recent_map(analysis, method, parameters)
        if heatmap is not None:
            return heatmap

        def report_progress(progress: Progress) -> None:
            report(ProgressReport(method.title, progress.done, progress.total))

        arguments = dict(parameters)
        if "target" in arguments:
            arguments["target"] = self.target_of(analysis, arguments["target"], report)
        with self.budget.share(map_bytes(analysis, method.name), "this map", report_memory(report)):
            heatmap = analysis.map(method.name, report=report_progress, **arguments)
        self.maps.put(analysis, _map_key(method, parameters), heatmap)
        return heatmap

    def recent_map(self, analysis: Analysis, method: Method, parameters: Mapping[str, Any]) -> Heatmap | None:
        """A map that is among the latest of the analysis, or None."""
        return self.maps.get(analysis, _map_key(method, parameters))

    def target_of(self, analysis: Analysis, request: TargetRequest | None, report: Report = no_report) -> TargetChoice:
        """The target of a map or a measure; another picture is run through the model first.

        Args:
            analysis: of the picture.
            request: as :func:`vitviz.attribution.requests.target_of` returns it.
            report: receives how long the queue is.

        Raises:
            VitvizError: as :meth:`target`; or the other picture cannot be opened, or has no such patch.
        """
        if isinstance(request, LikenessRequest):
            return self._likeness(analysis, request, report)
        return self.target(analysis.model, request, report)

    def target(
        self, model: Model, request: int | str | ClassDifference | TextPrompt | None, report: Report = no_report
    ) -> int | str | ClassDifference | Target | None:
        """Classes or a text as the target of a map.

        Raises:
            MethodError: the model has no classes, and the target is no text.
            CheckpointError, LimitError: the text tower cannot be opened.
        """
        if isinstance(request, TextPrompt):
            waiting = report_memory(report)
            return self.towers.target(
                model, request.text, lambda nbytes: self.budget.share(nbytes, "reading texts", waiting), waiting
            )
        if not model.labels:
            raise MethodError(NO_WORDS if reads_text(model) else NO_TARGET)
        return request

    def _likeness(self, analysis: Analysis, request: LikenessRequest, report: Report) -> Target:
        """Likeness to a picture, prepared as the picture of the analysis was, or to a patch of either."""
        target = self.likenesses.get(analysis, request)
        if target is not None:
            return target
        prepared, name = analysis.prepared, THIS_PICTURE
        if request.picture is not None:
            upload = self.pictures.upload(request.picture) if isinstance(request.picture, str) else request.picture
            prepared, name = (
                self._prepared(analysis.model, upload, self.origins[analysis].settings, report)[1],
                upload.name,
            )
        network = analysis.model.network
        nbytes = forward_bytes(network.config, network.config.layout(*prepared.pixels.shape[-2:]), 1)
        with self.turn(self._likeness_lock, nbytes, "this likeness", report):
            target = likeness_target(network, prepared, request.patch, name)
        self.likenesses.put(analysis, request, target)
        return target


def _map_key(method: Method, parameters: Mapping[str, Any]) -> str:
    return repr((method.name, sorted(parameters.items())))
