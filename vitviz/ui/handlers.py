"""Answers to the page's requests; each request is JSON of any kind until it is checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.attribution.json_values import fields, word
from vitviz.errors.arguments import boolean
from vitviz.errors.kinds import CheckpointError, ImageError, MethodError, VitvizError
from vitviz.errors.messages import legible, quote
from vitviz.images.isolated_pictures import OpenPicture
from vitviz.ui import studies
from vitviz.ui.code import ViewSource, as_python
from vitviz.ui.device import DevicePages
from vitviz.ui.facts import analysis_facts, assumed_sentence, examples, model_facts, settings
from vitviz.ui.films import film
from vitviz.ui.first_view import opening_view
from vitviz.ui.image_bytes import as_base64, as_webp
from vitviz.ui.links import print_link, read_link
from vitviz.ui.models import ModelChoice, title_of
from vitviz.ui.normalize import bounds_of, normalize, normalize_input, parameters_of, sentence
from vitviz.ui.packs import computed_by, map_file, rows_pack
from vitviz.ui.pictures import MAX_NAME_CHARS, Upload, upload_of
from vitviz.ui.progress_reports import ProgressReport, Report, no_report
from vitviz.ui.server.explorer_files import CANVAS_SIDE, SEEN
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import MISSING_MODEL, PageState, View
from vitviz.video.clips import is_clip
from vitviz.weights import ZOO, Model
from vitviz.weights.formats.names import is_weight_file
from vitviz.weights.overrides import parse_overrides, split_overrides
from vitviz.weights.suggestions import HUB, PACKAGES

MAX_FILES, MAX_OVERRIDE_CHARS = 64, 20_000
OPENING = ProgressReport("Opening the model")
HIDDEN = (
    "The crop that this model was trained with hides {:.0%} of this picture, which is shown whole, in its own shape. "
    "To crop it, choose “crop (centre)” under “Your picture”."
)
ALONE = "{} The picture alone is shown: for a map, choose another model under “Model”."
# What replaces the fields of a link that cannot be opened: the first values of the page. No other model replaces its
# model.
_PICTURE = {"picture": View().picture, "frame": None, "white": None, "color_profile": None}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "picture": _PICTURE,
    "input": {**_PICTURE, "fit": None, "resolution": None},
}


class Handlers:
    """Answers the requests of pages.

    Args:
        service: models, analyses and maps.
        device_models: names in states of the models that visitors may run on their own device.
    """

    def __init__(self, service: AnalysisService, device_models: tuple[str, ...] = ()) -> None:
        self.service = service
        self.device = DevicePages(service, device_models)
        # What answers a run, by the kind of the request.
        self.kinds: dict[str, Callable[[Mapping[str, Any], Report], Awaitable[dict[str, Any]]]] = {
            "open": self.open_link,
            "analyze": self.change_view,
            "picture": self.picture,
            "map": self.map_slowly,
            "compare": partial(studies.compare, service),
            "rank": partial(studies.rank, service),
            "flip": partial(studies.flip, service),
            "switch": partial(studies.switch, service),
            "probe": partial(studies.probe, service),
            "film": partial(film, service),
        }

    def settings(self) -> dict[str, Any]:
        """What a page gets once: the methods, the models, the examples and the limits."""
        service = self.service
        return {
            **settings(),
            "models": service.models.menu(),
            "examples": examples(),
            "opens_any": not service.models.is_shared,
            "device_models": list(self.device.models),
            "max_upload_bytes": service.server_settings.upload_bytes,
            "max_clip_bytes": service.server_settings.clip_bytes,
        }

    # ---- models, pictures and analyses ----

    async def open_link(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """The state and the analyses of a link; notes list what could not be restored."""
        text = request.get("link")
        if not isinstance(text, str):
            raise MethodError(f"link = {quote(text)}: expected a text")
        link = read_link(text)
        state = link.state
        for index, note in enumerate(link.missing):
            state = state.with_view(index, replace(state.views[index], model=MISSING_MODEL)) if note else state
        notes = [note for note in link.notes if note not in link.missing]
        missing = " ".join(dict.fromkeys(filter(None, link.missing)))
        return await self._opened(state, range(len(state.views)), notes, report, DEFAULTS, missing=missing)

    async def picture(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """The picture of a view whose model cannot be opened."""
        state, index = PageState.of_request(request)
        start, chosen = self.service.models.start, self.service.pictures.upload(state.views[index].picture)
        _, upload, _ = await self._frame(state.views[index], start, chosen, report)

        def reduced(picture: OpenPicture, _: Report) -> bytes:
            prepared = picture.model_input(start.preprocessing, 1, 1, "squash", CANVAS_SIDE)
            picture.fill(prepared.image)
            return as_webp(prepared.resized(CANVAS_SIDE).image)

        content = await self.service.uploaded.opened(upload, reduced, report)
        return {"picture": f"data:image/webp;base64,{as_base64(content)}"}

    async def change_view(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """A state whose view of an index has another model, picture or input, and the analysis of this view."""
        state, index = PageState.of_request(request)
        is_new = boolean("is_new", request.get("is_new", False), "true or false")
        notes: list[str] = []
        if request.get("own") is not None:
            own = _own_model(request["own"])
            report(OPENING)
            assumed = assumed_sentence(await self.service.models.open(own, report))
            notes += [assumed] * bool(assumed)
            # What cannot be opened has no name.
            state = state.with_view(index, replace(state.views[index], model=self.service.models.name(own), step=None))
        return await self._opened(state, [index], notes, report, {}, is_new=is_new)

    async def _opened(
        self,
        state: PageState,
        indexes: Iterable[int],
        notes: list[str],
        report: Report,
        defaults: Mapping[str, Mapping[str, Any]],
        *,
        is_new: bool = False,
        missing: str = "",
    ) -> dict[str, Any]:
        """A legal state, and the analyses of its views of these indexes; with defaults, or which model is missing.

        The arguments are those of `_open_view`, and a sentence about `MISSING_MODEL`.
        """
        open_views: dict[int, tuple[str, Analysis]] = {}
        alone: dict[int, str] = {}
        by_input: dict[tuple[Any, ...], tuple[str, Analysis, View]] = {}
        for index in indexes:
            view = state.views[index]
            key = tuple(view.input.values())
            try:
                if key not in by_input:
                    by_input[key] = await self._open_view(view, report, notes, defaults, is_new=is_new)
            except VitvizError as error:
                if not defaults:
                    raise
                alone[index] = missing if view.model == MISSING_MODEL else sentence(error)
                continue
            uid, analysis, opened = by_input[key]
            state = state.with_view(index, replace(view, **opened.input))
            open_views[index] = uid, analysis
        analyses = [open_views[index][1] if index in open_views else None for index in range(len(state.views))]
        state, changes = normalize(state, analyses)
        views = {index: state.views[index] for index in indexes}
        clips = {index: await self._clip(analysis) for index, (_, analysis) in open_views.items()}

        def reply(report: Report) -> dict[str, Any]:
            return {
                "state": state.to_json(),
                "views": [
                    self._facts(*open_views[index], view, clips[index])
                    if index in open_views
                    else {"missing": ALONE.format(alone[index])}
                    for index, view in views.items()
                ],
                "models": {
                    views[index].model: self._model_facts(views[index].model, analysis.model)
                    for index, (_, analysis) in open_views.items()
                },
                "notes": [*alone.values(), *notes, *changes],
            }

        # It computes rows and medians, for which nobody else's request shall wait.
        return await self.service.quick.run(reply)

    async def _open_view(
        self,
        view: View,
        report: Report,
        notes: list[str],
        defaults: Mapping[str, Mapping[str, Any]],
        *,
        is_new: bool,
    ) -> tuple[str, Analysis, View]:
        """Id and analysis of a view, and the view. Notes list what was changed.

        Args:
            view: of a state.
            report, notes: receive the progress, and sentences.
            defaults: what replaces a picture or input that fails; an error is raised without them.
            is_new: whether the picture has just been uploaded.
        """
        part = "model"
        try:
            report(OPENING)
            choice = self.service.models.choice(view.model, view.step)
            model = await self.service.models.open(choice, report)
            view, changes = normalize_input(view, model)
            notes += changes
            part = "picture"
            view, upload, changes = await self._frame(view, model, self.service.pictures.upload(view.picture), report)
            notes += changes
            part, choice = "input", self.service.models.choice(view.model, view.step)
            uid, analysis = await self.service.analyze(
                model,
                upload,
                view.fit,
                view.resolution,
                report=report,
                choice=choice,
                show_whole=is_new,
            )
            origin = self.service.origins[analysis]
            notes += [HIDDEN.format(origin.hidden_share)] * bool(is_new and origin.hidden_share)
            return uid, analysis, replace(view, fit=origin.fit)
        except VitvizError as error:
            default = replace(view, **defaults.get(part, {}))
            if default == view:
                raise
            notes.append(sentence(error))
        return await self._open_view(default, report, notes, defaults, is_new=is_new)

    async def _frame(self, view: View, model: Model, upload: Upload, report: Report) -> tuple[View, Upload, list[str]]:
        """A view and its upload with a frame that the clip has, or none of a picture; and notes of changes."""
        if not is_clip(upload.path):
            color_profile = view.color_profile or model.preprocessing.color_profile
            return replace(view, frame=None), upload._replace(white=view.white, color_profile=color_profile), []
        report(ProgressReport("Reading the clip"))
        clip = await self.service.uploaded.clip(upload, report)
        frame, notes, last = view.frame or 0, [], clip.frames - 1
        if clip.is_cut and view.frame is None:
            seconds = self.service.server_settings.clip_seconds
            notes.append(f"{upload.name}: longer than {seconds:g} seconds, of which this is the beginning.")
        if frame > last:
            notes.append(f"Frame {frame:,}: this clip has frames 0 to {last:,}, and the last is shown.")
            frame = last
        upload = upload._replace(frame=frame, color_profile=model.preprocessing.color_profile)
        return replace(view, frame=frame, white=None, color_profile=None), upload, notes

    async def start(self) -> dict[str, Any]:
        """What a page begins with."""
        opened = await self.open_link({"link": ""}, no_report)
        analysis = self.service.cached(opened["views"][0]["uid"])
        return {**opened, "state": PageState((opening_view(analysis),)).to_json(), "settings": self.settings()}

    async def _clip(self, analysis: Analysis) -> dict[str, Any] | None:
        upload = self.service.origins[analysis].upload
        return None if upload.frame is None else {"frames": (await self.service.uploaded.clip(upload)).frames}

    def _facts(self, uid: str, analysis: Analysis, view: View, clip: dict[str, Any] | None) -> dict[str, Any]:
        origin = self.service.origins[analysis]
        picture = f"files/{uid}/{SEEN}"
        facts = analysis_facts(uid, analysis, picture, view=view, name=origin.upload.name, pixels=origin.size)
        look = facts["look"] and {**facts["look"], "rows": as_base64(rows_pack(analysis.trace, facts["look"]["query"]))}
        return {**facts, "look": look, "flip": origin.flip or None, "clip": clip}

    def _model_facts(self, model_id: str, model: Model) -> dict[str, Any]:
        title = ZOO[model_id].title if model_id in ZOO else model_id.removeprefix(HUB) or title_of(model)
        is_own = model_id.startswith("own:")
        return model_facts(model_id, self.service.models.choice(model_id).name if is_own else title, model)

    # ---- maps ----

    async def map_slowly(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """The file of any map, in base64."""
        return {"content": as_base64(await self.map(request, report))}

    async def map(self, request: Mapping[str, Any], report: Report | None = None) -> bytes:
        """The file of a map.

        Raises:
            MethodError: it takes long, is none of the latest, and there is no report.
        """
        uid = request.get("uid")
        analysis = self.service.cached(uid)
        method = METHODS[word("method", request.get("method"), METHODS)]
        parameters = parameters_of(
            method, request.get("parameters"), analysis, max_bytes=self.service.server_settings.analysis_bytes
        )
        is_slow = computed_by(method, parameters, analysis.trace) == "run"
        if report is None and is_slow and self.service.known_heatmap(uid, method, parameters) is None:
            raise MethodError(f"method = '{method.name}': of this picture, it takes long; expected kind 'map' of a run")
        # It may be dropped while this waits.
        del analysis
        analysis, heatmap = await self.service.heatmap(uid, method, parameters, report or no_report)
        return map_file(analysis, method, parameters, heatmap.token_map)

    # ---- files, links and uploads ----

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A legal state, its link, and its lines of Python."""
        state = PageState.from_json(request.get("state"))
        uids = request.get("uids")
        if not isinstance(uids, list):
            raise MethodError(f"uids = {quote(uids)}: expected a list of ids")
        # A second view without an id shows the first view's analysis.
        sources = [self._source(view, uid) for view, uid in zip(state.views, [*uids, *uids[:1]], strict=False)]
        state, notes = normalize(state, [None if source is None else source.analysis for source in sources])
        # Normalizing may have added a second view, equal to the first.
        sources = [*sources, *sources][: len(state.views)]
        available = [source for source in sources if source is not None]
        python = as_python(state, available) if len(available) == len(state.views) else ""
        bounds = [None if source is None else bounds_of(source.analysis) for source in sources]
        labels = [() if each is None else each.labels for each in bounds]
        own_models, models = self.service.models.own, [view.model for view in state.views]
        names = {name: own.name_and_settings for name in models if (own := own_models.get(name.removeprefix("own:")))}
        link = print_link(state, names, labels, bounds)
        return {"state": state.to_json(), "link": link, "python": python, "notes": notes}

    def _source(self, view: View, uid: object) -> ViewSource | None:
        """Model and picture of a view, if the id is that of its analysis and this is cached."""
        analysis = self.service.cache.get(uid) if isinstance(uid, str) else None
        if analysis is None:
            return None
        origin = self.service.origins[analysis]
        # A checkpoint or a picture that is no longer kept has no lines of Python.
        with suppress(CheckpointError, ImageError):
            if self.service.models.choice(view.model, view.step).run == origin.choice.run:
                target = view.parameters.get("target")
                picture = target.get("like") if isinstance(target, Mapping) else None
                return ViewSource(analysis, origin, picture and self.service.pictures.upload(picture))
        return None


