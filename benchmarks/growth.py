"""Peak memory of `vitviz batch` for 500 and for 10,000 pictures: ``python -m benchmarks.growth``.

Each number runs in its own process. The pictures are small noise images, so that 10,000 take only minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

COUNTS = (500, 10_000)
WIDTH, HEIGHT = 96, 72
MIB = 2**20


def make_pictures(folder: Path, count: int) -> None:
    """Write JPEGs of smooth noise, the same ones every time."""
    random = np.random.default_rng(0)
    for number in range(count):
        noise = random.integers(0, 256, (HEIGHT // 12, WIDTH // 12, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((WIDTH, HEIGHT)).save(folder / f"{number:06d}.jpg", quality=80)


def peak_of(count: int, resolution: int = 32) -> int:
    """The most bytes that the command holds for new pictures, from its start to its end."""
    with TemporaryDirectory() as folder:
        photos, results = Path(folder) / "photos", Path(folder) / "results"
        photos.mkdir()
        make_pictures(photos, count)
        command = [sys.executable, "-m", "vitviz", "batch", str(photos), str(results), "--map", "rollout"]
        command += ["--resolution", str(resolution)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            messages = process.stderr.read().decode()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: ended with {process.returncode}: {messages.strip()[-400:]}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    for pictures in COUNTS:
        print(f"{pictures:,} pictures: {peak_of(pictures) / MIB:,.0f} MiB", flush=True)
