"""The page: one component, which owns the state, and one event."""

from __future__ import annotations

from typing import Any

import gradio as gr

from vitviz.errors.arguments import instance
from vitviz.ui.api import publish
from vitviz.ui.explorer.component import Explorer
from vitviz.ui.files import WRITTEN
from vitviz.ui.handlers import Handlers
from vitviz.ui.runs import Runs
from vitviz.ui.server.fair_lock import RUNS_LONG
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.weights import Model, load


class _HeartbeatBlocks(gr.Blocks):
    """Blocks whose pages keep a heartbeat open, so that the server can stop the runs of a closed page."""

    def get_config_file(self) -> Any:
        # Gradio does so only for pages with a gr.State or an unload event.
        return {**super().get_config_file(), "connect_heartbeat": True}


def build_demo(model: Model | None = None, server_settings: ServerSettings | None = None) -> gr.Blocks:
    """The app, with an example already analysed. Launch it with :func:`vitviz.ui.serve`.

    Args:
        model: with which the page opens; the bundled checkpoint by default.
        server_settings: limits of the app; those of the environment by default.

    Raises:
        CheckpointError: the bundled checkpoint cannot be loaded.
        ConfigError: an environment variable is not legal, or the model is no model.
    """
    server_settings = server_settings or ServerSettings.of()
    if model is not None:
        instance("model", model, Model, "vitviz.load()")
    service = AnalysisService(model or load(), server_settings)
    handlers = Handlers(service)
    runs = Runs(handlers)
    delete_cache = (min(3600, server_settings.keep_seconds), server_settings.keep_seconds)
    with _HeartbeatBlocks(title="vitviz", fill_width=True, delete_cache=delete_cache, analytics_enabled=False) as demo:
        explorer = Explorer(
            handlers.first(),
            functions=list(runs.answers().values()),
            settings=handlers.settings(),
            elem_id="vv-explorer",
        )
        explorer.run(
            runs.run,
            None,
            explorer,
            show_progress="hidden",
            trigger_mode="multiple",
            api_visibility="private",
            **RUNS_LONG,
        )
        publish(demo, service)
    demo.temp_file_sets.append(WRITTEN)
    # vitviz.ui.server.request_filter calls it with the session of a closed page.
    demo.page_closed = runs.closed
    return demo
