"""Whatever is passed as a path: a checkpoint, a picture or one line that says that there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitviz
from tests.support.reading import load_checkpoint, read_checkpoint
from vitviz import CheckpointError, ImageError
from vitviz.weights.formats.files import open_weights

NO_PATHS = (
    *("x" * 5000, "/" + "x/" * 3000, "a\0b", "\ud800", "\udcff", "   ", "a\nb", "C:\\x" * 2000, "~nobody/x"),
    *("hf:" + "x" * 5000 + "/y", "hf:a\0/b", "hf:", Path("x" * 5000), Path("a\0b"), Path("\ud800")),
    *(b"x", 5, None, []),
)


@pytest.mark.parametrize("opener", [vitviz.load, read_checkpoint, load_checkpoint, open_weights])
@pytest.mark.parametrize("source", NO_PATHS, ids=lambda source: ascii(source)[:20])
def test_what_names_no_file_is_refused_in_one_line(opener: Callable[[Any], object], source: object) -> None:
    with pytest.raises(CheckpointError) as refusal:
        opener(source)
    message = str(refusal.value)
    assert message.isprintable() and len(message) < 1500
    assert message.encode()


@pytest.mark.parametrize(
    "source", [source for source in NO_PATHS if source != b"x"], ids=lambda source: ascii(source)[:20]
)
def test_what_names_no_picture_is_refused_in_one_line(source: Any) -> None:
    with pytest.raises(ImageError) as refusal:
        vitviz.open_image(source)
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 1500
