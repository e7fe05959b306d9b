"""What is chosen on the page of an explorer in a notebook, in Python."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attention.layout import Query
from vitviz.attention.softmax import HeadFusion
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.ui.normalize import bounds_of, normalize_view, parameters_of
from vitviz.ui.state import ANYTHING, Views
from vitviz.visualization.heatmaps import Heatmap

# Runs in the notebook, and passes on what the page in the frame of this name posts (`explorer.js`).
LISTENER = """
export default {
  initialize({ model }) {
    const listen = ({ data }) => {
      const view = data?.[model.get("frame")];
      if (view) {
        model.set("view", view);
        model.save_changes();
      }
    };
    addEventListener("message", listen);
    return () => removeEventListener("message", listen);
  },
};
"""


@dataclass(frozen=True)
class Selection:
    """What an explorer shows.

    Args:
        method: a name in :data:`vitviz.METHODS`.
        parameters: all of the method's, as :meth:`vitviz.Analysis.map` takes them.
        heatmap: the map.
    """

    method: MethodName
    parameters: Mapping[str, Any]
    heatmap: Heatmap = field(repr=False)

    @property
    def layer(self) -> int | None:
        """The layer, counted from 0; None for a map of all layers."""
        return self.parameters.get("layer")

    @property
    def head(self) -> int | HeadFusion | None:
        """The head, counted from 0, or how the heads are fused; None for a map without this choice."""
        return self.parameters.get("head")

    @property
    def token(self) -> Query | None:
        """The token that asks: row and column of a patch, or a name; None for a map without one."""
        return self.parameters.get("query")


def select(analysis: Analysis, view_json: dict[str, Any]) -> Selection:
    """What a page of an analysis shows, by one of the views of its state.

    Raises:
        MethodError: the view is not legal.
    """
    [view] = Views().read([view_json], ANYTHING, "selection")
    view, _ = normalize_view(view, analysis)
    record, bounds = METHODS[view.method], bounds_of(analysis)
    missing = [each for each in record.parameters if each.name not in view.parameters]
    defaults = {each.name: each.default_for(bounds, view.parameters.get("target")) for each in missing}
    parameters = parameters_of(record, view.parameters, analysis) | defaults
    return Selection(view.method, parameters, analysis.map(view.method, **parameters))


def listener() -> Any:
    """A widget that knows what the page in its ``frame`` shows, as its ``view``; None without the package anywidget.

    A notebook makes its counterpart in the browser, which need not be displayed.
    """
    if find_spec("anywidget") is None:
        return None
    traits = import_module("traitlets")
    names = {"_esm": LISTENER, "frame": traits.Unicode().tag(sync=True), "view": traits.Dict().tag(sync=True)}
    widget = type("Listener", (import_module("anywidget").AnyWidget,), names)
    return widget(frame=f"vitviz-{secrets.token_urlsafe(16)}")
