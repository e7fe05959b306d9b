"""The app: run it and open the address that it prints. Also the entry of a Hugging Face Space."""

import os

# Read when torch is imported: its threads would spin on processors that other visitors' work and pictures need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from vitviz.ui import build_demo, serve
from vitviz.ui.hosting import set_up_process
from vitviz.ui.server.settings import ServerSettings

server_settings = ServerSettings.of()
set_up_process(server_settings.threads, server_settings.memory_bytes)
demo = build_demo(server_settings=server_settings)

if __name__ == "__main__":
    serve(demo)
