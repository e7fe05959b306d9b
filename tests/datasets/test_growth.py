"""The memory of a batch does not grow with its pictures."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
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


def peak_of(count: int, folder: Path) -> int:
    """The most bytes that the command holds for new pictures, from its start to its end."""
    folder.mkdir()
    make_pictures(folder, count)
    command = [sys.executable, "-m", "vitviz", "batch", folder, f"{folder} results", "--map", "rollout"]
    with subprocess.Popen([*command, "--resolution", "32"], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.long
def test_the_peak_is_that_of_fewer_pictures(tmp_path: Path) -> None:
    """What an analysis keeps of each of the 180 more would be some 600 KB, a quarter as much again."""
    few, many = (peak_of(count, tmp_path / str(count)) for count in (60, 240))
    assert few > 100 * 2**20 and many < 1.1 * few
