"""The fork server: it imports everything once, and forks a child for each job.

:mod:`vitviz.isolation.worker` starts it. For each job it sends the time limit and two file descriptors through a
socket: the job's own socket, and the file for its bytes.
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
from vitviz.images.decoding import heif_formats
from vitviz.images.kinds import FORMATS, HAS_AVIF
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.isolation.jobs import JOBS
from vitviz.isolation.limits import Limits
from vitviz.isolation.protocol import EXITED, NOT_TIMED_OUT, STATUS, TIMED_OUT, read_request, send_answer

WALL_SECONDS = struct.Struct("d")
# poll accepts no infinite timeout.
MAX_POLL_SECONDS = 3600.0
FULL_ERRNOS = (errno.ENOMEM, errno.EFBIG, errno.ENOSPC)


@dataclass
class Child:
    """A running job; ``deadline`` is a time of the monotonic clock."""

    connection: socket.socket
    deadline: float
    status: int = NOT_TIMED_OUT


def main(control: int, preload: Sequence[str]) -> None:
    """Serve until the other side closes the socket.

    Args:
        control: descriptor of the socket through which jobs come.
        preload: modules to import first.
    """
    for module in preload:
        importlib.import_module(module)
    # A fork copies no other threads, so a thread pool would be without its threads in a child.
    torch.set_num_threads(1)
    if HAS_AVIF:
        # Threads take more addresses than a child may have.
        importlib.import_module("PIL.AvifImagePlugin").DEFAULT_MAX_THREADS = 1  # type: ignore[attr-defined]
    if heif_formats():
        importlib.import_module("pillow_heif.options").DECODE_THREADS = 1  # type: ignore[attr-defined]
    for image_format in FORMATS:
        _warm_up(image_format)
    gc.collect()
    gc.freeze()
    ForkServer(socket.socket(fileno=control)).serve()


def _warm_up(image_format: str) -> None:
    """Import and set up everything that opening and preparing a picture of this format needs."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 48)).save(stream, image_format)
    Preprocessing(32, 32, (0.5,) * 3, (0.5,) * 3).prepare(open_image(stream.getvalue()), 8, 8).resized(32)


class ForkServer:
    """Forks a child for each job, kills late and abandoned children, and reports how each exited.

    Args:
        control: the socket through which jobs come. When it closes, the server and all children exit.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, Child] = {}
        # Signals write to this pipe, which wakes the poll.
        self._wakeup, wakeup_writer = os.pipe()
        for end in (self._wakeup, wakeup_writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until the control socket closes."""
        is_open = True
        while is_open:
            is_request, pids = self._wait()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            self._reap()
            is_open = not is_request or self._start_job()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)

    def _wait(self) -> tuple[bool, set[int]]:
        """Whether there is a request, and the children whose time is up or whose client is gone."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        by_connection = {child.connection.fileno(): pid for pid, child in self.children.items()}
        for descriptor in by_connection:
            # Without events, poll reports only that the connection is closed.
            poll.register(descriptor, 0)
        seconds_left = min(
            (child.deadline - time.monotonic() for child in self.children.values()), default=MAX_POLL_SECONDS
        )
        events = poll.poll(1000 * min(max(0.0, seconds_left), MAX_POLL_SECONDS) + 1)
        pids = {by_connection[descriptor] for descriptor, _ in events if descriptor in by_connection}
        for pid, child in self.children.items():
            if child.deadline <= time.monotonic():
                child.status = TIMED_OUT
                pids.add(pid)
        with suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        return any(descriptor == self.control.fileno() for descriptor, _ in events), pids

    def _reap(self) -> None:
        for pid in list(self.children):
            exited, status = os.waitpid(pid, os.WNOHANG)
            if exited:
                child = self.children.pop(pid)
                with suppress(OSError):
                    child.connection.sendall(STATUS.pack(EXITED, child.status, os.waitstatus_to_exitcode(status)))
                child.connection.close()

    def _start_job(self) -> bool:
        """Fork a child for the next job; False if the control socket is closed."""
        message, files, _, _ = socket.recv_fds(self.control, WALL_SECONDS.size, 2)
        if len(message) < WALL_SECONDS.size or len(files) < 2:
            return False
        connection, bytes_file = socket.socket(fileno=files[0]), files[1]
        pid = os.fork()
        if not pid:
            _run_child(connection, bytes_file, [self.control, *(child.connection for child in self.children.values())])
        os.close(bytes_file)
        self.children[pid] = Child(connection, time.monotonic() + WALL_SECONDS.unpack(message)[0])
        return True


def _run_child(connection: socket.socket, bytes_file: int, inherited: list[socket.socket]) -> None:
    """Run one job in this process, and exit."""
    # The process exits here whatever happens, and its parent reports it.
    try:
        for parent_socket in inherited:
            parent_socket.close()
        # Keep what libraries print about a stranger's file out of the log.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with os.fdopen(bytes_file, "wb") as stream:
            _serve_job(connection, stream)
    finally:
        os._exit(0)


def _serve_job(connection: socket.socket, stream: BinaryIO) -> None:
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

        def call(method: str = method, arguments: dict[str, Any] = arguments) -> dict[str, Any]:
            answer: dict[str, Any] = getattr(job, method)(stream, **arguments)
            stream.flush()
            return answer

        limits.begin_answer()
        send_answer(connection, _answer(call))


def _answer(function: Any) -> dict[str, Any]:
    """A function's result, or the error that it raised."""
    try:
        return {"answer": function()}
    except VitvizError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:
        # The size of the file for its bytes is limited, too.
        is_full = isinstance(error, OSError) and error.errno in FULL_ERRNOS
        return {"memory": True} if is_full or is_out_of_memory(error) else {"failed": type(error).__name__}
