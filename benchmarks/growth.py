"""Peak memory of `vitviz batch` by the number of pictures: ``python -m benchmarks.growth``.

Each number runs in its own process. The pictures are small noise images, so that 10,000 take only minutes.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from PIL import Image

COUNTS = (500, 10_000)
RESOLUTION = 32
WIDTH, HEIGHT = 96, 72
MIB = 2**20


class Peak(NamedTuple):
    """The cost of a command: number of pictures, peak memory in bytes, and seconds of processor time."""

    pictures: int
    nbytes: int
    seconds: float


def make_pictures(folder: Path, count: int) -> None:
    """Write JPEGs of smooth noise, the same ones every time."""
    random = np.random.default_rng(0)
    for number in range(count):
        noise = random.integers(0, 256, (HEIGHT // 12, WIDTH // 12, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((WIDTH, HEIGHT)).save(folder / f"{number:06d}.jpg", quality=80)


def peak_of(count: int, resolution: int = RESOLUTION, options: Sequence[str] = ()) -> Peak:
    """Run the command on new pictures; the peak is that of its process from start to end."""
    with TemporaryDirectory() as folder:
        photos, results = Path(folder) / "photos", Path(folder) / "results"
        photos.mkdir()
        make_pictures(photos, count)
        command = [sys.executable, "-m", "vitviz", "batch", str(photos), str(results), "--map", "rollout"]
        command += ["--resolution", str(resolution), *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            messages = process.stderr.read().decode()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: ended with {process.returncode}: {messages.strip()[-400:]}")
    return Peak(count, _nbytes(usage), usage.ru_utime + usage.ru_stime)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print one line for each number of pictures."""
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="of pictures (default: 500 10000)")
    parser.add_argument(
        "--resolution", type=int, default=RESOLUTION, help="of the model's input (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    first: Peak | None = None
    for count in options.counts:
        peak = peak_of(count, options.resolution)
        first = first or peak
        rate = 1000 * peak.seconds / peak.pictures
        print(
            f"{peak.pictures:,} pictures: {peak.nbytes / MIB:,.0f} MiB, {peak.nbytes / first.nbytes:.3f} of the first; "
            f"{rate:.3g} ms of processor time each",
            flush=True,
        )
    return 0


def _nbytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
