"""The time of a map from the server, beside that of the library."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from itertools import count
from urllib.parse import urlsplit

import vitviz
from benchmarks.benchmark import Benchmark, Case, Models, Run
from benchmarks.networks import B_16
from vitviz.weights import resources

SERVER = "a request to the app, to the last byte of its answer"
# What changes from map to map, so that no map is kept. The matrices of a rollout stay in memory, as on a page whose
# slider moves: with another weight of the residual connection it takes less than a request.
PARAMETERS = ("discard_ratio", "residual_weight")


def _library(models: Models) -> Run:
    analysis = vitviz.analyze(resources("assets") / "chelsea.jpg", models.vitviz)
    values = (round(0.01 + 0.001 * index, 3) for index in count())
    return lambda: analysis.map("rollout", **{models.case.variant: next(values)})


def _server(models: Models) -> Run:
    from benchmarks.visitor import start_of
    from vitviz.ui import build_demo, serve
    from vitviz.ui.server.settings import ServerSettings

    address = serve(build_demo(models.vitviz, ServerSettings()), block=False, quiet=True)
    connection = HTTPConnection(urlsplit(address).netloc)
    values = (round(0.01 + 0.001 * index, 3) for index in count())

    def answer(method: str, path: str, body: object = None) -> bytes:
        connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse().read()

    request = {"uid": start_of(answer("GET", "/").decode())["views"][0]["uid"], "method": "rollout"}
    return lambda: answer("POST", "/map", {**request, "parameters": {models.case.variant: next(values)}})


BENCHMARK = Benchmark(
    "page",
    "A map of the server",
    "Rollouts, each with a value that no map before had, by the library and by a request to the app, in turns, in one "
    "process.",
    tuple(Case(B_16, 21, variant=parameter) for parameter in PARAMETERS),
    {"the library": _library, SERVER: _server},
    bars={(SERVER, "time"): (1.5, 1.5)},
)
