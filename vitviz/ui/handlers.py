"""What the page asks for, answered with what the service has: every request is JSON of any kind until it is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gradio.utils import get_upload_folder

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS, Method
from vitviz.attribution.methods import ClassTarget
from vitviz.errors.kinds import CheckpointError, ImageError, MethodError, VitvizError
from vitviz.errors.messages import shown
from vitviz.evaluation.comparison import compare
from vitviz.metrics.faithfulness import METRICS, RANDOM_ORDERS
from vitviz.models.targets import NO_CLASSIFIER, Target
from vitviz.progress import Progress
from vitviz.ui.arguments import LONGEST_NAME, fields, method_of, number, parameter_of, parameters_of, upload_of
from vitviz.ui.code import Made, as_python
from vitviz.ui.facts import analysis_facts, class_names, examples, model_facts, settings
from vitviz.ui.files import as_webp, keep
from vitviz.ui.links import print_link, read_link
from vitviz.ui.models import ModelChoice, OwnModel, menu
from vitviz.ui.normalize import Seen, normalize, normalize_input, refusal
from vitviz.ui.pictures import Upload
from vitviz.ui.server.estimates import comparison_bytes, forward_bytes
from vitviz.ui.service import AnalysisService, InputSettings, Step
from vitviz.ui.state import PageState, View
from vitviz.weights import ZOO, DownloadProgress, Model, parse_overrides
from vitviz.weights.formats.files import SUFFIXES
from vitviz.weights.text_tower import TextPrompt, reads_text

Report = Callable[[Step | DownloadProgress], None]
SHOWN_CLASSES = 5
MAX_FILES, MAX_OVERRIDE_CHARS = 64, 300
NO_CLASSES = f"{NO_CLASSIFIER[0].upper()}{NO_CLASSIFIER[1:]}."
NO_TEXT = "This model has no classes, but reads texts: write what the map is about."
ABOUT_COMPARISON = (
    "How faithful each map is: patches are taken out in its order, and the probability of the class is watched, beside "
    f"the mean of {RANDOM_ORDERS} random orders of the same patches. Of a text it is the score, as a share: 0 for a "
    "blank picture, 1 for the whole one. The correlation is that with the map of the same model with all of its "
    "weights shuffled (Adebayo et al. 2018): a map that stays similar does not depend on what the model has learnt."
)


class ExpiredError(Exception):
    """An analysis is not kept any more."""


class Handlers:
    """Answers the requests of pages.

    Args:
        service: the models, the analyses and the maps.
    """

    def __init__(self, service: AnalysisService) -> None:
        self.service = service
        # What the event ``run`` does, by the kind of a request.
        self.kinds: dict[str, Callable[[Mapping[str, Any], Report], dict[str, Any]]] = {
            "open": self.open,
            "analyze": self.analyze,
            "map": self.map_slowly,
            "compare": self.compare,
            "rank": self.rank,
            "switch": self.switch,
        }

    def settings(self) -> dict[str, Any]:
        """What a page knows from the start."""
        service = self.service
        return {
            **settings(),
            "models": menu(service.start, service.knobs.models),
            "examples": examples(),
            "legal": service.knobs.models,
            "state": PageState().to_json(),
            "max_upload_bytes": service.knobs.upload_bytes,
        }

    # ---- models, pictures and analyses ----

    def open(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """What a link shows; what it asks for and cannot be is said, and something else shown."""
        link = request.get("link")
        if not isinstance(link, str):
            raise MethodError(f"link = {shown(link)}: expected a text")
        read = read_link(link)
        notes, views, keys, seen = list(read.notes), [], [], []
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
                fit=legal.fit,
                resolution=legal.resolution,
                parameters=given,
            )
            views.append(view)
            keys.append(key)
            seen.append(Seen(analysis.model, analysis.trace.layout))
        state, said = normalize(replace(read.state, views=tuple(views)), seen)
        analyses = [self._analysis(key) for key in keys]
        facts = [self._facts(*pair) for pair in zip(keys, analyses, state.views, strict=False)]
        models = {view.model: self._model(view.model, each.model) for view, each in zip(views, analyses, strict=True)}
        return {"state": state.to_json(), "views": facts, "models": models, "notes": [*notes, *said]}

    def _opened(self, view: View, report: Report, notes: list[str]) -> tuple[str, Analysis, View]:
        """The analysis of a view; of the model, picture or input of the start where its own cannot be."""
        try:
            model = self._model_of(view, report)
        except VitvizError as error:
            notes.append(f"{sentence(error)} The model of the start is shown.")
            view = replace(view, model="", step=None)
            model = self.service.start
        view, said = normalize_input(view, model)
        notes += said
        try:
            upload = self.service.pictures.upload(view.picture)
        except ImageError as error:
            notes.append(sentence(error))
            view = replace(view, picture=View().picture)
            upload = self.service.pictures.upload(view.picture)
        try:
            key, analysis = self._analyzed(view, model, upload, report)
        except VitvizError as error:
            if view == replace(view, picture=View().picture, fit=None, resolution=None):
                raise
            notes.append(sentence(error))
            view = replace(view, picture=View().picture, fit=None, resolution=None)
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
        upload = upload or self.service.pictures.upload(view.picture)
        key, analysis = self._analyzed(view, model, upload, report)
        view = replace(view, picture=self.service.pictures.id(upload))
        seen: list[Seen | None] = [None] * len(state.views)
        seen[index] = Seen(model, analysis.trace.layout)
        state, said = normalize(state.with_view(index, view), seen)
        return {
            "state": state.to_json(),
            "index": index,
            "facts": self._facts(key, analysis, state.views[index]),
            "models": {view.model: self._model(view.model, model)},
            "notes": [*notes, *said],
        }

    def first(self) -> dict[str, Any]:
        """The reply with which a page opens."""
        view = View()
        upload = self.service.pictures.upload(view.picture)
        key, analysis = self.service.analyze(self.service.start, upload)
        state, _ = normalize(PageState(), [Seen(analysis.model, analysis.trace.layout)])
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
                raise MethodError(f"own.{name} = {shown(text)}: expected a text of at most {most} characters")
        if not isinstance(files, list | str) or len(files) > MAX_FILES:
            raise MethodError(f"own.files = {shown(files)}: expected a list of at most {MAX_FILES} files")
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
        path = keep(as_webp(analysis.prepared.image, quality=90), "picture.webp", get_upload_folder())
        picture = {"path": path, "mime_type": "image/webp", "meta": {"_type": "gradio.FileData"}}
        return analysis_facts(key, analysis, picture, view=view, name=origin.upload.name, pixels=origin.size)

    def _model(self, model_id: str, model: Model) -> dict[str, Any]:
        if model_id.startswith("own:"):
            title = self.service.own_models.get(model_id).name
        else:
            title = ZOO[model_id].title if model_id in ZOO else model_id.removeprefix("hf:") or model.name
        return model_facts(model_id, title, model)

    def _analysis(self, uid: object) -> Analysis:
        """The analysis of an id.

        Raises:
            ExpiredError: it is not kept.
            MethodError: this is no id.
        """
        if not isinstance(uid, str):
            raise MethodError(f"uid = {shown(uid)}: expected the id of an analysis")
        found = self.service.cache.get(uid)
        if found is None:
            raise ExpiredError
        return found

    # ---- maps and studies ----

    def map_slowly(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """The file of any map."""
        analysis, method, parameters = self._wanted(request)

        def done(state: Progress) -> None:
            report(Step(method.title, state.done, state.total))

        with self.service.lane(analysis, method).turn(_waiting(report)):
            report(Step(method.title))
            return {"path": self._pack(analysis, method, parameters, done, lambda: report(Step(MEMORY)))}

    def map_quickly(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The file of a map that is soon there; that another takes long, is said."""
        analysis, method, parameters = self._wanted(request)
        known = self.service.known_pack(analysis, method, parameters)
        if known is not None:
            return {"path": str(known)}
        if not self.service.is_quick(analysis, method):
            return {"slow": True}
        with self.service.lane(analysis, method).turn():
            return {"path": self._pack(analysis, method, parameters)}

    def _wanted(self, request: Mapping[str, Any]) -> tuple[Analysis, Method, dict[str, Any]]:
        analysis = self._analysis(request.get("uid"))
        method = method_of(request.get("method"))
        given = parameters_of(method, request.get("parameters"), analysis.model, analysis.trace.layout)
        return analysis, method, given

    def _pack(self, analysis: Analysis, method: Method, parameters: dict[str, Any], *asking: Any) -> str:
        known = self.service.known_pack(analysis, method, parameters)
        if known is None:
            heatmap = self.service.heatmap(analysis, method, parameters, *asking)
            known = self.service.pack(analysis, method, parameters, heatmap.token_map, get_upload_folder())
        return str(known)

    def compare(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """All maps that the model can have, and how faithful each is."""
        analysis = self._analysis(request.get("uid"))
        target = self._target(analysis, request.get("target"), report)
        given = fields("parameters", request.get("parameters") or {}, METHODS)
        parameters = {name: self._without_target(analysis, METHODS[name], each) for name, each in given.items()}

        def done(state: Progress) -> None:
            report(Step("Maps, and pictures without some of their patches", state.done, state.total))

        with (
            self.service.studies.turn(_waiting(report)),
            self.service.budget.share(comparison_bytes(analysis), "this comparison", lambda: report(Step(MEMORY))),
        ):
            found = compare(analysis, parameters, target, report=done)
        maps = []
        for each in found.maps:
            method = METHODS[each.method]
            asked = (analysis, method, parameters.get(each.method, {}), each.heatmap.token_map)
            correlation = each.randomization_correlation
            maps.append(
                {
                    "method": each.method,
                    "path": str(self.service.pack(*asked, get_upload_folder(), kind="share")),
                    "areas": each.areas,
                    "beats": {metric: found.beats_chance(each, metric) for metric in each.areas},
                    "correlation": None if math.isnan(correlation) else correlation,
                }
            )
        return {
            **self._about(analysis, found.target),
            "highest": found.highest,
            "metrics": [
                {
                    "name": metric.name,
                    "title": metric.title,
                    "lower_is_better": metric.lower_is_better,
                    "interpretation": metric.interpretation,
                }
                for metric in METRICS.values()
            ],
            "chance": found.chance,
            "maps": maps,
            "about": ABOUT_COMPARISON,
        }

    def rank(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """How far a score falls without each head."""
        analysis = self._analysis(request.get("uid"))
        target = self._target(analysis, request.get("target"), report)
        config = analysis.model.network.config

        def done(state: Progress) -> None:
            report(Step("Heads switched off one at a time", state.done, state.total))

        needed = forward_bytes(config, analysis.trace.layout, config.heads)
        with (
            self.service.studies.turn(_waiting(report)),
            self.service.budget.share(needed, "this ranking", lambda: report(Step(MEMORY))),
        ):
            effects = analysis.head_effects(target, report=done)
        about = self._about(analysis, int(analysis.logits.argmax()) if target is None else target)
        return {**about, "whole": effects.whole, "drops": effects.drop.tolist()}

    def switch(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """What the model says with some heads and patches switched off."""
        analysis = self._analysis(request.get("uid"))
        target = self._target(analysis, request.get("target"), report)
        off = View(heads_off=request.get("heads") or (), patches_off=request.get("patches") or ())
        needed = forward_bytes(analysis.model.network.config, analysis.trace.layout, 1)
        with (
            self.service.pass_lane(analysis).turn(_waiting(report)),
            self.service.budget.share(needed, "this forward pass", lambda: report(Step(MEMORY))),
        ):
            if isinstance(target, Target):
                before = target.score(analysis.switched_off())
                after = target.score(analysis.switched_off(off.heads_off, off.patches_off))
                rows = [{"name": target.name, "before": float(before), "after": float(after)}]
                return {"unit": "score", "rows": rows}
            before = analysis.logits.float().softmax(-1)
            after = analysis.switched_off(off.heads_off, off.patches_off).float().softmax(-1).cpu()
        names, count = class_names(analysis.model.labels), min(SHOWN_CLASSES, len(analysis.model.labels))
        chosen = [] if target is None else [target]
        best = dict.fromkeys([*before.topk(count).indices.tolist(), *after.topk(count).indices.tolist(), *chosen])
        rows = [{"name": names[at], "index": at, "before": float(before[at]), "after": float(after[at])} for at in best]
        return {"unit": "probability", "rows": rows}

    def _target(self, analysis: Analysis, value: object, report: Report) -> int | Target | None:
        """What is measured: a class, a text, or None for the most probable class.

        Raises:
            MethodError: there is nothing to measure.
        """
        model = analysis.model
        target = None
        if value is not None:
            target = parameter_of(ClassTarget("target", "", ""), value, model, analysis.trace.layout, "request")
        if not model.labels and not isinstance(target, TextPrompt):
            raise MethodError((NO_TEXT if reads_text(model) else NO_CLASSES).removesuffix("."))
        if isinstance(target, TextPrompt):
            report(Step("Reading the text"))
        return self.service.target(model, target)

    def _without_target(self, analysis: Analysis, method: Method, given: object) -> dict[str, Any]:
        if refusal(method, analysis.model) is not None:
            return {}
        known = {part.name: part for part in method.parameters if not isinstance(part, ClassTarget)}
        asked = fields(f"parameters.{method.name}", given, known)
        layout = analysis.trace.layout
        return {
            name: parameter_of(known[name], each, analysis.model, layout, method.name)
            for name, each in asked.items()
            if each is not None
        }

    def _about(self, analysis: Analysis, target: int | Target) -> dict[str, Any]:
        if isinstance(target, Target):
            return {"target": None, "target_name": target.name, "unit": "score"}
        return {"target": target, "target_name": class_names(analysis.model.labels)[target], "unit": "probability"}

    # ---- what a page asks for beside ----

    def file(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A file of an analysis."""
        uid, name = request.get("uid"), request.get("name")
        if not isinstance(uid, str) or not isinstance(name, str):
            raise MethodError("expected the uid and the name of a file")
        path = self.service.file(uid, name, get_upload_folder())
        if path is None:
            raise ExpiredError
        return {"path": str(path)}

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A state with legal values only, as a link, and as lines of Python."""
        state = PageState.from_json(request.get("state"))
        uids = request.get("uids")
        if not isinstance(uids, list):
            raise MethodError(f"uids = {shown(uids)}: expected a list of ids")
        given = [*uids, *uids[:1]][: len(state.views)]
        made = [self._made(view, uid) for view, uid in zip(state.views, given, strict=False)]
        seen = [None if each is None else Seen(each.analysis.model, each.analysis.trace.layout) for each in made]
        state, notes = normalize(state, seen)
        made = [*made, *made][: len(state.views)]
        known = [each for each in made if each is not None]
        python = as_python(state, known) if len(known) == len(state.views) else ""
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
        return Made(analysis, origin, source)


def sentence(error: VitvizError) -> str:
    """An error with a full stop."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


MEMORY = "Waiting for memory that others use"


def _waiting(report: Report) -> Callable[[int], None]:
    return lambda before: report(Step(f"Waiting: {before} before this one"))


def _input(view: View) -> tuple[Any, ...]:
    return view.model, view.step, view.picture, view.fit, view.resolution
