"""What visitors send as JSON and in headers costs little: each value is taken or refused in a short sentence."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import gradio as gr
import pytest
from hypothesis import strategies as st

from tests.support.long_runs import check_drawn, share_of
from vitviz import VitvizError
from vitviz.attribution import json_values, requests
from vitviz.errors.arguments import boolean
from vitviz.ui import links, pictures, state
from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.hosts import HostRules
from vitviz.ui.server.program_calls import CALL, checked_call
from vitviz.ui.server.routes import PREFIX, find_route
from vitviz.weights.overrides import parse_overrides

pytestmark = [pytest.mark.hostile, pytest.mark.process]

# Of a processor, for one value in all functions.
MOST_SECONDS = 20.0
# The largest text is as large as a JSON body may be.
TEXT_BYTES, FACTOR = 2**17, 8
# Growth is not seen in shorter times, which measure clocks. Eight times the size may take MAX_GROWTH times as long.
FLOOR_SECONDS, MAX_GROWTH = 0.25, FACTOR**1.5
# What the largest text may take.
MOST_BYTES = 3e8

# A request of a page, whose fields are replaced one by one.
BODIES: dict[str, dict[str, Any]] = {
    "queue/join": {"session_hash": "a", "fn_index": 0, "data": [None], "trigger_id": 1, "batched": False},
    "call/attend": {"data": [None, "rollout"]},
    "call/v2/attend": {"image": None, "method": "rollout"},
}


@cache
def small_app() -> Any:
    """An app with an endpoint."""

    def endpoint(image: Any, method: str = "rollout") -> Any:
        return image

    with gr.Blocks() as blocks:
        gr.api(endpoint, api_name="attend")
    return blocks


def check_body(value: Any) -> None:
    """Check the JSON of a call as every route of calls does."""
    for path, body in BODIES.items():
        inside = [{**body, "data": [{"path": value}, value], "image": {"path": value}}] if "data" in body else []
        for candidate in (value, *({**body, name: value} for name in body), *inside):
            refusal_of(partial(checked_call, small_app(), CALL.fullmatch(f"{PREFIX}/{path}")), candidate)


def check_headers(value: Any) -> None:
    """Check the headers of a request, of which the server reads so much at most."""
    text = value.encode("utf-8", "surrogatepass")[: 2**16] if isinstance(value, str) else b"x"
    find_route("GET", text.decode("latin-1"))
    for name in (b"host", b"x-forwarded-host", b"x-forwarded-for", b"x-forwarded-proto", b"origin"):
        scope = {"client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost"), (name, text)]}
        for rules in (HostRules.of().admit, HostRules.of().check_origin):
            with suppress(RequestError):
                rules(scope)


FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "upload": pictures.upload_of,
    "word": lambda value: json_values.word("x", value, ("mean", "max")),
    "number": lambda value: json_values.number("x", value, 0, 1),
    "whole number": lambda value: json_values.number("x", value, 1, 9, whole=True),
    "switch": lambda value: boolean("x", value),
    "fields": lambda value: json_values.fields("x", value, ("method", "parameters")),
    "token": lambda value: requests.token_of("x", value, None),
    "class": lambda value: requests.target_of("x", value, requests.Bounds()),
    "state": state.PageState.from_json,
    "view": lambda value: state.PageState.from_json({"views": [{"model": value, "picture": value}]}),
    "link": lambda value: links.read_link(value) if isinstance(value, str) else None,
    "overrides": lambda value: parse_overrides(value.split(",")) if isinstance(value, str) else None,
    "headers": check_headers,
    "body": check_body,
}


def refusal_of(function: Callable[[Any], object], value: object) -> str:
    """The sentence with which a function refuses a value; empty if it takes it."""
    try:
        function(value)
    except (VitvizError, RequestError) as error:
        assert len(str(error)) <= 3000 and str(error).isprintable(), f"a message of {len(str(error)):,} letters"
        return str(error)
    return ""


def seconds_of(value: object) -> float:
    """How long a processor takes for a value in every function."""
    start = time.process_time()
    for function in FUNCTIONS.values():
        # A text may be a value, the name of a field, or the path of an upload.
        for candidate in (value, {value: 1}, {"path": value}) if isinstance(value, str) else (value,):
            refusal_of(function, candidate)
    return time.process_time() - start


def peak_bytes() -> int:
    """The most memory that this process has used."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


KEYS = ("method", "parameters", "path", "orig_name", "meta", "_type", "colormap", "opacity", "smooth", "low", "high")
TEXTS = ("", "a", "\0", "\ud800", "\u202e", "x" * 5000, "1e999", "../../etc/passwd", "[a](b)", "__proto__", "é" * 300)
NUMBERS = (0, -1, 1, 2**31, 2**63, 10**400, 0.5, 1e308, -0.0, float("nan"), float("inf"), True, False, None)
LEAVES = st.sampled_from((*TEXTS, *NUMBERS)) | st.text() | st.floats() | st.integers()
NAMES = st.sampled_from((*KEYS, *TEXTS)) | st.text(max_size=6)
NARROW = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner))


@st.composite
def json(draw: st.DrawFn) -> object:
    """Of every kind, and deep or wide at times."""
    value = draw(NARROW)
    for _ in range(draw(st.sampled_from((0, 0, 10, 500)))):
        value = [value] if draw(st.booleans()) else {"a": value}
    return [value] * 200 if draw(st.integers(0, 9)) == 0 else value


# What the patterns of the app match, and what ends a match.
FRAGMENTS = (
    *'/.-_:@=,;&?#\\"()[{*aA10e \t\n\0İé\u202e\ud800',
    *("//", "..", "%2f", "http://", "https://", "https://x/", "/gradio_api/file=", "gradio_api/file=/", "://", "[::1]"),
    *("example:", "picture:", "own:", "hf:", "method=", "second.", "p.layer=1&", "1.1;"),
    *("like", "rollout", "layer 1", "register 1", "x (1)"),
)
ENDS = st.lists(st.sampled_from(FRAGMENTS), max_size=2).map("".join)
MIDDLES = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3).map("".join)


def check_value(value: object) -> None:
    before = peak_bytes()
    assert seconds_of(value) < MOST_SECONDS and peak_bytes() - before < MOST_BYTES


def is_linear(start: str, middle: str, end: str) -> bool:
    """Whether texts of repeated fragments take time as they grow."""
    short, long = (seconds_of(start + middle * (TEXT_BYTES * factor // len(middle)) + end) for factor in (1, FACTOR))
    return long < MOST_SECONDS and (long < FLOOR_SECONDS or long <= MAX_GROWTH * max(short, 1e-3))


def check_growth(parts: tuple[str, str, str]) -> None:
    # Other processes may slow down a measurement, but not three.
    assert any(is_linear(*parts) for _ in range(3)), parts


@pytest.mark.parametrize("count", [12, pytest.param(share_of(20_000), marks=pytest.mark.long)])
def test_any_json_is_taken_or_refused_in_a_short_sentence(count: int) -> None:
    check_drawn(json(), count, check_value)


@pytest.mark.parametrize("count", [12, pytest.param(share_of(3_000), marks=pytest.mark.long)])
def test_a_text_is_read_in_linear_time(count: int) -> None:
    check_drawn(st.tuples(ENDS, MIDDLES, ENDS), count, check_growth)


# The first is an address of addresses, the last the digits of a misspelt name.
@pytest.mark.parametrize("parts", [("https://x/", "gradio_api/file=/", "\n"), ("", "https://", ""), ("", "1", "")])
def test_a_text_that_once_took_long_is_read_in_linear_time(parts: tuple[str, str, str]) -> None:
    check_growth(parts)
