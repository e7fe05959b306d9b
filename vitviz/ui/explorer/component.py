"""The explorer as a Gradio component: one canvas, which owns the state of its page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitviz.ui.explorer.page_source import script, template
from vitviz.ui.stubs import import_gradio

# First, so that Gradio writes no stub of the class below.
import_gradio()

import gradio as gr  # noqa: E402
from gradio.data_classes import GradioRootModel  # noqa: E402
from gradio.events import EventListener  # noqa: E402


class Reply(GradioRootModel):
    """The latest reply to a page; Gradio gives its files an address."""

    root: dict[str, Any]


class Explorer(gr.HTML):
    """The whole page.

    Its value is the latest reply to the event ``run``.

    Args:
        value: the first reply.
        functions: the server functions, which the page calls by their ``__name__``; each takes and returns JSON.
        settings: facts about the server that do not change.
    """

    data_model = Reply
    # The browser draws it with the code of gr.HTML.
    is_template = True

    def __init__(
        self,
        value: Any = None,
        *,
        functions: Sequence[Callable[[Any], dict[str, Any]]] = (),
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            value=value,
            html_template=template("explorer.html"),
            css_template=template("explorer.css"),
            js_on_load=script(),
            apply_default_css=False,
            server_functions=list(functions),
            # As text: Gradio copies the properties at every event, objects part by part.
            settings=json.dumps(settings or {}),
            **options,
        )

    def run(self, *args: Any, **options: Any) -> Any:
        """Listen to the event for requests that take long, as other components' listeners do."""
        return EventListener("run").listener(self, *args, **options)

    def preprocess(self, payload: Any) -> Any:
        return payload

    # The value of gr.HTML is HTML.
    def postprocess(self, value: Any) -> Any:
        return value if value is None or isinstance(value, Reply) else Reply(root=value)

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}

    def example_payload(self) -> Any:
        return None

    def example_value(self) -> Any:
        return None
