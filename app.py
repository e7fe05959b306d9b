"""The app: run it and open the address that it prints. Also the entry of a Hugging Face Space."""

from vitviz.ui import build_demo, serve
from vitviz.ui.hosting import prepare
from vitviz.ui.knobs import Knobs

knobs = Knobs.of()
prepare(knobs.threads)
demo = build_demo(knobs=knobs)

if __name__ == "__main__":
    serve(demo, knobs)
