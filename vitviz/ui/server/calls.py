"""Checks of a request's JSON before Gradio sees it: the endpoint exists, and has these fields.

Gradio would answer other requests with an empty error, and log a traceback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import gradio as gr

from vitviz.attribution.json_values import fields
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, listing, quote
from vitviz.ui.pictures import upload_of
from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.routes import CANCEL, JOIN, PREFIX, RESET, SESSION

_CALL = re.compile(rf"{PREFIX}/(?P<way>call/v2|call|queue)/(?P<name>[^/]+)/?")
# Programs POST a call here, and GET its answer there.
CALL = re.compile(rf"{PREFIX}/call/(?:v2/)?[^/]+/?")
ANSWER = re.compile(rf"{PREFIX}/call/(?:v2/)?[^/]+/(?P<event>[^/]+)")
_BY_NAME, _QUEUE = "call/v2", "queue"


@dataclass(frozen=True)
class CheckedCall:
    """A request that can be served.

    Args:
        content: its body, with the paths of uploads in the place of their addresses.
        session: of the page or the client, if the request has one.
    """

    content: bytes
    session: str | None = None


def check_json(blocks: gr.Blocks, path: str, content: bytes, value: Any) -> CheckedCall:
    """The checked call of a body.

    Args:
        blocks: the app.
        path: below the app's root.
        content: the body.
        value: its JSON value.

    Raises:
        RequestError, VitvizError: it cannot be served, for a reason of one sentence.
    """
    call = _CALL.fullmatch(path)
    if call is None:
        return CheckedCall(content, _check_service(blocks, path.rstrip("/"), value))
    way, name = call["way"], call["name"]
    # A call by name may have an argument called session_hash.
    session = None if way == _BY_NAME else _session(value, path)
    if path == JOIN and session is None:
        raise RequestError(400, "'session_hash' is missing: expected 1 to 128 letters and digits")
    _check_endpoint(blocks, way, name, value)
    files = [item for item in _objects(value) if "path" in item]
    for file in files:
        file["path"] = str(upload_of(file).path)
    return CheckedCall(json.dumps(value).encode() if files else content, session)


def _check_service(blocks: gr.Blocks, path: str, value: Any) -> str | None:
    """Check a request to one of the other routes; returns its session."""
    if path == CANCEL:
        _typed(value, path, {"session_hash": str, "fn_index": int, "event_id": str})
    elif path == RESET:
        _typed(value, path, {"event_id": str})
    else:
        raise RequestError(404, f"{quote(path)}: no such route")
    return _session(value, path)


def _check_endpoint(blocks: gr.Blocks, way: str, name: str, value: Any) -> None:
    """Check that a call is a legal one of a public endpoint."""
    public = {str(fn.api_name): fn for fn in blocks.fns.values() if fn.api_visibility == "public"}
    index = value.get("fn_index") if way == _QUEUE and isinstance(value, dict) else None
    if index is None:
        endpoint = public.get(name)
        if endpoint is None and way == _QUEUE:
            raise RequestError(400, "expected an object with 'fn_index', 'data' and 'session_hash'")
        if endpoint is None:
            raise RequestError(404, f"endpoint {quote(name)}: expected {choices(public)}")
    else:
        if not _is(index, int) or index not in blocks.fns:
            raise RequestError(404, f"fn_index = {quote(index)}: expected an endpoint by its name, {choices(public)}")
        endpoint = public.get(str(blocks.fns[index].api_name))
    if endpoint is None:
        raise RequestError(404, f"fn_index = {index}: expected an endpoint by its name, {choices(public)}")
    parameters = list(signature(endpoint.fn).parameters.values()) if endpoint.fn else []
    (_check_names if way == _BY_NAME else _check_values)(f"/{endpoint.api_name}", value, parameters)


def _check_names(endpoint: str, value: Any, parameters: Sequence[Parameter]) -> None:
    names = [parameter.name for parameter in parameters]
    if not names:
        if value != {}:
            raise MethodError(f"{endpoint}: the body = {quote(value)}; expected an empty object")
        return
    values = fields(endpoint, value, names)
    required = [parameter.name for parameter in parameters if parameter.default is Parameter.empty]
    missing = [name for name in required if name not in values]
    if missing:
        raise MethodError(f"{endpoint}: {listing(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def _check_values(endpoint: str, value: Any, parameters: Sequence[Parameter]) -> None:
    values = value.get("data") if isinstance(value, dict) else None
    if not isinstance(values, list) or len(values) != len(parameters):
        text = f"{len(values):,} values" if isinstance(values, list) else quote(values)
        names = ", ".join(parameter.name for parameter in parameters) or "none"
        raise MethodError(f"{endpoint}: data = {text}; expected a list of {len(parameters)}: {names}")


def _session(value: Any, path: str) -> str | None:
    """The session of a request, or None.

    Raises:
        RequestError: it is no legal one.
    """
    session = value.get("session_hash") if isinstance(value, dict) else None
    if session is not None and (not isinstance(session, str) or re.fullmatch(SESSION, session) is None):
        raise RequestError(400, f"session_hash = {quote(session)}: expected 1 to 128 letters and digits")
    return session


def _typed(value: Any, path: str, kinds: Mapping[str, type]) -> None:
    """Refuse a value that is no object with fields of these types."""
    if not isinstance(value, dict):
        raise RequestError(400, f"the body = {quote(value)}: expected an object with {listing(list(kinds))}")
    for name, kind in kinds.items():
        if name not in value:
            raise RequestError(400, f"{name!r} is missing: expected {listing(list(kinds))}")
        if not _is(value[name], kind):
            raise RequestError(400, f"{name} = {quote(value[name])}: expected {_KINDS[kind]}")


_KINDS: dict[type, str] = {str: "text", int: "a whole number", list: "a list", object: "anything"}


def _is(value: Any, kind: type) -> bool:
    # A bool is an int in Python.
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


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
