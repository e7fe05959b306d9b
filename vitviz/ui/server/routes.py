"""The routes that the app serves; every other path is answered 404."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from vitviz.system.strangers import JSON_BYTES, TOOL_BYTES

HEALTH, PREVIEW = "/health", "/preview"
PREFIX = "/gradio_api"
UPLOAD = f"{PREFIX}/upload"
MCP = f"{PREFIX}/mcp"
JOIN = f"{PREFIX}/queue/join"
EVENT_STREAM = f"{PREFIX}/queue/data"
FILE = f"{PREFIX}/file="
DEVICE = "/device/"
# The session names of Gradio's clients: `Math.random().toString(36)`, a UUID, a token.
SESSION = r"[\w-]{1,128}"
NAME = r"[^/]+"


class Body(Enum):
    """The kind of a request's body, and its most bytes; None for an upload, which has a setting."""

    NONE = 0
    JSON = JSON_BYTES
    TOOL = TOOL_BYTES
    UPLOAD = None


@dataclass(frozen=True)
class Route:
    """A route that is served.

    Args:
        methods: HTTP methods.
        pattern: a regular expression for the whole path below the app's root.
        reason: who needs the route.
        body: the kind of its body.
        is_short: whether a few of one visitor are answered at a time, until the response begins.
    """

    methods: tuple[str, ...]
    pattern: str
    reason: str
    body: Body = Body.NONE
    is_short: bool = False


GET, POST, READ = ("GET",), ("POST",), ("GET", "HEAD")

ROUTES: tuple[Route, ...] = (
    Route(READ, HEALTH, "monitors and proxies ask whether the app answers"),
    Route(READ, "/", "the page; Gradio asks for its head once it listens", is_short=True),
    Route(READ, PREVIEW, "pages that show a link ask for its picture", is_short=True),
    Route(READ, f"/static/{NAME}/{NAME}", "the page's script and styles"),
    Route(READ, DEVICE, "the page that computes on the visitor's device", is_short=True),
    Route(READ, f"{DEVICE}{NAME}/{NAME}", "its scripts, kernels, weights and pictures"),
    Route(GET, f"/files/{NAME}/{NAME}", "the page asks for layers and pictures", is_short=True),
    Route(GET, f"/made/{NAME}/{NAME}", "what a run of the page has made", is_short=True),
    Route(POST, "/upload", "pictures and checkpoints", Body.UPLOAD, is_short=True),
    Route(
        POST,
        "/(?:map|describe)",
        "the page asks for maps and links",
        Body.JSON,
        is_short=True,
    ),
    Route(POST, "/(?:run|end)", "what takes long on the page, and its end", Body.JSON),
    Route(READ, r"/robots\.txt", "crawlers ask for it"),
    Route(GET, f"{PREFIX}/startup-events", "Gradio starts its queue by it, once, when it listens"),
)
# Served for programs, unless the operator leaves them out.
API_ROUTES: tuple[Route, ...] = (
    Route(GET, "/config/?", "Gradio's clients"),
    Route(GET, f"{PREFIX}/info/?", "Gradio's clients read the types of the endpoints"),
    Route(GET, f"{PREFIX}/app_id", "Gradio's clients ask whether the server was started again"),
    Route(POST, UPLOAD, "uploads of Gradio's clients", Body.UPLOAD, is_short=True),
    Route(READ, f"{re.escape(FILE)}.+", "uploads and files that the app has made", is_short=True),
    Route(POST, JOIN, "calls by Gradio's clients", Body.JSON, is_short=True),
    Route(GET, EVENT_STREAM, "the answers to them"),
    Route(POST, f"{PREFIX}/cancel", "a client stops waiting", Body.JSON),
    Route(POST, f"{PREFIX}/reset/?", "Gradio's clients call it when a job is cancelled", Body.JSON),
    Route(POST, f"{PREFIX}/call/(?:v2/)?{NAME}/?", "calls by plain HTTP", Body.JSON, is_short=True),
    Route(GET, f"{PREFIX}/call/(?:v2/)?{NAME}/{SESSION}", "the answer to a call by plain HTTP"),
)
# Served if the operator enables MCP.
TOOL_ROUTES: tuple[Route, ...] = (
    Route(("GET", "DELETE"), f"{MCP}/?", "language models listen for messages, and end their session"),
    Route(POST, f"{MCP}/?", "language models call the endpoints as tools", Body.TOOL),
    Route(GET, f"{MCP}/schema", "the hub reads the list of tools"),
)


def find_route(method: str, path: str, *, api: bool = True, tools: bool = False) -> Route | None:
    """The route that serves a request, or None.

    Args:
        method, path: of the request; the path is decoded and lies below the app's root.
        api, tools: whether the app serves programs, and MCP.
    """
    routes = (*ROUTES, *(API_ROUTES if api else ()), *(TOOL_ROUTES if tools else ()))
    found = (route for route in routes if method in route.methods and re.fullmatch(route.pattern, path))
    return next(found, None)
