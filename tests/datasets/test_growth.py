"""The memory of a batch does not grow with its pictures."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitviz import Analysis, Model
from vitviz.attention.trace import AttentionTrace
from vitviz.datasets import BatchRequest, MapRequest, read_items
from vitviz.datasets import run_batch as run
from vitviz.progress import Progress


@pytest.mark.slow
def test_no_more_analyses_are_held_of_more_pictures(make_model: Callable[..., Model], tmp_path: Path) -> None:
    request = BatchRequest(make_model(), (MapRequest("rollout"),))

    def held(count: int) -> int:
        """The analyses and traces of a batch that has come to its last pictures."""
        photos = tmp_path / f"photos {count}"
        photos.mkdir()
        make_pictures(photos, count)
        found: list[int] = []

        def look(state: Progress) -> None:
            if state.done == count:
                found.append(sum(isinstance(each, Analysis | AttentionTrace) for each in gc.get_objects()))

        run(request, read_items(str(photos)), tmp_path / f"results {count}", batch_size=4, report=look)
        return max(found)

    few, many = held(16), held(40)
    # Some are made ahead.
    assert few > 0 and many < few + 12


def make_pictures(folder: Path, count: int) -> None:
    """Write JPEGs of smooth noise."""
    for number in range(count):
        noise = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((96, 72)).save(folder / f"{number:06d}.jpg", quality=80)
