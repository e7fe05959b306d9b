"""The models that an app serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vitviz.attention.precision import PRECISIONS, Precision
from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.errors.messages import choices
from vitviz.models.vit import VisionTransformer
from vitviz.ui.holdings import Bound, Holdings
from vitviz.ui.models import ModelChoice, menu, model_name, open_choice
from vitviz.ui.progress_reports import Report, no_report
from vitviz.ui.server.line import Line, Once, current_visitor
from vitviz.ui.server.settings import ServerSettings
from vitviz.weights import BUNDLED, Model, load, open_snapshot

OWN_EXPIRED = "This checkpoint is no longer kept on this server: open it again under Model."


class Models:
    """What the operator of an app chose, and what is opened in its page. For one event loop.

    Args:
        start: the model with which the page opens.
        server_settings: limits of the app.
        others: further models of the operator, each as :func:`vitviz.load` takes it.
        on_drop: called with each model that is kept no longer.

    Attributes:
        is_shared: whether strangers may come, who send no models.
        named: the operator's other models by their names in states, which are kept as long as the app.
        page_models: models that were opened in the page.
        own: what a page opened by files or by settings, by ids that nobody can guess.

    Raises:
        VitvizError: a model cannot be opened.
    """

    def __init__(
        self, start: Model, server_settings: ServerSettings, others: Sequence[str], on_drop: Callable[[Model], object]
    ) -> None:
        self.start, self.is_shared = start, server_settings.is_shared()
        bound = Bound(server_settings.model_bytes)
        self.page_models = Holdings[Model](bound, "models", lambda model: model.nbytes, on_drop)
        self.own = Holdings[ModelChoice](bound, "names of models", lambda choice: len(repr(choice)))
        self.named, self._sources = dict[str, Model](), dict[str, str]()
        self._operators = dict[ModelChoice, Model]()
        for source in others:
            model = self._operators[ModelChoice(source)] = self._like_start(load(source))
            self.named[name := model_name(source, model)], self._sources[name] = model, source
        # One is opened at a time, once for all who ask for it.
        self._line, self._opening = Line(is_long=True), Once()

    def menu(self) -> list[dict[str, Any]]:
        """The rows of the menu, as :func:`menu` makes them."""
        return menu(self.start, self.named, opens_any=not self.is_shared)

    async def open(self, choice: ModelChoice, report: Report = no_report) -> Model:
        """The model that a visitor chose, opened unless it is in memory, once for all who ask for it meanwhile.

        It gets the device and the precision of the default model.

        Raises:
            CheckpointError: it cannot be opened, or the settings do not allow it.
        """
        if choice == self.choice(""):
            return self.start
        if choice in self._operators:
            return self._operators[choice]
        if self.is_shared and choice.run not in (self.choice(""), *self._operators, *map(ModelChoice, BUNDLED)):
            raise CheckpointError(
                f"{choice.source or 'a file'}: expected a model that this app's operator has chosen: "
                f"{choices([self.start.name, *self.named])}"
            )
        async with self._opening(choice):
            return self.page_models.get(choice) or await self._opened(choice, report)

    async def _opened(self, choice: ModelChoice, report: Report) -> Model:
        run = None if choice.step is None else await self.open(choice.run, report)

        def opened(report: Report) -> Model:
            if run is not None and choice.step is not None:
                return self._like_start(open_snapshot(run, choice.step))
            return self._like_start(open_choice(choice, report))

        model, most = await self._line.run(opened, report), self.page_models.bound.limit
        if model.nbytes > most:
            raise LimitError(f"{model.name}: weights of {model.nbytes:,} bytes; this server keeps at most {most:,}")
        self.page_models.put(choice, model, current_visitor())
        return model

    def _like_start(self, model: Model) -> Model:
        first = self.start.network
        precision: Precision = next((name for name, dtype in PRECISIONS.items() if dtype == first.precision), "float32")
        if isinstance(model.network, VisionTransformer):
            model.network.to(first.device).set_precision(precision)
        return model

    def choice(self, name: str, step: int | None = None) -> ModelChoice:
        """The model choice of a name in a state.

        Raises:
            CheckpointError: a visitor's own checkpoint is no longer kept.
        """
        if name.startswith("own:"):
            own = self.own.get(name.removeprefix("own:"))
            if own is None:
                raise CheckpointError(OWN_EXPIRED)
            return own._replace(step=step)
        return ModelChoice(self._sources.get(name, name) or self.start.name, step=step)

    def name(self, own: ModelChoice) -> str:
        """The name of an open checkpoint in states: ``own:ID``, or ``hf:OWNER/NAME`` for one that needs no settings."""
        is_public = own.source and not own.overrides
        return own.source if is_public else f"own:{self.own.key(own, current_visitor())}"
