"""Start children for strangers' files. Nothing that a child sends is unpickled, mapped, or larger than it may be."""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

from vitviz.errors.kinds import ConfigError, LimitError, VitvizError
from vitviz.errors.messages import legible, quote
from vitviz.worker.child import STATUS, Limits

# Imports and sets up what the readers use, so that no child has to.
PRELOAD = tuple(f"vitviz.{module}:warm_up" for module in ("images.isolated_pictures", "video.isolated_clips"))
# Passes on the module search path of this process.
BOOTSTRAP = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from vitviz.worker.child import main
main(int(sys.argv[2]), sys.argv[3:])"""
# All that a child finds in its environment. A fork copies a table of all pages, which are few if they are huge.
# macOS would kill a fork of a process that has loaded its frameworks.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTHONMALLOC": "malloc",
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
}
MAX_FACTS_BYTES = 2**16
# Until the fork server reports how a child ended.
GRACE_SECONDS = 10.0


class Child:
    """A running child.

    Args:
        stream, life: the sockets that :meth:`Worker.child` opened for it.
        limits, error, name: as for :meth:`Worker.child`.
    """

    def __init__(
        self, stream: Connection, life: socket.socket, limits: Limits, error: type[VitvizError], name: str
    ) -> None:
        self._stream, self._life = stream, life
        self._limits, self._error, self._name = limits, error, legible(name)

    def part(self, question: object = None, nbytes: int = 0) -> tuple[dict[str, Any], bytes]:
        """The next facts and bytes that the reader yields.

        Args:
            question: what the reader asks for first, if it does.
            nbytes: at most, beside the facts.

        Raises:
            VitvizError: raised by the reader, or the child exceeds a limit.
            LimitError: the machine has too little memory.
        """
        deadline = time.monotonic() + self._limits.wall_seconds
        # The fork server ends the child of a socket that is shut.
        end = threading.Timer(self._limits.wall_seconds, self._life.shutdown, [socket.SHUT_WR])
        end.start()
        try:
            if question is not None:
                self._stream.send(question)
            head = json.loads(self._stream.recv_bytes(MAX_FACTS_BYTES))
            data = self._stream.recv_bytes(nbytes)
        except (OSError, EOFError):
            raise self._end_error(is_late=time.monotonic() > deadline) from None
        # RecursionError: JSON that is nested too deeply.
        except (ValueError, RecursionError):
            raise self.answer_error() from None
        finally:
            end.cancel()
        facts = head.get("facts") if isinstance(head, dict) else None
        if not isinstance(facts, dict):
            raise self._reported_error(head if isinstance(head, dict) else {})
        return facts, data

    def answer_error(self) -> VitvizError:
        """The error for a child that gives no answer, or an invalid one."""
        return self._error(f"{self._name}: the process that opened it gave no answer; expected a whole file")

    def limit_error(self, amount: str) -> VitvizError:
        """The error for a file that takes more than an amount."""
        error = self._error(f"{self._name}: opening it takes more than {amount}; expected a file that takes less")
        error.is_over_limit = True
        return error

    def _reported_error(self, head: dict[str, Any]) -> VitvizError:
        if "message" in head:
            return self._error(str(head["message"]))
        if "memory" in head:
            return self.limit_error(f"{self._limits.memory_bytes:,} bytes of memory")
        logging.getLogger(__name__).error("a reader failed: %s", quote(head.get("failed")))
        return self.answer_error()

    def _end_error(self, *, is_late: bool) -> VitvizError:
        """The error for a child that has ended, by what the fork server says of it."""
        if is_late:
            return self.limit_error(f"{self._limits.wall_seconds:g} seconds")
        # Its answer is too large.
        if not self._stream.readable:
            return self.answer_error()
        with suppress(OSError):
            self._life.settimeout(GRACE_SECONDS)
            status = self._life.recv(STATUS.size)
            code = STATUS.unpack(status)[0] if len(status) == STATUS.size else -signal.SIGKILL
            if code == -signal.SIGPROF:
                return self.limit_error(f"{self._limits.cpu_seconds:g} seconds of a processor")
            # Only the kernel sends SIGKILL unasked. Without a status, no process was forked.
            if code == -signal.SIGKILL:
                return LimitError(
                    f"{self._name}: there is too little memory free on this machine to open it; try again later"
                )
        return self.answer_error()


class Worker:
    """Has a fork server make a child for each file. Thread-safe.

    The fork server is started for the first file, and again if it has exited.

    Attributes:
        preload: modules that it imports first, and functions that it calls, as ``"module:function"``.
    """

    def __init__(self) -> None:
        self.preload: Sequence[str] = PRELOAD
        self._lock = threading.RLock()
        self._server: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def close(self) -> None:
        """End the fork server and all children."""
        with self._lock:
            if self._server is not None:
                process, control = self._server
                self._server = None
                control.close()
                # Other processes that were forked from this one may have the socket, too.
                process.kill()
                process.wait()

    @contextmanager
    def child(
        self,
        reader: str,
        files: Sequence[IO[bytes]],
        arguments: Sequence[Any],
        limits: Limits,
        error: type[VitvizError],
        name: str,
    ) -> Iterator[Child]:
        """A child that reads a file until the context ends.

        Args:
            reader: ``"module:function"`` of the generator function. It is called with a function that returns the next
                question, the files and the arguments, and yields facts and bytes.
            files: all that it can read and write, at most three, open and at their beginnings.
            arguments: of the reader.
            limits: of the child.
            error: the class to raise if the child exceeds a limit, or ends without an answer.
            name: of the file in messages.
        """
        stream, theirs = Pipe()
        life, other = socket.socketpair()
        with stream, life:
            # A fork server that has just ended takes no file; the next one starts another.
            with theirs, other, self._lock, suppress(OSError):
                sent = [other.fileno(), theirs.fileno(), *(file.fileno() for file in files)]
                socket.send_fds(self._control(), [b"\0"], sent)
            # A child that has ended already is reported with its first part.
            with suppress(OSError):
                stream.send((reader, [each.mode for each in files], arguments, limits))
            yield Child(stream, life, limits, error, name)

    def _control(self) -> socket.socket:
        """The socket of a running fork server; the caller must hold the lock."""
        if self._server is not None and self._server[0].poll() is not None:
            self.close()
        if self._server is None:
            require_forks()
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path), str(theirs.fileno()), *self.preload],
                    pass_fds=[theirs.fileno()],
                    env=ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            self._server = process, ours
        return self._server[1]


def require_forks() -> None:
    """Check that the system can fork.

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


def check_limits(worker: Worker) -> bool:
    """Check that children with limits run here; returns whether files are out of their reach.

    Raises:
        ConfigError: they do not.
    """
    limits = Limits(memory_bytes=2**26, cpu_seconds=10, wall_seconds=60)
    try:
        with worker.child("vitviz.worker.child:probe", [], [os.geteuid()], limits, LimitError, "a file") as child:
            return child.part()[0].get("is_walled") is True
    except VitvizError as error:
        raise ConfigError(f"files of others cannot be opened safely on this system: {error}") from None
