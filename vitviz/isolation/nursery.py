"""The process that jobs are forked from: everything is imported once, and every job has a process of its own.

:mod:`vitviz.isolation.worker` starts it, and sends through a socket, for each job, the seconds that it may take and two
open files: the job's own socket, and the file for its bytes.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from PIL import Image

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import VitvizError
from vitviz.images.opening import FORMATS, open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.isolation.conversation import BY_ITSELF, GONE, STATUS, TOO_LATE, read_request, send_answer
from vitviz.isolation.jobs import JOBS
from vitviz.isolation.limits import Limits

SECONDS = struct.Struct("d")
# Seconds; poll accepts no infinite timeout.
MAX_WAIT = 3600.0
NO_MEMORY = (errno.ENOMEM, errno.EFBIG, errno.ENOSPC)


@dataclass
class Child:
    """A job under way."""

    connection: socket.socket
    deadline: float
    end: int = BY_ITSELF


def main(control: int, preload: Sequence[str]) -> None:
    """Serve until the other side closes.

    Args:
        control: number of the open socket through which jobs come.
        preload: modules to import before.
    """
    for module in preload:
        importlib.import_module(module)
    # Threads of this process would be missing in its children.
    torch.set_num_threads(1)
    for name in FORMATS:
        _warm_up(name)
    gc.collect()
    gc.freeze()
    Nursery(socket.socket(fileno=control)).serve()


def _warm_up(name: str) -> None:
    """Import and set up everything that opening and preparing such a picture needs."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 48)).save(stream, name)
    Preprocessing(32, 32, (0.5,) * 3, (0.5,) * 3).prepare(open_image(stream.getvalue()), 8, 8).resized(32)


class Nursery:
    """Forks a child for each job, ends late and abandoned ones, and reports how each ended.

    Args:
        control: the socket of the process that asks. When it closes, everything ends.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, Child] = {}
        self._woken, waker = os.pipe()
        for end in (self._woken, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until the control socket closes."""
        is_open = True
        while is_open:
            is_request, pids = self._wait()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            self._reap()
            is_open = not is_request or self._take()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)

    def _wait(self) -> tuple[bool, set[int]]:
        """Whether there is a request, and the children whose time is up or whose client is gone."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        by_connection = {child.connection.fileno(): pid for pid, child in self.children.items()}
        for number in by_connection:
            # Nothing but the end of the connection.
            poll.register(number, 0)
        rest = min((child.deadline - time.monotonic() for child in self.children.values()), default=MAX_WAIT)
        events = poll.poll(1000 * min(max(0.0, rest), MAX_WAIT) + 1)
        pids = {by_connection[number] for number, _ in events if number in by_connection}
        for pid, child in self.children.items():
            if child.deadline <= time.monotonic():
                child.end = TOO_LATE
                pids.add(pid)
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        return any(number == self.control.fileno() for number, _ in events), pids

    def _reap(self) -> None:
        for pid in list(self.children):
            ended, how = os.waitpid(pid, os.WNOHANG)
            if ended:
                child = self.children.pop(pid)
                with suppress(OSError):
                    child.connection.sendall(STATUS.pack(GONE, child.end, os.waitstatus_to_exitcode(how)))
                child.connection.close()

    def _take(self) -> bool:
        """Begin a job; False where the control socket is closed."""
        message, files, _, _ = socket.recv_fds(self.control, SECONDS.size, 2)
        if len(message) < SECONDS.size or len(files) < 2:
            return False
        connection, bytes_file = socket.socket(fileno=files[0]), files[1]
        pid = os.fork()
        if not pid:
            _be_child(connection, bytes_file, [self.control, *(child.connection for child in self.children.values())])
        os.close(bytes_file)
        self.children[pid] = Child(connection, time.monotonic() + SECONDS.unpack(message)[0])
        return True


def _be_child(connection: socket.socket, bytes_file: int, others: list[socket.socket]) -> None:
    """Do one job in this process, and end it."""
    # Whatever happens, the process ends here, and its parent reports that it did.
    try:
        for other in others:
            other.close()
        # Output of libraries about a stranger's file stays out of the log.
        silence = os.open(os.devnull, os.O_RDWR)
        for standard in (1, 2):
            os.dup2(silence, standard)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with os.fdopen(bytes_file, "wb") as stream:
            _converse(connection, stream)
    finally:
        os._exit(0)


def _converse(connection: socket.socket, stream: BinaryIO) -> None:
    name, arguments, limits = read_request(connection)
    assert isinstance(limits, Limits)
    limits.apply()
    job: Any = None

    def make() -> dict[str, Any]:
        nonlocal job
        job = JOBS[name](**arguments)
        return {}

    limits.begin_answer()
    send_answer(connection, _answer(make))
    while job is not None:
        method, arguments = read_request(connection)

        def ask(method: str = method, arguments: dict[str, Any] = arguments) -> dict[str, Any]:
            found: dict[str, Any] = getattr(job, method)(stream, **arguments)
            stream.flush()
            return found

        limits.begin_answer()
        send_answer(connection, _answer(ask))


def _answer(function: Any) -> dict[str, Any]:
    """A function's result, or the error that it raised."""
    try:
        return {"answer": function()}
    except VitvizError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:
        # The file for its bytes has a limit, too.
        is_full = isinstance(error, OSError) and error.errno in NO_MEMORY
        return {"memory": True} if is_full or is_out_of_memory(error) else {"failed": type(error).__name__}
