"""What a file could do if it took over a child: readers that the child imports by name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def misbehave(ask: Any, kind: str, *arguments: Any) -> Iterator[Any]:
    """A reader that does one thing that it may not do."""
    yield {"pid": os.getpid()}, b""
    if kind == "spin":
        while True:
            pass
    if kind == "sleep":
        time.sleep(1000)
    if kind == "allocate":
        yield {"held": len(b"x" * 2**30)}, b""
    if kind == "allocate a tensor":
        import torch

        yield {"held": torch.zeros(2**28).numel()}, b""
    if kind == "signal":
        os.kill(os.getpid(), arguments[0])
    if kind == "leave":
        os._exit(0)
    if kind == "answer much":
        yield {}, bytes(2**22)
    if kind == "say much":
        yield {"much": "x" * 2**22}, b""
    if kind == "fail":
        raise TypeError("a bug")
    if kind == "write a file":
        Path(arguments[0]).write_text("x")
    if kind == "look around":
        read: dict[str, str] = {}
        for name in ("environ", "mem", "cmdline"):
            try:
                with open(f"/proc/{arguments[0]}/{name}", "rb") as file:
                    read[name] = file.read(9).decode()
            except OSError as error:
                read[name] = type(error).__name__
        status = Path("/proc/self/status").read_text()
        yield {"environment": dict(os.environ), "read": read, "no new privileges": "NoNewPrivs:\t1" in status}, b""
    while kind == "answer":
        yield {"twice": 2 * ask()}, b""


def refuse_forks() -> None:
    """Leave the fork server without a free process."""

    def fork() -> int:
        raise BlockingIOError

    os.fork = fork
