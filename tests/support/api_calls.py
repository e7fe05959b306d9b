"""Calls of the public API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
from gradio_client import Client, handle_file

from tests.support.example import EXAMPLE
from tests.support.waiting import HANG_SECONDS
from vitviz.ui.api import Api, answering
from vitviz.ui.server.rule import UnderWay
from vitviz.ui.service import AnalysisService

ENDPOINTS = ("/models", "/open", "/methods", "/analyze", "/maps", "/overlay")
PHOTO = handle_file(str(EXAMPLE))
JSON = {"Content-Type": "application/json"}
# For httpx, which else reads all certificates for each call.
PLAIN: dict[str, Any] = {"timeout": HANG_SECONDS, "verify": False}


def endpoints(service: AnalysisService) -> SimpleNamespace:
    """The endpoints of a service, as they answer calls."""
    api, under_way = Api(service), UnderWay()
    return SimpleNamespace(**{name[1:]: answering(getattr(api, name[1:]), under_way) for name in ENDPOINTS})


def maps(client: Client, analysis_id: str, *requests: Any) -> list[dict[str, Any]]:
    return list(client.predict(id=analysis_id, maps=list(requests), api_name="/maps"))


ROLLOUT = {"method": "rollout"}


def post_json(address: str, endpoint: str, body: bytes, headers: dict[str, str] = JSON) -> httpx.Response:
    return httpx.post(f"{address}/gradio_api/{endpoint}", content=body, headers=headers, **PLAIN)


def answer_of(address: str, endpoint: str, body: bytes) -> str:
    """The answer to a call over plain HTTP: the events of its stream."""
    event = post_json(address, endpoint, body).json()["event_id"]
    return httpx.get(f"{address}/gradio_api/{endpoint}/{event}", **PLAIN).text
