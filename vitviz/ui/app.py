"""The app: a :class:`gradio.Server` with the routes of the page, and endpoints for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr

from vitviz.errors.arguments import instance
from vitviz.system.machine import used_memory
from vitviz.ui.api import publish
from vitviz.ui.device import device_models
from vitviz.ui.handlers import Handlers
from vitviz.ui.page_routes import PageRoutes
from vitviz.ui.server.fetching import forbid_fetching
from vitviz.ui.server.hosts import HostRules
from vitviz.ui.server.request_filter import RequestFilter
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.weights import ZOO, Model, load

# Events of programs that have begun; inside, they wait in the same lines as the runs of the page, without a thread.
MAX_EVENTS = 4000
# Sessions of the clients of programs, which Gradio remembers.
MAX_SESSIONS = 100
# The intervals at which Gradio's queue looks for events, and for their progress, of which these have none. By itself it
# looks a thousand times a second, which takes an idle server a thirtieth of a processor.
EVENT_SECONDS, PROGRESS_SECONDS = 0.1, 60.0


class App(gr.Server):
    """Gradio's server with the routes of the page, behind a :class:`RequestFilter`.

    Args:
        handlers: answer the page.
        server_settings: limits of the app.

    Attributes:
        rules: the hosts and origins that are served.
    """

    def __init__(self, handlers: Handlers, server_settings: ServerSettings) -> None:
        super().__init__(title="vitviz", openapi_url=None, docs_url=None, redoc_url=None)
        self.handlers, self.server_settings = handlers, server_settings
        self.rules = HostRules.of(server_settings.hosts, server_settings.trusted_proxies, server_settings.frames)
        page = PageRoutes(handlers)
        # They come before Gradio's, so that those of the same path are never reached.
        self.router.routes.extend(page.routes)
        with gr.Blocks(title="vitviz", mode="server", analytics_enabled=False) as self.blocks:
            if server_settings.api:
                publish(self.blocks, handlers.service)
        self.blocks._queue.sleep_when_free = EVENT_SECONDS
        self.blocks._queue.progress_update_sleep_when_free = PROGRESS_SECONDS
        forbid_fetching()

    def build_middleware_stack(self) -> Any:
        """Gradio's own middlewares, and the :class:`RequestFilter` in the place of the one that answers errors."""
        errors: Any = super().build_middleware_stack()
        service, max_bytes = self.handlers.service, self.server_settings.upload_bytes
        return RequestFilter(errors.app, self.get_blocks(), self.rules, service.under_way, service.folder, max_bytes)

    def launch(self, **options: Any) -> Any:  # type: ignore[override]
        """Start the server, as ``gradio.Server.launch`` does; see :func:`vitviz.ui.serve`."""
        # Server.launch makes Blocks of its own, without the fields of the endpoints.
        defaults = {
            # With it, Gradio requests its own page and gives up after three seconds, too few for a busy machine.
            "_frontend": False,
            "ssr_mode": False,
            "max_threads": MAX_EVENTS,
            "max_file_size": self.server_settings.upload_bytes,
            "state_session_capacity": MAX_SESSIONS,
            "footer_links": [],
            "enable_monitoring": False,
            "run_history": False,
        }
        if self.server_settings.api:
            # Gradio would import it in the first call, while all other requests wait.
            import matplotlib.pyplot  # noqa: F401
        else:
            options["mcp_server"] = False
        return self.get_blocks().launch(_app=self, **{**defaults, **options})


def build_demo(
    model: Model | None = None, server_settings: ServerSettings | None = None, others: Sequence[str] = ()
) -> App:
    """The app, with an example already analysed. Launch it with :func:`vitviz.ui.serve`.

    Args:
        model: with which the page opens; the bundled checkpoint by default.
        server_settings: limits of the app; those of the environment by default.
        others: further models, which visitors may choose, each as :func:`vitviz.load` takes it.

    Raises:
        CheckpointError: one of the models cannot be loaded.
        ConfigError: an environment variable is not legal, the model is no model, the app has too little memory, or a
            page on the visitor's device cannot run a model that a setting names.
    """
    server_settings = server_settings or ServerSettings.of()
    if model is not None:
        instance("model", model, Model, "vitviz.load()")
    start = model or load()
    # What visitors run on their own device, they may choose here, too.
    of_devices = [name for name in server_settings.device_models or () if name in ZOO]
    service = AnalysisService(start, server_settings, others=list(dict.fromkeys([*others, *of_devices])))
    # Before the first analysis, which would be refused for its own size.
    server_settings.check_memory(used_memory())
    handlers = Handlers(service, device_models(start, server_settings.device_models))
    with ThreadPoolExecutor(1) as thread:
        # The first visitor finds it analysed. A notebook has an event loop in its own thread.
        thread.submit(asyncio.run, handlers.start()).result()
        if server_settings.device_models and handlers.device.models:
            # A model that no page can run is refused now.
            thread.submit(asyncio.run, handlers.device.files()).result()
    return App(handlers, server_settings)
