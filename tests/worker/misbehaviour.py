"""What a file could do if it took over a child: readers that the child imports by name."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from vitviz.worker import child

PTRACE_SEIZE = 0x4206


def forget_av() -> None:
    """As where PyAV is not installed."""
    sys.modules["av"] = None  # type: ignore[assignment]


def misbehave(ask: Any, kind: str, *arguments: Any) -> Iterator[Any]:
    """A reader that does one thing that it may not do."""
    yield {"pid": os.getpid()}, b""
    if kind == "spin":
        while True:
            pass
    while kind == "spin in parts":
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        yield {}, b""
    if kind == "sleep":
        time.sleep(1000)
    if kind == "drip":
        drip(50_000)
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
        yield {"environment": dict(os.environ), "no new privileges": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)}, b""
    while kind == "answer":
        yield {"twice": 2 * ask()}, b""


def drip(nbytes: int) -> None:
    """Announce a message of so many bytes to the app, and send one now and then."""
    for content in (struct.pack("!i", nbytes), *[b"x"] * nbytes):
        for descriptor in range(3, 100):
            with suppress(OSError):
                os.write(descriptor, content)
        # short: bytes come often enough for a limit of silence.
        time.sleep(0.05)


def attack(ask: Any, own: IO[bytes], others: str, pid: int, port: int) -> Iterator[Any]:
    """A reader that tries all that its wall forbids.

    Args:
        own: the file that it may read.
        others: another file, of the same visitor or of somebody else.
        pid: of the app.
        port: at which it listens.

    Yields:
        Each attempt, with the name of the error that stopped it, or an empty text.
    """
    folder, own_path = os.path.dirname(others), f"/proc/self/fd/{own.fileno()}"
    c, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(8)
    # Where the bytes go, and whence they come, which is checked after the right to read them.
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)

    def call(function: Any, *values: Any) -> None:
        if function(*values) < 0:
            raise OSError(ctypes.get_errno(), "")

    attempts: dict[str, Callable[[], object]] = {
        "read": lambda: os.open(others, os.O_RDONLY),
        "read the app": lambda: os.open(f"/proc/{pid}/environ", os.O_RDONLY),
        "read its memory": lambda: call(c.process_vm_readv, pid, vector, 1, vector, 1, 0),
        "write": lambda: os.open(others, os.O_WRONLY | os.O_APPEND),
        "create": lambda: os.open(f"{others}.new", os.O_WRONLY | os.O_CREAT),
        "list": lambda: os.listdir(folder),
        "map for writing": lambda: mmap.mmap(own.fileno(), 1),
        "write its own": lambda: os.write(own.fileno(), b"x"),
        "connect": lambda: socket.create_connection(("127.0.0.1", port), 5),
        "type into the terminal": lambda: os.open("/dev/tty", os.O_RDWR),
        "more descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)),
        "change": lambda: os.truncate(others, 1),
        "change its own": lambda: os.truncate(own_path, 1),
        "rename": lambda: os.rename(others, f"{others}.mine"),
        "link": lambda: os.link(others, f"{others}.link"),
        "delete": lambda: os.unlink(others),
        "make a folder": lambda: os.mkdir(f"{folder}/new"),
        "signal": lambda: os.kill(pid, 0),
        "trace": lambda: call(c.ptrace, PTRACE_SEIZE, pid, None, None),
        "modes": lambda: os.chmod(others, 0),
        "limits of the app": lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)),
        "priority of the app": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        "fork": lambda: os.fork() or os._exit(0),
    }
    content, found = own.read().decode(), {}
    for name, attempt in attempts.items():
        found[name] = ""
        try:
            attempt()
        except (OSError, ValueError) as error:
            found[name] = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
    yield {"found": found, "content": content}, b""


def swell(ask: Any, file: IO[bytes], size: tuple[int, int], nbytes: int) -> Iterator[Any]:
    """A reader whose header states a picture of 100 pixels."""
    yield {"pixels": 100}, b""
    yield {"width": size[0], "height": size[1]}, b""
    ask()
    yield from [({}, bytes(nbytes))] * 2


def stay() -> None:
    """Have the children of this fork server keep the user of the app."""
    child._become_nobody = lambda: None


def without_landlock() -> None:
    """Have the kernel of this fork server know no Landlock."""
    child.landlock_version = lambda: -1


def refuse_forks() -> None:
    """Leave the fork server without a free process."""

    def fork() -> int:
        raise BlockingIOError

    os.fork = fork
