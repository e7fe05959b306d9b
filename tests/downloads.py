"""What the tests of a download share: a repository, where it is in the cache, and how a refusal is told."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.hub_server import HubServer
from tests.support.hub_answers import Request
from vitviz import CheckpointError
from vitviz.weights.hub.download import DownloadProgress
from vitviz.weights.hub.names import is_cached

ROOT = Path(__file__).parents[1]
NAME = "someone/vit-small"
WEIGHTS = "model.safetensors"
CONFIG = b'{"model_type": "vit"}'
CONTENT = random.Random(0).randbytes(1_500_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
TOTAL = len(CONFIG) + len(CONTENT)


@contextmanager
def refused(*found: str, name: str = NAME, within: float = 5.0) -> Iterator[None]:
    """What happens inside is refused with one sentence that names the repository, and leaves nothing finished."""
    start = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    for part in found:
        assert part in message, f"{part!r} is not in {message!r}"
    assert "\n" not in message
    assert len(message) < 500
    # Visitors of an app read it as well.
    assert not any(str(folder) in message for folder in (constants.HF_HUB_CACHE, constants.HF_HOME, Path.home()))
    assert time.monotonic() - start < within
    assert not is_cached(name)


def storage(home: Path) -> Path:
    return home / "hub" / f"models--{NAME.replace('/', '--')}"


def cached(home: Path) -> set[str]:
    """Everything in the cache of a repository that is not a folder, without what is begun."""
    root = storage(home)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}
    return {path for path in found if not path.endswith(".incomplete")}


def ranges(requests: list[Request]) -> list[str | None]:
    return [request.range for request in requests]


def steady(reports: list[DownloadProgress]) -> list[int]:
    """What the reports say is there, of which there is never less."""
    done = [report.done for report in reports]
    assert all(report.repository == NAME for report in reports)
    assert done == sorted(set(done))
    return done


def run(server: HubServer, home: Path, code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A process of its own whose huggingface_hub reads its environment as anybody's does."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from vitviz.weights.hub.download import download\n{code}", *arguments],
        cwd=ROOT,
        env=server.environment(home, OMP_NUM_THREADS="1", **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
