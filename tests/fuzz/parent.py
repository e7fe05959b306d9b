"""Runs cases in a separate process, which may hang or die without harm."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
# A process without output for this many seconds hangs, even on a busy machine; a long computation ends by itself.
PATIENCE = 600.0
DIED = "the process died, or took more than a minute of a processor"


def findings(target: str, seed: int, first: int, count: int) -> Iterator[tuple[int, str]]:
    """The numbers of the failing cases, and what is wrong with each."""
    # C libraries write warnings about damaged files there.
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        yield from _findings(errors, target, seed, first, count)


def _findings(errors: IO[str], target: str, seed: int, first: int, count: int) -> Iterator[tuple[int, str]]:
    end = first + count
    while first < end:
        reached = first
        begun: int | None = None
        why = ""
        for line in _lines(errors, target, seed, first, end - first):
            if line is None:
                why = f"no answer for {PATIENCE:g} s"
                break
            event = json.loads(line)
            if "begin" in event:
                begun = event["begin"]
            else:
                begun, reached = None, event["end"] + 1
                if event["wrong"]:
                    yield event["end"], event["wrong"]
        if begun is None:
            if reached < end:
                errors.seek(0)
                raise RuntimeError(f"the process for {target} ended early: {errors.read()[-2000:]}")
            return
        yield begun, why or DIED
        first = begun + 1


def _lines(errors: IO[str], target: str, seed: int, first: int, count: int) -> Iterator[str | None]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.child", target, *map(str, (seed, first, count))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=PATIENCE)
                except queue.Empty:
                    yield None
                    return
                if line is None:
                    return
                yield line
        finally:
            process.kill()


def _pass_on(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
