"""The picture with which the page opens, and resolutions for the bundled model. Imports nothing of a browser."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "assets"
EXAMPLE = ASSETS / "chelsea.jpg"
# 4 and 8 patches a side, for slow methods, and one above its trained size.
COARSEST, COARSE, FINER = 32, 64, 168
# The variable that names the folder for Gradio's files; without it an app has its own.
FILES = "GRADIO_TEMP_DIR"
