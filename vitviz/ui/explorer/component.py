"""The explorer as a Gradio component: one canvas, which owns the state of its page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import GradioRootModel
from gradio.events import EventListener

HERE = Path(__file__).parent
FUNCTIONS = ("file", "map", "describe", "picture", "progress", "stop")

Answer = Callable[[Any], dict[str, Any]]
"""What the page sends, JSON of any kind, to what it gets."""


class Reply(GradioRootModel):
    """The newest answer to a page; files in it have an address when they arrive."""

    root: dict[str, Any]


class Explorer(gr.HTML):
    """The whole page.

    Its value is the newest reply to what the page asked for by the event ``run``.

    Args:
        value: the first reply.
        answers: by name in :data:`FUNCTIONS`, what answers the page at once; none where it is only looked at.
        settings: what the page knows of the server, which does not change.
    """

    data_model = Reply
    # Drawn by the browser code of the class it is made from.
    is_template = True

    def __init__(
        self,
        value: Any = None,
        *,
        answers: Mapping[str, Answer] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            value=value,
            html_template=template("explorer.html"),
            css_template=template("explorer.css"),
            js_on_load=script(),
            apply_default_css=False,
            server_functions=[_named(name, (answers or {})[name]) for name in FUNCTIONS if name in (answers or {})],
            # As text: Gradio copies the properties at every event, objects part by part.
            settings=json.dumps(settings or {}),
            **options,
        )

    def run(self, *args: Any, **options: Any) -> Any:
        """Connect what takes long; as the event listeners of other components."""
        return EventListener("run").listener(self, *args, **options)

    def preprocess(self, payload: Any) -> Any:
        return payload

    # Gradio's own has HTML as its value.
    def postprocess(self, value: Any) -> Any:
        return value if value is None or isinstance(value, Reply) else Reply(root=value)

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}

    def example_payload(self) -> Any:
        return None

    def example_value(self) -> Any:
        return None


def _named(name: str, answer: Answer) -> Callable[[Any], dict[str, Any]]:
    """A function by whose name the page calls it."""

    def function(request: Any) -> dict[str, Any]:
        return answer(request)

    function.__name__ = name
    return function


@cache
def template(name: str) -> str:
    """A file beside this one."""
    return (HERE / name).read_text()


@cache
def script() -> str:
    """All of the page's code, one function body: the files that ``js/order.txt`` names, one on a line."""
    names = [name.strip() for name in template("js/order.txt").splitlines() if name.strip()]
    return "\n".join(template(f"js/{name.removesuffix('.js')}.js") for name in names)
