"""The targets of fuzzing: functions that take a file or a value, with limits of their cost."""

from __future__ import annotations

import math
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz import formats
from tests.fuzz.corpus import CORPUS, TEXT
from tests.fuzz.formats import Seed
from tests.fuzz.mutations import mutate, repeat_slice
from vitviz import VitvizError

MEGABYTE = 1e6
# Of a processor, for each child, which is refused beyond: as good an answer as a picture. short: it saves time.
CHILD_SECONDS = 3.0
# Of a processor, for all measurements of a case.
CASE_SECONDS = 60.0
MOST_ADDRESSES = 16 * 2**30
# The smallest sizes for growth, in bytes: small constants need large files, and the largest text is as large as a
# JSON body may be.
SLICE_BYTES, TEXT_BYTES = (2**14, 2**14, 2**14, 2**18), 2**17
# Growth is not seen in shorter times, which measure clocks. Eight times the size may take MAX_GROWTH times as long.
FLOOR_SECONDS, MAX_GROWTH = 0.25, 8**1.5


@dataclass(frozen=True)
class Target:
    """A target.

    Args:
        seeds: valid files; None for a target that takes JSON values.
        run: takes the name and the content of a file, or no name and a value.
        seconds, seconds_per_megabyte: limit of the processor time of this process. Children have limits of their own.
        nbytes, nbytes_per_byte: limit of the memory that it takes.
    """

    seeds: Callable[[], list[Seed]] | None
    run: Callable[[str, Any], object]
    seconds: float
    seconds_per_megabyte: float
    nbytes: float
    nbytes_per_byte: float = 0


@cache
def worker() -> Any:
    """A worker whose children get a few seconds."""
    from vitviz.images import isolated_pictures
    from vitviz.worker import shared_worker

    isolated_pictures.LIMITS = replace(isolated_pictures.LIMITS, cpu_seconds=CHILD_SECONDS)
    return shared_worker()


@contextmanager
def no_failure() -> Iterator[None]:
    """A child answers, or is ended by its limits; anything else is wrong."""
    try:
        yield
    except VitvizError as error:
        if "gave no answer" in str(error):
            raise AssertionError(str(error)) from None
        check_message(error)
        raise


def open_picture(name: str, content: bytes) -> object:
    """Read a picture in a child, as the app does."""
    from vitviz.images import isolated_pictures

    reader = f"{isolated_pictures.__name__}:read_picture"
    with tempfile.TemporaryDirectory() as folder, no_failure():
        path = Path(folder, "file")
        path.write_bytes(content)
        arguments, limits = (name, None, "apply"), isolated_pictures.LIMITS
        with isolated_pictures.decoded_by(worker(), reader, open(path, "rb"), arguments, name, limits) as picture:
            return len(picture.png())


@cache
def small_app() -> Any:
    """An app with an endpoint."""
    import gradio as gr

    def endpoint(image: Any, method: str = "rollout") -> Any:
        return image

    with gr.Blocks() as blocks:
        gr.api(endpoint, api_name="attend")
    return blocks


# A request of a page, whose fields are replaced one by one.
BODIES: dict[str, dict[str, Any]] = {
    "queue/join": {"session_hash": "a", "fn_index": 0, "data": [None], "trigger_id": 1, "batched": False},
    "call/attend": {"data": [None, "rollout"]},
    "call/v2/attend": {"image": None, "method": "rollout"},
}


def check_body(value: Any) -> None:
    """Check the JSON of a call as every route of calls does."""
    from vitviz.ui.server.bodies import RequestError
    from vitviz.ui.server.calls import checked_call
    from vitviz.ui.server.routes import PREFIX

    for path, body in BODIES.items():
        inside = [{**body, "data": [{"path": value}, value], "image": {"path": value}}] if "data" in body else []
        for candidate in (value, *({**body, name: value} for name in body), *inside):
            try:
                checked_call(small_app(), f"{PREFIX}/{path}", candidate)
            except (VitvizError, RequestError) as error:
                check_message(error)


def check_headers(value: Any) -> None:
    """Check the headers of a request."""
    from vitviz.ui.server.bodies import RequestError
    from vitviz.ui.server.hosts import HostRules
    from vitviz.ui.server.routes import find_route

    text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b"x"
    # What the server reads of a head, at most.
    text = text[: 2**16]
    find_route("GET", text.decode("latin-1"))
    for name in (b"host", b"x-forwarded-host", b"x-forwarded-for", b"x-forwarded-proto", b"origin"):
        scope = {"client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost"), (name, text)]}
        for rules in (HostRules.of().admit, HostRules.of().check_origin):
            with suppress(RequestError):
                rules(scope)


def check_message(error: Exception) -> None:
    if len(str(error)) > 3000 or not str(error).isprintable():
        raise AssertionError(f"a message of {len(str(error)):,} letters") from error


