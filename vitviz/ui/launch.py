"""Launching the app."""

from __future__ import annotations

import gc
import logging
import os
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitviz.errors.extras import needs
from vitviz.errors.kinds import ConfigError
from vitviz.ui.app import App
from vitviz.ui.environment import IN_USE, hidden_environment, listening_address
from vitviz.ui.server.connections import impatient_servers
from vitviz.worker import check_limits, shared_worker
from vitviz.worker.child import IS_LINUX

# The environment variable with which Gradio serves the endpoints as tools.
MCP = "GRADIO_MCP_SERVER"
NO_WALL = (
    "a picture that takes over its decoder may rename and delete files of this user, and end its processes: expected "
    "Linux 5.13 or newer with Landlock, or an app that root starts"
)


def serve(demo: App, *, block: bool = True, quiet: bool = False, **options: Any) -> str:
    """Launch the app, print its address and return it; the address is empty when Gradio reloads a running app.

    Args:
        demo: the app of :func:`vitviz.ui.build_demo`.
        block: until it is interrupted.
        quiet: print nothing.
        options: of ``gradio.Server.launch``, such as ``server_name`` and ``server_port``, which
            :func:`vitviz.ui.environment.listening_address` takes.

    Raises:
        ConfigError: the environment asks for an MCP server, whose package is not installed, nobody can listen at this
            address, or the system does not keep the limits of processes that open files.
    """
    host, port = listening_address(options.pop("server_name", None), options.pop("server_port", None))
    # Gradio would end with a traceback.
    if os.environ.get(MCP, "").lower() == "true" and find_spec("mcp") is None and demo.server_settings.api:
        raise ConfigError(needs(f"{MCP}=true", "mcp"))
    # They log what a client sends, some of it as nobody's.
    for package in ("mcp", "python_multipart"):
        logging.getLogger(package).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(lambda record: "mcp" not in Path(record.pathname).parts)
    settings, service = demo.server_settings, demo.handlers.service
    service.share(settings.is_shared(host, has_tunnel=bool(options.get("share"))))
    if not IS_LINUX and not quiet:
        print("this system has no limit of memory for the processes that open files")
    # This starts the fork server, too, so that the first visitor does not wait for it.
    if not check_limits(shared_worker()) and not quiet:
        print(NO_WALL)
    demo.rules = replace(
        demo.rules,
        hosts=(*demo.rules.hosts, host.strip("[]")),
        refuses_proxies=settings.shared is None and not service.models.is_shared,
    )
    try:
        with hidden_environment(), impatient_servers():
            _, address, share_address = demo.launch(
                **{"prevent_thread_lock": True, "quiet": True, "server_name": host, "server_port": port, **options}
            )
    except OSError as error:
        # Gradio's sentence names options of its own.
        if "empty port" not in str(error):
            raise
        raise ConfigError(IN_USE.format(port or "7860 to 7959")) from None
    if not address:
        return ""
    # A browser opens no address that stands for all.
    address, blocks = str(share_address or address).rstrip("/").replace("[::]", "[::1]"), demo.get_blocks()
    service.folder.watch()
    if not quiet:
        print(f"vitviz runs at {address} (Ctrl-C ends it)", flush=True)
    if block:
        # A search of all that was imported for garbage takes 0.2 s, in which every thread stands still.
        gc.freeze()
        # Gradio's own way of waiting looks ten times a second.
        try:
            while blocks.is_running:
                time.sleep(1)
        except KeyboardInterrupt:
            blocks.close(verbose=False)
    return address