def _own_model(value: object) -> ModelChoice:
    """A visitor's own checkpoint, or one on the hub."""
    own = fields("own", value, ("files", "folder", "hub", "overrides"))
    folder, hub, overrides_text, files = (own.get(name) or "" for name in ("folder", "hub", "overrides", "files"))
    for name, text in {"folder": folder, "hub": hub, "overrides": overrides_text}.items():
        limit = MAX_OVERRIDE_CHARS if name == "overrides" else MAX_NAME_CHARS
        if not isinstance(text, str) or len(text) > limit:
            raise MethodError(f"own.{name} = {quote(text)}: expected a text of at most {limit} characters")
    if not isinstance(files, list | str) or len(files) > MAX_FILES:
        raise MethodError(f"own.files = {quote(files)}: expected a list of at most {MAX_FILES} files")
    overrides = tuple(parse_overrides(split_overrides(overrides_text)).items())
    hub = hub.strip().removeprefix(HUB).removeprefix("https://huggingface.co/").strip("/")
    if bool(files) == bool(hub):
        raise CheckpointError("Your own checkpoint: expected either its file, or a name")
    if hub:
        return ModelChoice(hub if hub.startswith(PACKAGES) else HUB + hub, (), overrides, name=hub)
    uploads = [upload_of(file, f"own.files[{index}]") for index, file in enumerate(files)]
    weights = [upload for upload in uploads if is_weight_file(upload.name)] or uploads
    name = max(weights, key=lambda upload: upload.path.stat().st_size).name
    return ModelChoice("", tuple(str(upload.path) for upload in uploads), overrides, name=legible(folder) or name)
