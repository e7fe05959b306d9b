"""Starts jobs in processes of their own, and turns what becomes of them into answers or one sentence."""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from vitviz.errors.kinds import (
    CheckpointError,
    ConfigError,
    ImageError,
    LimitError,
    MethodError,
    UnknownFamilyError,
    VitvizError,
)
from vitviz.errors.messages import legible, shown
from vitviz.isolation.conversation import Ended, read_answer, send_request
from vitviz.isolation.limits import Limits
from vitviz.isolation.nursery import SECONDS

ERRORS: dict[str, type[VitvizError]] = {
    error.__name__: error
    for error in (ImageError, CheckpointError, UnknownFamilyError, ConfigError, LimitError, MethodError)
}
# The child uses this process's module search path.
BEGIN = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from vitviz.isolation.nursery import main
main(int(sys.argv[2]), sys.argv[3:])"""
# On the clock, for which a job may leave a question without an answer.
MAX_ANSWER_SECONDS = 900.0
# Extra time in which the nursery reports how a job ended.
GRACE_SECONDS = 10


class Worker:
    """Does jobs in children of one process, the nursery. Safe between threads.

    The nursery is started by the first job, or by :meth:`start`, and anew where it is gone.

    Args:
        preload: modules that are imported once, before the first job, and not by every job that needs them.
    """

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self.preload = tuple(preload)
        self._lock = threading.Lock()
        self._nursery: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def start(self) -> None:
        """Start the nursery early, so that the first job does not wait for it."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the nursery, and with it all jobs."""
        with self._lock:
            self._forget()

    @contextmanager
    def job(
        self, job: str, arguments: dict[str, Any], limits: Limits, error: type[VitvizError], name: str
    ) -> Iterator[Conversation]:
        """A job, which ends with the context.

        Args:
            job, arguments: one of :data:`vitviz.isolation.jobs.JOBS` and what it is made with.
            limits: what it may take.
            error: what is raised where it takes more, or ends without an answer.
            name: what messages call the file.

        Raises:
            VitvizError: what the job raises.
        """
        ours, theirs = socket.socketpair()
        with _shared_file() as file, ours:
            ours.settimeout(min(limits.wall_seconds, MAX_ANSWER_SECONDS) + GRACE_SECONDS)
            with theirs:
                self._send(SECONDS.pack(limits.wall_seconds), [theirs.fileno(), file])
            conversation = Conversation(ours, file, limits, error, name)
            conversation.tell((job, arguments, limits))
            yield conversation

    def _send(self, message: bytes, files: list[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._running(), [message], files)
            except OSError:
                # The nursery ended since the last job.
                self._forget()
                socket.send_fds(self._running(), [message], files)

    def _running(self) -> socket.socket:
        """The nursery's socket; to be called with the lock."""
        if self._nursery is not None and self._nursery[0].poll() is not None:
            self._forget()
        if self._nursery is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._nursery = _started(theirs, self.preload), ours
        return self._nursery[1]

    def _forget(self) -> None:
        if self._nursery is not None:
            process, control = self._nursery
            self._nursery = None
            control.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            process.kill()
            process.wait()


@cache
def shared_worker() -> Worker:
    """The worker of this process, which ends with it."""
    worker = Worker()
    atexit.register(worker.close)
    return worker


class Conversation:
    """A job under way.

    Args:
        connection: to the child.
        file: where its bytes are.
        limits, error, name: as :meth:`Worker.job` takes them.
    """

    def __init__(
        self, connection: socket.socket, file: int, limits: Limits, error: type[VitvizError], name: str
    ) -> None:
        self._connection, self._file = connection, file
        self._limits, self._error, self._name = limits, error, name

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """What a method of the job answers.

        Raises:
            VitvizError: what it raises, or that it takes more than it may.
        """
        return self.tell((method, arguments))

    def tell(self, request: object) -> dict[str, Any]:
        """The answer to a request of any kind."""
        try:
            # The exit status tells why the child is gone.
            with suppress(OSError):
                send_request(self._connection, request)
            found = read_answer(self._connection)
        except Ended as ended:
            raise self._ended(ended) from None
        if "message" in found:
            raise ERRORS.get(str(found.get("error")), self._error)(str(found["message"]))
        if "memory" in found:
            most = self._limits.private_bytes or self._limits.memory_bytes
            raise self.refusal(f"more than {most:,} bytes of memory")
        answer = found.get("answer")
        if not isinstance(answer, dict):
            logging.getLogger(__name__).error("a job failed: %s", shown(found.get("failed")))
            raise self.broken()
        return answer

    @contextmanager
    def content(self) -> Iterator[mmap.mmap]:
        """The bytes that the job has written; they can no longer change."""
        self._seal()
        if not os.fstat(self._file).st_size:
            raise self.broken()
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY) as content:
            yield content

    def read(self, count: int) -> bytes:
        """The first bytes that the job has written, of a job that goes on to write others over them.

        Raises:
            VitvizError: it has not written so many.
        """
        # Not mapped: a file that shrinks meanwhile is only short.
        content = bytearray()
        while len(content) < count:
            part = os.pread(self._file, count - len(content), len(content))
            if not part:
                raise self.broken()
            content += part
        return bytes(content)

    def path(self) -> str:
        """A path that opens the file of these bytes again while the job is under way."""
        self._seal()
        return f"/proc/self/fd/{self._file}" if os.path.exists("/proc/self/fd") else f"/dev/fd/{self._file}"

    def _seal(self) -> None:
        """Seal the file: if it shrank while it is mapped, this process would end."""
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)

    def _ended(self, ended: Ended) -> VitvizError:
        if ended.too_late:
            return self.refusal(f"more than {min(self._limits.wall_seconds, MAX_ANSWER_SECONDS):g} seconds")
        if ended.code == -signal.SIGPROF:
            return self.refusal(f"more than {self._limits.answer_seconds:g} seconds of a processor")
        if ended.code in (-signal.SIGXCPU, -signal.SIGKILL):
            return self.refusal(f"more than {self._limits.cpu_seconds} seconds of a processor")
        return self.broken()

    def refusal(self, found: str) -> VitvizError:
        """The error for a job that takes too much."""
        return self._error(f"{legible(self._name)}: opening it takes {found}; expected a file that takes less")

    def broken(self) -> VitvizError:
        """The error for a job that gives no answer, or an impossible one."""
        return self._error(f"{legible(self._name)}: the process that opened it gave no answer; expected a whole file")


def _started(control: socket.socket, preload: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        # macOS would end a fork of a process that has loaded its frameworks.
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
    }
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN, json.dumps(sys.path), str(control.fileno()), *preload],
        pass_fds=[control.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # Ignores the terminal's interrupt; it ends when the socket closes.
        start_new_session=True,
    )


@contextmanager
def _shared_file() -> Iterator[int]:
    """A file in memory where the system has such, else one on the disk that has no name."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("vitviz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        yield file
    finally:
        os.close(file)
