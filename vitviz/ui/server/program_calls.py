"""Checks of a program's call before Gradio sees it: the endpoint exists, has these fields, and its files are uploads.

Gradio would answer other calls with an empty error, and log a traceback.
"""

from __future__ import annotations

import json
import re
from inspect import Parameter, signature
from typing import Any

import gradio as gr

from vitviz.attribution.json_values import fields
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, listing, quote
from vitviz.ui.pictures import upload_of
from vitviz.ui.server.routes import JOIN, PREFIX, SESSION
from vitviz.ui.server.rule import RequestError

# Programs POST a call to an endpoint, by Gradio's clients or by plain HTTP.
CALL = re.compile(rf"{JOIN}|{PREFIX}/call/(?P<by_name>v2/)?(?P<endpoint>[^/]+)/?")


def checked_call(blocks: gr.Blocks, match: re.Match[str], value: Any) -> tuple[Any, str]:
    """The JSON of a call as Gradio reads it, and the session of the client, which is empty by plain HTTP.

    Args:
        blocks: the app.
        match: of :data:`CALL` with the path below the app's root.
        value: JSON.

    Raises:
        RequestError, VitvizError: it cannot be served, for a reason of one sentence.
    """
    endpoint, by_name, body = match["endpoint"], match["by_name"], value if isinstance(value, dict) else {}
    names = {str(fn.api_name): fn for fn in blocks.fns.values()}
    key, known = endpoint or body.get("fn_index"), dict[Any, Any](names if endpoint else blocks.fns)
    # A bool is an int in Python, and a list is no key.
    found = known.get(key) if type(key) in (int, str) else None
    if found is None:
        raise RequestError(404, f"endpoint {quote(key)}: expected {choices(names)}")
    session = "" if endpoint else session_of(body.get("session_hash"))
    arguments = json.loads(json.dumps(value if by_name else body.get("data")), object_hook=_own_file)
    _check_fields(f"/{found.api_name}", arguments, signature(found.fn).parameters, is_object=bool(by_name))
    own = {"fn_index": key, "session_hash": session} if session else {}
    return arguments if by_name else {"data": arguments, **own}, session


def _own_file(value: dict[str, Any]) -> dict[str, Any]:
    """An object of a call; if it is a file, an upload with no fields by which Gradio would look for it by itself."""
    if "path" not in value:
        return value
    upload = upload_of(value)
    return {"path": str(upload.path), "orig_name": upload.name}


def session_of(session: Any, name: str = "session_hash") -> str:
    """The session of a client, or an event.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(session, str) or re.fullmatch(SESSION, session) is None:
        raise RequestError(400, f"{name} = {quote(session)}: expected 1 to 128 letters and digits")
    return session


def _check_fields(endpoint: str, values: Any, parameters: Any, *, is_object: bool) -> None:
    if is_object:
        fields(endpoint, values, list(parameters))
        missing = [each for each, it in parameters.items() if it.default is Parameter.empty and each not in values]
        if missing:
            raise MethodError(f"{endpoint}: {listing(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    elif not isinstance(values, list) or len(values) != len(parameters):
        text = f"{len(values):,} values" if isinstance(values, list) else quote(values)
        raise MethodError(f"{endpoint}: data = {text}; expected a list of {len(parameters)}: {', '.join(parameters)}")
