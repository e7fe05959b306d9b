"""The service behind the page and the API: models, analyses of all visitors, and their maps."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.costs import cost_of
from vitviz.analysis.encoder import Encoder
from vitviz.analysis.likeness import likeness_target
from vitviz.analysis.recomputable import drop_recomputable, kept_bytes
from vitviz.attribution import Method
from vitviz.attribution.requests import LikenessRequest, TargetRequest, TextPrompt
from vitviz.errors.kinds import LimitError, MethodError
from vitviz.errors.messages import quote
from vitviz.images.isolated_pictures import OpenPicture
from vitviz.images.preprocessing import Fit, PreparedImage
from vitviz.models.targets import Target, TargetChoice
from vitviz.progress import Progress
from vitviz.system.strangers import LARGE_FLOPS, LONG_PLACES, MAX_SHARE, QUICK_PLACES, RUN_SECONDS, SHORT_PLACES
from vitviz.ui.facts import MIN_VISIBLE_SHARE
from vitviz.ui.holdings import Bound, Holdings
from vitviz.ui.hosting import forward
from vitviz.ui.models import ModelChoice, Origin, source_of
from vitviz.ui.normalize import resolution_step
from vitviz.ui.packs import FEATURES
from vitviz.ui.pictures import Pictures, Upload, example_of
from vitviz.ui.progress_reports import ExpiredError, ProgressReport, Report, no_report, under_title
from vitviz.ui.served_models import Models
from vitviz.ui.server.explorer_files import CANVAS_SIDE, ExplorerFiles
from vitviz.ui.server.line import Line, current_visitor
from vitviz.ui.server.rule import UnderWay
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.server.uploaded_pictures import UploadedPictures
from vitviz.ui.server.visitor_files import Folder
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import Model
from vitviz.worker import Worker, shared_worker

Result = TypeVar("Result")
ModelInput = tuple[Encoder, PreparedImage, tuple[int, int], int, float]
"""A picture as a model's input, its size, the operations of its analysis, and :attr:`Origin.hidden_share`."""
# A backward pass costs as much as two forward passes; of twelve, the layer follows that finds places again best.
GRADIENT_PASSES, SCORED_PASSES = 3, 13
NO_WORDS = "This model reads texts, not classes: write what the map is about, or choose a picture to compare with"
NO_TARGET = "This model has no classifier, so no map can be about a class: choose a picture to compare with"


