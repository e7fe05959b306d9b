"""Start jobs in separate processes, and turn their outcome into answers or errors."""

from __future__ import annotations

import atexit
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
from vitviz.errors.messages import legible, quote
from vitviz.isolation.fork_server import WALL_SECONDS
from vitviz.isolation.limits import Limits
from vitviz.isolation.protocol import ChildExited, read_answer, send_request

# Not on Windows.
with suppress(ImportError):
    import fcntl

ERRORS: dict[str, type[VitvizError]] = {
    error.__name__: error
    for error in (ImageError, CheckpointError, UnknownFamilyError, ConfigError, LimitError, MethodError)
}
# Passes on the module search path of this process.
BOOTSTRAP = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from vitviz.isolation.fork_server import main
main(int(sys.argv[2]), sys.argv[3:])"""
# Elapsed time until a job must answer a request.
MAX_ANSWER_SECONDS = 900.0
# Extra time in which the fork server reports how a job ended.
GRACE_SECONDS = 10


class Worker:
    """Runs jobs in children of one process, the fork server. Thread-safe.

    The fork server is started by :meth:`start` or the first job, and again if it has exited.

    Args:
        preload: modules that the fork server imports once, so that no job has to.
    """

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self.preload = tuple(preload)
        self._lock = threading.Lock()
        self._fork_server: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def start(self) -> None:
        """Start the fork server early, so that the first job does not wait for it."""
        with self._lock:
            self._control_socket()

    def close(self) -> None:
        """Stop the fork server and all jobs."""
        with self._lock:
            self._stop()

    @contextmanager
    def job(
        self, job: str, arguments: dict[str, Any], limits: Limits, error: type[VitvizError], name: str
    ) -> Iterator[JobConnection]:
        """Run a job until the context ends.

        Args:
            job, arguments: the name of one of :data:`vitviz.isolation.jobs.JOBS`, and the arguments of its class.
            limits: of its resources.
            error: the class to raise if the job exceeds a limit, or exits without an answer.
            name: of the file in messages.

        Raises:
            VitvizError: raised by the job.
        """
        ours, theirs = socket.socketpair()
        with _shared_file() as file, ours:
            ours.settimeout(min(limits.wall_seconds, MAX_ANSWER_SECONDS) + GRACE_SECONDS)
            with theirs:
                self._send(WALL_SECONDS.pack(limits.wall_seconds), [theirs.fileno(), file])
            connection = JobConnection(ours, file, limits, error, name)
            connection.request((job, arguments, limits))
            yield connection

    def _send(self, message: bytes, files: list[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._control_socket(), [message], files)
            except OSError:
                # The fork server has exited since the last job.
                self._stop()
                socket.send_fds(self._control_socket(), [message], files)

    def _control_socket(self) -> socket.socket:
        """The socket of a running fork server; the caller must hold the lock."""
        if self._fork_server is not None and self._fork_server[0].poll() is not None:
            self._stop()
        if self._fork_server is None:
            require_forks()
            ours, theirs = socket.socketpair()
            with theirs:
                self._fork_server = _start_fork_server(theirs, self.preload), ours
        return self._fork_server[1]

    def _stop(self) -> None:
        if self._fork_server is not None:
            process, control = self._fork_server
            self._fork_server = None
            control.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            process.kill()
            process.wait()


def require_forks() -> None:
    """Check that the system can run jobs.

    Raises:
        ConfigError: it cannot.
    """
    if not hasattr(os, "fork"):
        raise ConfigError(
            "this system cannot fork: the app, and what opens files of others, run on Linux, on macOS and in WSL; "
            "the library and the other commands run here"
        )


@cache
def shared_worker() -> Worker:
    """The worker of this process, closed when it exits."""
    worker = Worker()
    atexit.register(worker.close)
    return worker


class JobConnection:
    """The connection to a running job.

    Args:
        connection: to the child.
        file: descriptor of the file to which the job writes bytes.
        limits, error, name: as for :meth:`Worker.job`.
    """

    def __init__(
        self, connection: socket.socket, file: int, limits: Limits, error: type[VitvizError], name: str
    ) -> None:
        self._connection, self._file = connection, file
        self._limits, self._error, self._name = limits, error, name

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the job and return its answer.

        Raises:
            VitvizError: raised by the method, or the job exceeds a limit.
        """
        return self.request((method, arguments))

    def request(self, request: object) -> dict[str, Any]:
        """The answer to a request of any kind."""
        try:
            # A child that has exited is handled below, by its exit status.
            with suppress(OSError):
                send_request(self._connection, request)
            reply = read_answer(self._connection)
        except ChildExited as status:
            raise self._exit_error(status) from None
        if "message" in reply:
            raise ERRORS.get(str(reply.get("error")), self._error)(str(reply["message"]))
        if "memory" in reply:
            limit = self._limits.private_bytes or self._limits.memory_bytes
            raise self.limit_error(f"more than {limit:,} bytes of memory")
        answer = reply.get("answer")
        if not isinstance(answer, dict):
            logging.getLogger(__name__).error("a job failed: %s", quote(reply.get("failed")))
            raise self.answer_error()
        return answer

    @contextmanager
    def content(self) -> Iterator[mmap.mmap]:
        """The bytes that the job has written, sealed against changes."""
        self._seal()
        if not os.fstat(self._file).st_size:
            raise self.answer_error()
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY) as content:
            yield content

    def read(self, count: int) -> bytes:
        """The first ``count`` bytes that the job has written; the job may overwrite them later.

        Raises:
            VitvizError: it has written fewer.
        """
        # Not mapped: a mapped file that shrinks would kill this process.
        content = bytearray()
        while len(content) < count:
            block = os.pread(self._file, count - len(content), len(content))
            if not block:
                raise self.answer_error()
            content += block
        return bytes(content)

    def path(self) -> str:
        """A path to the file of these bytes while the job is running."""
        self._seal()
        return f"/proc/self/fd/{self._file}" if os.path.exists("/proc/self/fd") else f"/dev/fd/{self._file}"

    def _seal(self) -> None:
        """Seal the file: if it shrank while it is mapped, this process would be killed."""
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)

    def _exit_error(self, status: ChildExited) -> VitvizError:
        if status.timed_out:
            return self.limit_error(f"more than {min(self._limits.wall_seconds, MAX_ANSWER_SECONDS):g} seconds")
        if status.code == -signal.SIGPROF:
            return self.limit_error(f"more than {self._limits.answer_seconds:g} seconds of a processor")
        if status.code == -signal.SIGXCPU:
            return self.limit_error(f"more than {self._limits.cpu_seconds} seconds of a processor")
        if status.code == -signal.SIGKILL:
            return self.limit_error("more memory than this machine has")
        return self.answer_error()

    def limit_error(self, amount: str) -> VitvizError:
        """The error for a job that exceeds a limit."""
        return self._error(f"{legible(self._name)}: opening it takes {amount}; expected a file that takes less")

    def answer_error(self) -> VitvizError:
        """The error for a job that gives no answer, or an invalid one."""
        return self._error(f"{legible(self._name)}: the process that opened it gave no answer; expected a whole file")


def _start_fork_server(control: socket.socket, preload: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        # macOS would kill a fork of a process that has loaded its frameworks.
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
    }
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path), str(control.fileno()), *preload],
        pass_fds=[control.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # Not interrupted from the terminal; it exits when the socket closes.
        start_new_session=True,
    )


@contextmanager
def _shared_file() -> Iterator[int]:
    """A file in memory if the system has such files, else an unnamed temporary file."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("vitviz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        yield file
    finally:
        os.close(file)
