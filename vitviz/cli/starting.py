"""The command ``vitviz app``, which starts the app."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from vitviz.ui.environment import listening_address


def run(host: str | None, port: int | None, models: Sequence[str] = (), **load_options: Any) -> None:
    """Serve the app until it is ended."""
    listening_address(host, port)
    # Read when torch is imported: its threads would spin on processors that other visitors' work and pictures need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from vitviz.cli.checkpoints import load_with_bar

    start = load_with_bar(**load_options | ({"checkpoint": models[0]} if models else {}))
    # Importing the app takes seconds, so a wrong path or option is refused first.
    from vitviz.ui import build_demo, serve
    from vitviz.ui.hosting import set_up_process
    from vitviz.ui.server.settings import ServerSettings

    server_settings = ServerSettings.of()
    set_up_process(server_settings.threads, server_settings.memory_bytes)
    serve(build_demo(start, server_settings, models[1:]), server_name=host, server_port=port)
