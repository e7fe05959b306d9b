"""The app: its page, and its endpoints for programs."""

from __future__ import annotations

import gradio as gr

from vitviz.errors.arguments import instance
from vitviz.ui.api import publish
from vitviz.ui.files import WRITTEN
from vitviz.ui.handlers import Handlers
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.weights import Model, load


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
    delete_cache = (min(3600, server_settings.keep_seconds), server_settings.keep_seconds)
    # The first visitor finds it analysed.
    handlers.start()
    with gr.Blocks(title="vitviz", delete_cache=delete_cache, analytics_enabled=False) as demo:
        publish(demo, service)
    demo.temp_file_sets.append(WRITTEN)
    # vitviz.ui.server.request_filter serves its routes.
    demo.handlers = handlers
    return demo