def check_value(name: str, value: object) -> object:
    from vitviz.ui.server.bodies import RequestError

    for function in value_functions().values():
        # A text may be a value, the name of a field, or the path of an upload.
        for candidate in (value, {value: 1}, {"path": value}) if isinstance(value, str) else (value,):
            try:
                function(candidate)
            except (VitvizError, RequestError) as error:
                check_message(error)
    return None


def value_functions() -> Mapping[str, Callable[[Any], object]]:
    """The functions of the app that take JSON values, by name."""
    from vitviz.attribution import json_values, requests
    from vitviz.ui import links, pictures, state
    from vitviz.weights.overrides import parse_overrides

    return {
        "upload": pictures.upload_of,
        "word": lambda value: json_values.word("x", value, ("mean", "max")),
        "number": lambda value: json_values.number("x", value, 0, 1),
        "whole number": lambda value: json_values.number("x", value, 1, 9, whole=True),
        "switch": lambda value: json_values.switch("x", value),
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


def open_hurt(name: str, content: bytes) -> object:
    """Open a file of the corpus."""
    hurt = CORPUS[name]
    if hurt.file == TEXT:
        return check_value("", content.decode())
    return open_picture(hurt.file, content)


TARGETS: dict[str, Target] = {
    "pictures": Target(formats.pictures, open_picture, 20.0, 1.0, 5e8),
    "corpus": Target(None, open_hurt, 20.0, 2.0, 5e8),
    "values": Target(None, check_value, 20.0, 4.0, 1e8, 200),
}


SEEDS: dict[str, list[Seed]] = {}


@dataclass(frozen=True)
class Case:
    """A file or a value, or several from one size to eight times that size.

    Args:
        name: name of the file.
        inputs: one, or several that grow.
    """

    name: str
    inputs: list[Any]


def draw_case(target: str, seed: int, number: int) -> Case:
    """The case of a number, always the same."""
    if target == "corpus":
        name, hurt = list(CORPUS.items())[number % len(CORPUS)]
        return Case(name, [hurt.make(hurt.size)])
    chance = random.Random(f"{target} {seed} {number}")
    seeds = TARGETS[target].seeds
    if seeds is None:
        is_text = chance.random() < 0.5
        return Case("", list(formats.growing_texts(TEXT_BYTES, chance)) if is_text else [formats.json_value(chance)])
    files = SEEDS.setdefault(target, seeds())
    file, is_slice = files[number % len(files)], chance.random() < 0.5
    grown = repeat_slice(file.units, chance.choice(SLICE_BYTES), chance) if is_slice else [mutate(file.units, chance)]
    return Case(file.name, [file.build(units) for units in grown])


def peak() -> int:
    """The peak memory of this process in bytes, since :func:`forget_peak` if the system can reset it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def measure(target: Target, name: str, content: Any) -> tuple[float, int, str]:
    """Seconds of a processor, bytes, and an error or an empty text."""
    forget_peak()
    before, start, wrong = peak(), time.process_time(), ""
    try:
        target.run(name, content)
    except VitvizError:
        pass
    except Exception as error:
        wrong = f"{type(error).__name__}: {str(error)[:200]}"
    return time.process_time() - start, peak() - before, wrong


def judge(target: Target, case: Case) -> str:
    """What is wrong with a case, or an empty text. Other processes may slow down a measurement, but not three."""
    times = []
    for content in case.inputs:
        size = len(content) if isinstance(content, bytes) else len(repr(content))
        seconds, grown, wrong = measure(target, case.name, content)
        most = target.seconds + target.seconds_per_megabyte * size / MEGABYTE
        if not wrong and seconds > min(most, FLOOR_SECONDS):
            seconds = min(seconds, *(measure(target, case.name, content)[0] for _ in range(2)))
        if wrong or seconds > most or grown > target.nbytes + target.nbytes_per_byte * size:
            return wrong or f"{seconds:.2f} s and {grown:,} bytes of memory for {size:,} bytes"
        times.append(seconds)
    if times[-1] > FLOOR_SECONDS and len(times) > 1 and times[-1] > MAX_GROWTH * max(times[0], 1e-3):
        return f"{times[0]:.3f} to {times[-1]:.3f} s for eight times as much"
    return ""


def findings(
    target: str, seed: int, first: int, count: int = sys.maxsize, end: float = math.inf
) -> Iterator[tuple[int, str]]:
    """What is wrong with each case of some numbers, or an empty text.

    Args:
        target, seed: of the cases.
        first, count: the first number, and how many there are.
        end: of :func:`time.monotonic`, after which no case begins.
    """
    # Imports the app, which is no part of a case.
    check_value("", {})
    for number in range(first, first + count):
        if time.monotonic() >= end:
            break
        with limited():
            why = judge(TARGETS[target], draw_case(target, seed, number))
        yield number, why


@contextmanager
def limited() -> Iterator[None]:
    """At most :data:`CASE_SECONDS` of a processor, and :data:`MOST_ADDRESSES`."""

    def stop(*_: object) -> None:
        raise AssertionError(f"no answer in {CASE_SECONDS:g} s of a processor")

    _, most = former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, most))
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, former)
