"""What the page asks for, answered with what the service has: every request is JSON of any kind until it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from gradio.utils import get_upload_folder

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import Method
from vitviz.errors.kinds import CheckpointError, ImageError, MethodError, VitvizError
from vitviz.errors.messages import quote
from vitviz.images.clips import is_clip
from vitviz.progress import Progress
from vitviz.ui.arguments import LONGEST_NAME, LikenessRequest, fields, method_of, number, parameters_of, upload_of
from vitviz.ui.code import Made, as_python
from vitviz.ui.facts import LEAST_SEEN, analysis_facts, examples, model_facts, settings, visible
from vitviz.ui.files import as_base64, as_webp, keep
from vitviz.ui.films import Films
from vitviz.ui.inputs import InputSettings
from vitviz.ui.links import print_link, read_link
from vitviz.ui.models import ModelChoice, OwnModel, menu, title_of
from vitviz.ui.normalize import ShownView, normalize, normalize_input
from vitviz.ui.packs import map_file
from vitviz.ui.pictures import Upload
from vitviz.ui.probing import Probing
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import FIRST_VIEW, PageState, View
from vitviz.ui.steps import Report, Step, waiting, waiting_for_memory
from vitviz.ui.studies import Studies
from vitviz.weights import ZOO, Model, parse_overrides
from vitviz.weights.formats.files import SUFFIXES

MAX_FILES, MAX_OVERRIDE_CHARS = 64, 300


class Handlers:
    """Answers the requests of pages.

    Args:
        service: the models, the analyses and the maps.
    """

    def __init__(self, service: AnalysisService) -> None:
        self.service, studies, probing, films = service, Studies(service), Probing(service), Films(service)
        # Pictures as files; as long as their analyses.
        self._drawn: WeakKeyDictionary[Analysis, bytes] = WeakKeyDictionary()
        # What the event ``run`` does, by the kind of a request.
        self.kinds: dict[str, Callable[[Mapping[str, Any], Report], dict[str, Any]]] = {
            "open": self.open,
            "analyze": self.analyze,
            "map": self.map_slowly,
            "compare": studies.compare,
            "rank": studies.rank,
            "switch": studies.switch,
            "probe": probing.probe,
            "film": films.film,
        }

    def settings(self) -> dict[str, Any]:
        """What a page knows from the start."""
        service = self.service
        return {
            **settings(),
            "models": menu(service.start, service.server_settings.models),
            "examples": examples(),
            "legal": service.server_settings.models,
            "state": PageState().to_json(),
            "max_upload_bytes": service.server_settings.upload_bytes,
            "max_clip_bytes": service.server_settings.clip_bytes,
        }

    # ---- models, pictures and analyses ----

    def open(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """What a link shows; what it asks for and cannot be is said, and something else shown."""
        link = request.get("link")
        if not isinstance(link, str):
            raise MethodError(f"link = {quote(link)}: expected a text")
        read = read_link(link)
        notes, views, keys, shown_views = list(read.notes), [], [], []
        found: dict[tuple[Any, ...], tuple[str, Analysis, View]] = {}
        for view in read.state.views:
            if _input(view) not in found:
                found[_input(view)] = self._opened(view, report, notes)
            key, analysis, legal = found[_input(view)]
            given = dict(view.parameters)
            if legal.model != view.model:
                # A class of another model.
                given.pop("target", None)
            view = replace(
                view,
                model=legal.model,
                step=legal.step,
                picture=legal.picture,
                frame=legal.frame,
                fit=legal.fit,
                resolution=legal.resolution,
                parameters=given,
            )
            views.append(view)
            keys.append(key)
            shown_views.append(ShownView(analysis.model, analysis.trace.layout))
        state, changes = normalize(replace(read.state, views=tuple(views)), shown_views)
        analyses = [self.service.cached(key) for key in keys]
        facts = [self._facts(*pair) for pair in zip(keys, analyses, state.views, strict=False)]
        models = {view.model: self._model(view.model, each.model) for view, each in zip(views, analyses, strict=True)}
        return {"state": state.to_json(), "views": facts, "models": models, "notes": [*notes, *changes]}

    def _opened(self, view: View, report: Report, notes: list[str]) -> tuple[str, Analysis, View]:
        """The analysis of a view; of the model, picture or input of the start where its own cannot be."""
        try:
            model = self._model_of(view, report)
        except VitvizError as error:
            notes.append(f"{sentence(error)} The model of the start is shown.")
            view = replace(view, model="", step=None)
            model = self.service.start
        view, changes = normalize_input(view, model)
        notes += changes
        try:
            view, upload, changes = self._shown(view, self.service.pictures.upload(view.picture), report)
            notes += changes
        except VitvizError as error:
            notes.append(sentence(error))
            view = replace(view, picture=View().picture, frame=None)
            upload = self.service.pictures.upload(view.picture)
        try:
            key, analysis = self._analyzed(view, model, upload, report)
        except VitvizError as error:
            if view == replace(view, picture=View().picture, frame=None, fit=None, resolution=None):
                raise
            notes.append(sentence(error))
            view = replace(view, picture=View().picture, frame=None, fit=None, resolution=None)
            key, analysis = self._analyzed(view, model, self.service.pictures.upload(view.picture), report)
        return key, analysis, view

    def analyze(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """One view of a state, with another model, picture or input."""
        state = PageState.from_json(request.get("state"))
        index = int(number("index", request.get("index"), 0, len(state.views) - 1, whole=True))
        view, upload = state.views[index], None
        if request.get("own") is not None:
            view = replace(view, model=self._own(request["own"]), step=None)
        if request.get("upload") is not None:
            upload = upload_of(request["upload"], "upload")
        model = self._model_of(view, report)
        view, notes = normalize_input(view, model)
        is_new = upload is not None
        view, upload, changes = self._shown(view, upload or self.service.pictures.upload(view.picture), report)
        notes += changes
        if is_new:
            view, said = self._seen_whole(view, model, upload, report)
            notes += said
        key, analysis = self._analyzed(view, model, upload, report)
        view = replace(view, picture=self.service.pictures.id(upload))
        shown_views: list[ShownView | None] = [None] * len(state.views)
        shown_views[index] = ShownView(model, analysis.trace.layout)
        state, changes = normalize(state.with_view(index, view), shown_views)
        return {
            "state": state.to_json(),
            "index": index,
            "facts": self._facts(key, analysis, state.views[index]),
            "models": {view.model: self._model(view.model, model)},
            "notes": [*notes, *changes],
        }

    def _shown(self, view: View, upload: Upload, report: Report) -> tuple[View, Upload, list[str]]:
        """A view of a picture, or of a frame that a clip has; what is shown, and what was changed."""
        if not is_clip(upload.path):
            return replace(view, frame=None), upload, []
        report(Step("Reading the clip"))
        last = self.service.uploaded.clip(upload, waiting(report)).frames - 1
        frame, notes = view.frame or 0, []
        if frame > last:
            notes.append(f"Frame {frame:,}: this clip has frames 0 to {last:,}, and the last is shown.")
            frame = last
        return replace(view, frame=frame), upload._replace(frame=frame), notes

    def _seen_whole(self, view: View, model: Model, upload: Upload, report: Report) -> tuple[View, list[str]]:
        """A view of a new picture as a whole, where the model's own crop hides most of it, and what was changed."""
        if view.fit is not None or model.preprocessing.fit != "crop":
            return view, []
        share = self.service.seen_share(model, upload, InputSettings(None, view.resolution), waiting(report))
        if share >= LEAST_SEEN:
            return view, []
        note = f"The crop that this model was trained with hides {1 - share:.0%} of this picture, which is shown whole"
        return replace(view, fit="native"), [f"{note}, in its own shape. Under Seen as it can be cropped."]

    def first(self) -> dict[str, Any]:
        """The reply with which a page opens."""
        view = FIRST_VIEW
        upload = self.service.pictures.upload(view.picture)
        key, analysis = self.service.analyze(self.service.start, upload)
        state, _ = normalize(PageState(), [ShownView(analysis.model, analysis.trace.layout)])
        return {
            "number": 0,
            "state": state.to_json(),
            "views": [self._facts(key, analysis, view)],
            "models": {"": self._model("", analysis.model)},
        }

    def _own(self, value: object) -> str:
        """The id of a visitor's own checkpoint, or of one of the hub."""
        given = fields("own", value, ("files", "hub", "overrides"))
        hub, written, files = (given.get(name) or "" for name in ("hub", "overrides", "files"))
        for name, text, most in (("hub", hub, LONGEST_NAME), ("overrides", written, MAX_OVERRIDE_CHARS)):
            if not isinstance(text, str) or len(text) > most:
                raise MethodError(f"own.{name} = {quote(text)}: expected a text of at most {most} characters")
        if not isinstance(files, list | str) or len(files) > MAX_FILES:
            raise MethodError(f"own.files = {quote(files)}: expected a list of at most {MAX_FILES} files")
        overrides = tuple(parse_overrides([part for part in written.split(",") if part.strip()]).items())
        hub = hub.strip().removeprefix("hf:").removeprefix("https://huggingface.co/").strip("/")
        if bool(files) == bool(hub):
            raise CheckpointError("Your own checkpoint: expected either its file, or its name on the hub")
        if hub and not overrides:
            return f"hf:{hub}"
        if hub:
            return self.service.own_models.id(OwnModel(ModelChoice(f"hf:{hub}", (), overrides), hub))
        uploads = [upload_of(each, f"own.files[{place}]") for place, each in enumerate(files)]
        weights = [each for each in uploads if each.name.endswith(SUFFIXES)] or uploads
        name = max(weights, key=lambda each: each.path.stat().st_size).name
        choice = ModelChoice("", tuple(str(each.path) for each in uploads), overrides)
        return self.service.own_models.id(OwnModel(choice, name))

    def _model_of(self, view: View, report: Report) -> Model:
        report(Step("Opening the model"))
        return self.service.model(self.service.choice(view.model, view.step), report)

    def _analyzed(self, view: View, model: Model, upload: Upload, report: Report) -> tuple[str, Analysis]:
        choice = self.service.choice(view.model, view.step)
        return self.service.analyze(model, upload, InputSettings(view.fit, view.resolution), report, choice)

    def _facts(self, key: str, analysis: Analysis, view: View) -> dict[str, Any]:
        origin = self.service.origins[analysis]
        drawn = self._drawn.get(analysis)
        if drawn is None:
            drawn = self._drawn[analysis] = as_webp(analysis.prepared.image, quality=90)
        path = keep(drawn, "picture.webp", get_upload_folder())
        picture = {"path": path, "mime_type": "image/webp", "meta": {"_type": "gradio.FileData"}}
        facts = analysis_facts(key, analysis, picture, view=view, name=origin.upload.name, pixels=origin.size)
        clip = None if origin.upload.frame is None else self.service.uploaded.clip(origin.upload)
        return {**facts, "clip": clip and {"frames": clip.frames}}

    def _model(self, model_id: str, model: Model) -> dict[str, Any]:
        if model_id.startswith("own:"):
            title = self.service.own_models.get(model_id).name
        else:
            title = ZOO[model_id].title if model_id in ZOO else model_id.removeprefix("hf:") or title_of(model)
        return model_facts(model_id, title, model)

    # ---- maps ----

    def map_slowly(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """The content of any map's file, in base64."""
        analysis, method, parameters = self._requested_map(request)

        def done(state: Progress) -> None:
            report(Step(method.title, state.done, state.total))

        if isinstance(parameters.get("target"), LikenessRequest):
            # Before this map has its turn, so that others have theirs meanwhile.
            report(Step("Looking at the other picture"))
            self.service.target_of(analysis, parameters["target"], waiting_for_memory(report))
        with self.service.lock(analysis, method).turn(waiting(report)):
            report(Step(method.title))
            return self._content(analysis, method, parameters, done, waiting_for_memory(report))

    def map_quickly(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same of a map that is soon there; that another takes long, is said."""
        analysis, method, parameters = self._requested_map(request)
        if self.service.maps.get(analysis, method, parameters) is not None:
            return self._content(analysis, method, parameters)
        if not self.service.is_quick(analysis, method):
            return {"slow": True}
        with self.service.lock(analysis, method).turn():
            return self._content(analysis, method, parameters)

    def _requested_map(self, request: Mapping[str, Any]) -> tuple[Analysis, Method, dict[str, Any]]:
        analysis = self.service.cached(request.get("uid"))
        method = method_of(request.get("method"))
        given = parameters_of(method, request.get("parameters"), analysis.model, analysis.trace.layout)
        return analysis, method, given

    def _content(self, analysis: Analysis, method: Method, parameters: dict[str, Any], *asking: Any) -> dict[str, Any]:
        heatmap = self.service.heatmap(analysis, method, parameters, *asking)
        return {"content": as_base64(map_file(analysis, method, parameters, heatmap.token_map))}

    # ---- what a page asks for beside ----

    def file(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A file of an analysis."""
        uid, name = request.get("uid"), request.get("name")
        if not isinstance(uid, str) or not isinstance(name, str):
            raise MethodError("expected the uid and the name of a file")
        return {"path": str(self.service.file(uid, name, get_upload_folder()))}

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A state with legal values only, as a link, and as lines of Python."""
        state = PageState.from_json(request.get("state"))
        uids = request.get("uids")
        if not isinstance(uids, list):
            raise MethodError(f"uids = {quote(uids)}: expected a list of ids")
        given = [*uids, *uids[:1]][: len(state.views)]
        made = [self._made(view, uid) for view, uid in zip(state.views, given, strict=False)]
        shown_views = [
            None if each is None else ShownView(each.analysis.model, each.analysis.trace.layout) for each in made
        ]
        state, notes = normalize(state, shown_views)
        made = [*made, *made][: len(state.views)]
        known = [each for each in made if each is not None]
        is_whole = len(known) == len(state.views) and all(
            _liked(view) is None or each.other is not None for view, each in zip(state.views, known, strict=True)
        )
        python = as_python(state, known) if is_whole else ""
        return {"state": state.to_json(), "link": self.link(state), "python": python, "notes": notes}

    def link(self, state: PageState) -> str:
        """A state as the part of an address behind ``?``."""
        names = {}
        for view in state.views:
            if view.model.startswith("own:"):
                try:
                    names[view.model] = self.service.own_models.get(view.model).name
                except CheckpointError:
                    continue
        return print_link(state, names)

    def _made(self, view: View, uid: object) -> Made | None:
        """What a view shows, where its analysis is kept and is the one of this id."""
        analysis = self.service.cache.get(uid) if isinstance(uid, str) else None
        if analysis is None:
            return None
        origin = self.service.origins[analysis]
        try:
            choice = self.service.choice(view.model, view.step)
        except CheckpointError:
            return None
        if choice.run != origin.choice.run:
            return None
        source = self.service.source(origin.choice, analysis.model)
        if view.model.startswith("own:") and origin.choice.files and analysis.model.snapshots is None:
            source = self.service.own_models.get(view.model).name
        return Made(analysis, origin, source, self._other(view))

    def _other(self, view: View) -> Upload | None:
        """The other picture of a map about likeness, where it is still kept."""
        picture = _liked(view)
        try:
            return None if picture is None else self.service.pictures.upload(picture)
        except ImageError:
            return None

    def picture(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What a state calls an uploaded picture, for one that is not analysed."""
        upload = upload_of(request.get("upload"), "upload")
        return {"id": self.service.pictures.id(upload), "name": visible(upload.name)}


def sentence(error: VitvizError) -> str:
    """An error with a full stop."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _liked(view: View) -> str | None:
    """The picture that a view's map is about likeness to."""
    target = view.parameters.get("target")
    return target.get("like") if isinstance(target, Mapping) else None


def _input(view: View) -> tuple[Any, ...]:
    return view.model, view.step, view.picture, view.frame, view.fit, view.resolution