class AnalysisService:
    """Models shared by everybody, and each visitor's analyses under ids of their own.

    Args:
        start: the model with which the page opens.
        server_settings: limits of uploads and memory.
        worker: opens what visitors send; the worker of this process by default.
        others: further models of the operator, each as :func:`vitviz.load` takes it.

    Raises:
        VitvizError: a model cannot be opened.
    """

    def __init__(
        self,
        start: Model,
        server_settings: ServerSettings | None = None,
        worker: Worker | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self.server_settings = server_settings or ServerSettings()
        self.models = Models(start, self.server_settings, others, self._forget_model)
        self.worker = worker or shared_worker()
        # ZeroGPU must see the decorated functions before launch.
        self.forward = forward()
        self.memory = Bound(self.server_settings.cache_bytes)
        self.cache = Holdings[Analysis](
            self.memory, "analyses", kept_bytes, lambda analysis: self._latest.drop(id(analysis))
        )
        # Ids of analyses by what each visitor asked for; those of examples are nobody's own.
        self._uids = Holdings[str](self.memory, "names of analyses")
        # Those that may keep what they can compute again.
        self._latest = Holdings[Analysis](
            self.memory,
            "gradients and matrices of analyses",
            lambda analysis: analysis.nbytes - kept_bytes(analysis),
            drop_recomputable,
            keeps_newest=False,
        )
        # Model, picture and latest results of each analysis.
        self.origins: WeakKeyDictionary[Analysis, Origin] = WeakKeyDictionary()
        self.pictures = Pictures(self.memory)
        self.folder = Folder(self.server_settings.files_bytes, 3600 * self.server_settings.keep_hours)
        # What takes long waits apart, and what takes milliseconds waits for neither.
        self.short, self.long, self.quick = Line(SHORT_PLACES), Line(LONG_PLACES, is_long=True), Line(QUICK_PLACES)
        self.uploaded = UploadedPictures(
            self.worker, self.short, self.long, self.memory, self.server_settings.clip_limits
        )
        self.explorer_files = ExplorerFiles(self.uploaded, self.folder, self.long, self.quick)
        self.under_way = UnderWay()

    def share(self, is_shared: bool) -> None:
        """Decide whether strangers may come: then no model of theirs is opened, and their work ends after a while."""
        # A second thread saves small work little time, and takes a processor from the next, which comes soon.
        self.models.is_shared = self.short.has_even_shares = is_shared
        self.short.seconds = self.long.seconds = RUN_SECONDS if is_shared else None

    def _forget_model(self, model: Model) -> None:
        # Each of its analyses keeps it in memory.
        for holdings in (self.cache, self._latest):
            holdings.discard(lambda analysis: analysis.model is model)

    async def analyze(
        self,
        model: Model,
        upload: Upload,
        fit: Fit | None = None,
        resolution: int | str | None = None,
        *,
        report: Report = no_report,
        choice: ModelChoice | None = None,
        max_flops: float = math.inf,
        show_whole: bool = False,
    ) -> tuple[str, Analysis]:
        """Run a model on a picture, in this visitor's turn; returns the analysis and its id in the cache.

        It runs once for each visitor, and once for all of an example, while the analysis is kept.

        Args:
            model, upload, fit, resolution: what is analysed, and how.
            report: receives the progress.
            choice: with which the model was opened; that of the start by default.
            max_flops: of the forward pass.
            show_whole: whether the picture is shown in its own shape if the model's own crop hides most of it.

        Raises:
            ImageError: the upload cannot be opened or does not fit the model; the message has the visitor's name of it.
            ConfigError: the model cannot have this resolution.
            LimitError: the analysis would need too much memory or computation.
        """
        choice, example, visitor = choice or self.models.choice(""), example_of(upload), current_visitor()
        whole = show_whole and fit is None and model.preprocessing.fit == "crop"
        owner = visitor if example is None else example
        source = upload if example is None else upload._replace(path=Path(example))
        uid = self._uids.get((choice, source, owner, resolution, fit, whole))
        analysis = None if uid is None else self.cache.get(uid)
        if uid is not None and analysis is not None and analysis.model is model:
            return uid, analysis
        (encoder, prepared, size, _, hidden), analysis = await self._prepared(
            model, upload, fit, resolution, report, max_flops, whole, _encoded_if_small
        )
        if analysis is None:
            analysis = await self.long.run(partial(_encoded, encoder, prepared), report)
        uid = secrets.token_urlsafe(16)
        used_fit = encoder.fit or model.preprocessing.fit
        self.origins[analysis] = Origin(choice, upload, size, used_fit, resolution, encoder.resolution, hidden)
        # A state names the fit that was chosen for it.
        for key in {(fit, whole), (used_fit, False)}:
            self._uids.put((choice, source, owner, resolution, *key), uid, visitor)
        self.cache.put(uid, analysis, visitor)
        return uid, analysis

    async def _prepared(
        self,
        model: Model,
        upload: Upload,
        fit: Fit | None,
        resolution: int | str | None,
        report: Report,
        max_flops: float = math.inf,
        show_whole: bool = False,
        then: Callable[[ModelInput, Report], Analysis | None] = lambda *_: None,
    ) -> tuple[ModelInput, Analysis | None]:
        """The picture as the model's input, and what is made of it in the same turn.

        It is decoded once: what the crop would hide follows from its size.
        """

        def model_input(picture: OpenPicture, report: Report) -> tuple[ModelInput, Analysis | None]:
            pixels, step, max_bytes = resolution, resolution_step(model), self.server_settings.analysis_bytes
            if isinstance(pixels, str):
                pixels = max(step, min(picture.size) // step * step)
            encoder = Encoder(model, fit, pixels, max_bytes=max_bytes, forward=self.forward)
            patch = model.network.config.patch_height, model.network.config.patch_width
            share, hidden = encoder.preprocessing.visible_share(picture, *patch) if show_whole else 1.0, 0.0
            if share < MIN_VISIBLE_SHARE:
                encoder, hidden = replace(encoder, fit="native"), 1 - share
            cost = encoder.cost(picture)
            if cost.flops > max_flops:
                raise LimitError(
                    f"image of {picture.width}×{picture.height} pixels: {cost.tokens:,} tokens take {cost.flops:.1e} "
                    f"operations; expected at most {max_flops:.1e}, by a lower resolution"
                )
            most = int(MAX_SHARE * self.memory.limit) if self.models.is_shared else cost.trace_bytes
            if cost.trace_bytes > most:
                raise LimitError(
                    f"image of {picture.width}×{picture.height} pixels: an analysis of {cost.tokens:,} tokens keeps "
                    f"{cost.trace_bytes:,} bytes; this server keeps at most {most:,}: choose a lower resolution"
                )
            if cost.nbytes > max_bytes:
                raise LimitError(
                    f"image of {picture.width}×{picture.height} pixels: {cost.tokens:,} tokens need about "
                    f"{cost.nbytes:,} bytes; this app gives a picture {max_bytes:,}: the largest resolution that fits "
                    f"is {encoder.largest_resolution(picture) or 'none'}"
                )
            # The canvas shows no more pixels; maps do not depend on them.
            prepared = picture.model_input(encoder.preprocessing, *patch, encoder.fit, CANVAS_SIDE)
            made = encoder, prepared, picture.size, cost.flops, hidden
            analysis = then(made, report)
            # The child has reduced it meanwhile.
            picture.fill(prepared.image)
            return made, analysis

        return await self.uploaded.opened(upload, model_input, report)

    def cached(self, uid: object) -> Analysis:
        """The analysis of an id.

        Raises:
            ExpiredError: the cache has none of this id.
        """
        analysis = self.cache.get(uid) if isinstance(uid, str) else None
        if analysis is None:
            raise ExpiredError(f"id = {quote(uid)}: no analysis of this id, or not kept any more")
        origin = self.origins[analysis]
        for path in (origin.upload.path, *map(Path, origin.choice.files)):
            # What is in use is not old.
            self.folder.sizes.get(path.parent.name)
        return analysis

    async def file(self, uid: str, name: str) -> Path:
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
            "source": source_of(origin.choice, analysis.model),
            "name": origin.upload.name,
            "fit": origin.fit,
            "resolution": origin.pixels,
        }
        return await self.explorer_files.file(
            analysis, name, origin.upload, source, self.pass_line(analysis, SCORED_PASSES if name == FEATURES else 1)
        )

    def line(self, analysis: Analysis, method: Method) -> Line:
        """The line of a method's maps."""
        if method.reports:
            return self.long
        return self.short if method.requires == "trace" else self.pass_line(analysis, GRADIENT_PASSES)

    def pass_line(self, analysis: Analysis, passes: int = 1) -> Line:
        """The line of work of this many forward passes."""
        flops = cost_of(analysis.model.network.config, analysis.trace.layout).flops
        return self.long if passes * flops > LARGE_FLOPS else self.short

    async def run(self, line: Line, uid: object, work: Callable[[Analysis, Report], Result], report: Report) -> Result:
        """What work on an analysis returns, which it gets in its turn: what waits keeps none in memory."""

        def use(report: Report) -> Result:
            analysis = self.cached(uid)
            try:
                return work(analysis, report)
            finally:
                # It may hold gradients now, in the place of one that was used earlier.
                if uid in self.cache:
                    self._latest.put(id(analysis), analysis, current_visitor())

        return await line.run(use, report)

    def known_heatmap(self, uid: object, method: Method, parameters: Mapping[str, Any]) -> Heatmap | None:
        """One of the latest maps of an analysis; None if it is none of them."""
        return self.origins[self.cached(uid)].maps.get(map_key(method, parameters))

    async def heatmap(
        self, uid: object, method: Method, parameters: Mapping[str, Any], report: Report = no_report
    ) -> tuple[Analysis, Heatmap]:
        """An analysis and a map of it, computed in this visitor's turn or among the latest.

        Args:
            uid: id of the analysis.
            method, parameters: as :func:`vitviz.ui.normalize.parameters_of` returns them.
            report: receives the progress.

        Raises:
            MethodError: the parameters contradict each other, or the model cannot serve the method.
            LimitError: there is not enough memory.
        """
        key = map_key(method, parameters)
        if (heatmap := self.known_heatmap(uid, method, parameters)) is not None:
            return self.cached(uid), heatmap
        arguments = dict(parameters)
        if "target" in arguments:
            arguments["target"] = await self.target_of(uid, arguments["target"], report)

        def compute(analysis: Analysis, report: Report) -> tuple[Analysis, Heatmap]:
            report(ProgressReport(method.title))
            heatmap = analysis.map(method.name, report=under_title(method.title, report), **arguments)
            self.origins[analysis].maps.put(key, heatmap)
            return analysis, heatmap

        return await self.run(self.line(self.cached(uid), method), uid, compute, report)

    async def target_of(self, uid: object, request: TargetRequest | None, report: Report = no_report) -> TargetChoice:
        """The target of a map or a measure; another picture is run through the model first.

        Args:
            uid: id of the analysis.
            request: as :func:`vitviz.attribution.requests.target_of` returns it.
            report: receives the progress.

        Raises:
            MethodError: the model has no classes, and the target is neither a text nor likeness.
            CheckpointError, LimitError: the text tower cannot be opened.
            ImageError, QueryError: the other picture cannot be opened, or has no such patch.
        """
        if isinstance(request, LikenessRequest):
            return await self._likeness(uid, request, report)
        model = self.cached(uid).model
        if isinstance(request, TextPrompt):
            report(ProgressReport("Reading the text"))
            return await self.short.run(lambda _: model.text(request.text), report)
        if not model.labels:
            raise MethodError(NO_WORDS if model.reads_text else NO_TARGET)
        return request

    async def _likeness(self, uid: object, request: LikenessRequest, report: Report) -> Target:
        """Likeness to a picture, prepared as the picture of the analysis was, or to a patch of either."""
        model, origin = self.cached(uid).model, self.origins[self.cached(uid)]
        if (target := origin.likenesses.get(request)) is not None:
            return target
        other, name = None, "this picture"
        if request.picture is not None:
            report(ProgressReport("Analysing the other picture"))
            upload = self.pictures.upload(request.picture) if isinstance(request.picture, str) else request.picture
            (_, other, *_), _ = await self._prepared(model, upload, origin.fit, origin.resolution, report)
            name = upload.name

        def compute(analysis: Analysis, report: Report) -> Target:
            target = likeness_target(analysis.model.network, other or analysis.prepared, request.patch, name)
            self.origins[analysis].likenesses.put(request, target)
            return target

        return await self.run(self.pass_line(self.cached(uid)), uid, compute, report)


def _encoded_if_small(model_input: ModelInput, report: Report) -> Analysis | None:
    """The analysis, unless it shall wait with long work. A second turn would wait for all visitors once more."""
    encoder, prepared, _, flops, _ = model_input
    return None if flops > LARGE_FLOPS else _encoded(encoder, prepared, report)


def _encoded(encoder: Encoder, prepared: PreparedImage, report: Report) -> Analysis:
    report_layer = under_title("Analysing, layer by layer", report)
    report_layer(Progress(0, encoder.model.network.config.depth))
    [analysis] = encoder.encode([prepared], report_layer)
    # It is kept, and what the page is told needs it: seconds of a large model, in which no other visitor shall wait.
    analysis.far_look()
    return analysis


def map_key(method: Method, parameters: Mapping[str, Any]) -> str:
    """The key of a map among the latest of its analysis, for parameters as :func:`parameters_of` returns them."""
    return repr((method.name, sorted(parameters.items())))
