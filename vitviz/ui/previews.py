"""What a link to an example is shown with where it is posted: the answer in a sentence, and the picture and its map."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from PIL import Image, ImageOps

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.errors.kinds import VitvizError
from vitviz.images.encoded import encoded
from vitviz.models.probability import class_probabilities
from vitviz.system.strangers import LARGE_FLOPS
from vitviz.ui.facts import class_names, far_look, flips
from vitviz.ui.holdings import Holdings
from vitviz.ui.links import read_link
from vitviz.ui.normalize import normalize, normalize_input, parameters_of
from vitviz.ui.progress_reports import ExpiredError, Report, no_report
from vitviz.ui.server.explorer_files import CANVAS_SIDE
from vitviz.ui.server.line import current_visitor
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import TOKEN_METHOD, PageState, View
from vitviz.ui.studies import flip

SIZE = 1200, 630
# The colours of the page's stage, and of a covered square; and the probability from which the page's sentence is sure.
STAGE, COVER, SURE = "#0b0d12", "#7c7c7c", 0.5


class LinkView(NamedTuple):
    """A legal state of a link and the analysis of its first view."""

    state: PageState
    uid: str
    analysis: Analysis


class Previews:
    """Makes and keeps previews; the work is that of whoever asks, in their turn.

    Args:
        service: models, analyses and maps.
    """

    def __init__(self, service: AnalysisService) -> None:
        self._service = service
        self._cache = Holdings[Any](service.memory, "previews of links", lambda found: len(found or ""))

    async def _link_view(self, query: str) -> LinkView | None:
        """What a link shows of an example with the app's own model, at the cost of a small analysis and a quick map."""
        with suppress(VitvizError):
            link, start = read_link(query), self._service.models.start
            state, view, method = link.state, link.state.views[0], METHODS[link.state.views[0].method]
            is_about_class = not isinstance(view.parameters.get("target"), Mapping)
            is_own = view.model == "" and view.step is None and not any(link.missing)
            if state == PageState() or not (is_own and is_about_class) or method.reports:
                return None
            view, _ = normalize_input(view, start)
            upload = self._service.pictures.upload(view.picture)
            if view.picture.startswith("example:"):
                profile = view.color_profile or start.preprocessing.color_profile
                upload = upload._replace(white=view.white, color_profile=profile)
                uid, analysis = await self._service.analyze(
                    start, upload, view.fit, view.resolution, max_flops=LARGE_FLOPS
                )
                return LinkView(normalize(state, [analysis])[0], uid, analysis)
        return None

    async def find(self, kind: Literal["sentence", "description", "picture"], query: str) -> Any:
        """What the model says of a link's picture, what the page says below that, or both as a JPEG file.

        The file has :data:`SIZE`. None for a link whose preview is the general one, and for a description where the
        page says nothing of the picture.
        """
        if (link_view := await self._link_view(query)) is None:
            return None
        key = repr((kind, link_view.uid, link_view.state.views[0], link_view.state.style))
        if (found := self._cache.get(key)) is None:
            with suppress(VitvizError, ExpiredError):
                found = await getattr(self, f"_{kind}")(link_view)
                self._cache.put(key, found, current_visitor())
        return found

    async def _sentence(self, link_view: LinkView) -> str:
        line = self._service.pass_line(link_view.analysis)
        return await self._service.run(
            line, link_view.uid, lambda analysis, _: answer(analysis, link_view.state.views[0]), no_report
        )

    async def _description(self, link_view: LinkView) -> str | None:
        analysis, uid, view = link_view.analysis, link_view.uid, link_view.state.views[0]
        name = self._service.origins[analysis].upload.name
        look = await self._service.run(
            self._service.short, uid, lambda analysis, _: far_look(analysis, name), no_report
        )
        is_far = look and view.parameters == {key: look[key] for key in ("layer", "head", "query")}
        if look and is_far and view.method == TOKEN_METHOD and not view.patches_off:
            return str(look["sentence"])
        if flips(analysis.model, analysis.trace.layout.token_count) != "meanwhile":
            return None
        return change(await flip(self._service, {"uid": uid}, no_report), analysis, view)

    async def _picture(self, link_view: LinkView) -> bytes:
        view, max_bytes = link_view.state.views[0], self._service.server_settings.analysis_bytes
        method, query = METHODS[view.method], view.parameters.get("query")
        parameters = parameters_of(method, view.parameters, link_view.analysis, max_bytes=max_bytes)
        _, heatmap = await self._service.heatmap(link_view.uid, method, parameters)

        def draw(analysis: Analysis, report: Report) -> bytes:
            picture = heatmap.resized(CANVAS_SIDE).overlay(
                link_view.state.style, query if isinstance(query, tuple) else None
            )
            layout, box = analysis.trace.layout, analysis.prepared.geometry.resized(*picture.size).box
            left, top, right, bottom = map(round, box)
            cover = Image.new("L", (layout.grid_width, layout.grid_height))
            for row, column in view.patches_off:
                cover.putpixel((column, row), 255)
            mask = cover.resize((right - left, bottom - top), Image.Resampling.NEAREST)
            picture.paste(COVER, (left, top, right, bottom), mask)
            return encoded(ImageOps.pad(picture.convert("RGB"), SIZE, color=STAGE), "JPEG", quality=85)

        return await self._service.run(self._service.short, link_view.uid, draw, no_report)


def answer(analysis: Analysis, view: View) -> str:
    """What the model says of a picture without what a view hides, as the page says it."""
    model = analysis.model
    if not model.gives_probabilities:
        return "This model names no classes: ask where it looks."
    hidden = {"square": len(view.patches_off), "head": len(view.heads_off)}
    names = " and ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in hidden.items() if count)
    logits = analysis.switched_off(view.heads_off, view.patches_off).cpu() if names else analysis.logits
    probability, index = class_probabilities(logits, model.network.config.probability).max(-1)
    name, known = class_names(model.labels)[int(index)].split(",")[0], f"the {len(model.labels):,} things it knows"
    if probability >= SURE:
        return f"{f'Without {names}: of' if names else 'Of'} {known}: {name}, {float(probability):.0%}."
    return f"{f'Without {names}: of' if names else 'Not sure. Closest of'} {known}: {name} ({float(probability):.0%})."


def change(reply: Mapping[str, Any], analysis: Analysis, view: View) -> str:
    """What squares change the answer, from the reply to a search for them, as the page says it."""
    patches, after = reply["patches"], reply["after"]
    if not patches:
        return "Covering half of the squares, those that matter most, does not change what it says."
    squares = "this square" if len(patches) == 1 else f"these {len(patches)} squares"
    start = f"Without {squares}," if patches == list(map(list, view.patches_off)) else f"Cover {squares} and"
    name = class_names(analysis.model.labels)[after["index"]].split(",")[0]
    return f"{start} it says {name}, {after['probability']:.0%}."
