"""The app: run it and open the address that it prints. Also the entry of a Hugging Face Space."""

from vitviz.ui import build_demo, serve
from vitviz.ui.hosting import prepare
from vitviz.ui.server.settings import ServerSettings

server_settings = ServerSettings.of()
prepare(server_settings.threads, server_settings.app_bytes)
demo = build_demo(server_settings=server_settings)

if __name__ == "__main__":
    serve(demo)
