"""Checks of a program's call before Gradio sees it: the endpoint exists, and has these fields.

Gradio would answer other requests with an empty error, and log a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from inspect import Parameter, signature
from typing import Any, NamedTuple

import gradio as gr

from vitviz.attribution.json_values import fields
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, listing, quote
from vitviz.ui.pictures import upload_of
from vitviz.ui.server.routes import JOIN, PREFIX, SESSION
from vitviz.ui.server.rule import RequestError

# Programs POST a call to an endpoint, by Gradio's clients or by plain HTTP.
CALL = re.compile(rf"{JOIN}|{PREFIX}/call/(?P<by_name>v2/)?(?P<endpoint>[^/]+)/?")

# The fields of the other requests of Gradio's clients.
FIELDS: dict[str, dict[str, type]] = {
    f"{PREFIX}/cancel": {"session_hash": str, "fn_index": int, "event_id": str},
    f"{PREFIX}/reset": {"event_id": str},
}


class Call(NamedTuple):
    """A call that can be served.

    Args:
        value: the JSON that Gradio reads: these fields and no others.
        session: of the client; empty by plain HTTP.
    """

    value: Any
    session: str


def checked_call(blocks: gr.Blocks, path: str, value: Any) -> Call:
    """The call of a body.

    Args:
        blocks: the app.
        path: below the app's root; matches :data:`CALL`.
        value: JSON.

    Raises:
        RequestError, VitvizError: it cannot be served, for a reason of one sentence.
    """
    match = CALL.fullmatch(path)
    assert match is not None
    body = value if isinstance(value, dict) else {}
    by_client, session = match["endpoint"] is None, ""
    if by_client:
        endpoint = _by_index(blocks, body.get("fn_index"))
        session = session_of(body.get("session_hash"))
    else:
        endpoint = _by_name(blocks, match["endpoint"])
    name, parameters = f"/{endpoint.api_name}", list(signature(endpoint.fn).parameters.values())
    arguments = value if match["by_name"] else body.get("data")
    _check_names(name, arguments, parameters) if match["by_name"] else _check_count(name, arguments, parameters)
    for file in [item for item in _objects(arguments) if "path" in item]:
        upload = upload_of(file)
        # With other fields, Gradio would look for the file by itself.
        file.clear()
        file.update(path=str(upload.path), orig_name=upload.name)
    own = {"fn_index": body["fn_index"], "session_hash": session} if by_client else {}
    return Call(arguments if match["by_name"] else {"data": arguments, **own}, session)


def check_fields(path: str, value: Any) -> None:
    """Check a request of a program that is no call.

    Raises:
        RequestError: a field is missing, or of another type.
    """
    for name, kind in FIELDS.get(path.rstrip("/"), {}).items():
        field = value.get(name) if isinstance(value, dict) else None
        if not isinstance(field, kind) or isinstance(field, bool):
            raise RequestError(400, f"{name} = {quote(field)}: expected a {'text' if kind is str else 'whole number'}")


def session_of(session: Any) -> str:
    """The session of a client.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(session, str) or re.fullmatch(SESSION, session) is None:
        raise RequestError(400, f"session_hash = {quote(session)}: expected 1 to 128 letters and digits")
    return session


def _by_name(blocks: gr.Blocks, name: str) -> Any:
    endpoints = {str(fn.api_name): fn for fn in blocks.fns.values()}
    if name not in endpoints:
        raise RequestError(404, f"endpoint {quote(name)}: expected {choices(endpoints)}")
    return endpoints[name]


def _by_index(blocks: gr.Blocks, index: Any) -> Any:
    # A bool is an int in Python.
    if isinstance(index, bool) or not isinstance(index, int) or index not in blocks.fns:
        names = choices([str(fn.api_name) for fn in blocks.fns.values()])
        raise RequestError(404, f"fn_index = {quote(index)}: expected an endpoint by its name, {names}")
    return blocks.fns[index]


def _check_names(endpoint: str, arguments: Any, parameters: Sequence[Parameter]) -> None:
    names = [parameter.name for parameter in parameters]
    if not names:
        if arguments != {}:
            raise MethodError(f"{endpoint}: the body = {quote(arguments)}; expected an empty object")
        return
    values = fields(endpoint, arguments, names)
    required = [parameter.name for parameter in parameters if parameter.default is Parameter.empty]
    missing = [name for name in required if name not in values]
    if missing:
        raise MethodError(f"{endpoint}: {listing(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def _check_count(endpoint: str, values: Any, parameters: Sequence[Parameter]) -> None:
    if not isinstance(values, list) or len(values) != len(parameters):
        text = f"{len(values):,} values" if isinstance(values, list) else quote(values)
        names = ", ".join(parameter.name for parameter in parameters) or "none"
        raise MethodError(f"{endpoint}: data = {text}; expected a list of {len(parameters)}: {names}")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack += item.values()
        elif isinstance(item, list):
            stack += item
