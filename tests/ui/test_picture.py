"""Files of shown pictures are whole at any moment."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitviz.ui.picture import PictureOutput


@pytest.mark.parametrize("form", ["png", "webp"])
def test_a_picture_that_is_shown_again_is_not_written_again(tmp_path: Path, form: str) -> None:
    shown = PictureOutput(format=form)
    shown.GRADIO_CACHE = str(tmp_path)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8))
    path = Path(shown.postprocess(image).path)
    os.utime(path, (1, 1))
    before = path.stat()
    assert Path(shown.postprocess(image).path) == path
    assert path.stat().st_ino == before.st_ino and path.stat().st_mtime > 1
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    with Image.open(path) as written:
        assert written.size == (30, 20)
    other = Path(shown.postprocess(image.rotate(180)).path)
    assert other != path and path.suffix == f".{form}"


def test_no_picture_is_none(tmp_path: Path) -> None:
    assert PictureOutput().postprocess(None) is None
