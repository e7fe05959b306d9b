"""The fork server, and the child that it forks for each file.

The server imports the readers once. For each child it gets two sockets from the app, and the open files that it may
read: through one socket the child answers; the other is closed when the app is done with the child or is gone, and
tells the app how the child ended.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from typing import Any

from vitviz.errors.kinds import VitvizError

# Not on Windows.
with suppress(ImportError):
    import resource

STATUS = struct.Struct("i")
# Seconds until it is noticed that a child has ended.
REAP_SECONDS = 0.02
IS_LINUX = sys.platform.startswith("linux")
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
# A child's files are open before it begins, and it opens no other, nor a connection.
MAX_FILES, MAX_DESCRIPTORS = 3, 0
# Of all children that may start threads, where these have a user of their own.
MAX_THREADS = 256
# The user of a child whose app is root: in nobody's name are no files.
NOBODY = 65534
# System calls of Landlock, and how many rights over files its versions know, from the first to the fifth.
LANDLOCK_CREATE, LANDLOCK_RESTRICT, FILE_RIGHTS = 444, 446, (13, 14, 15, 15, 16)
# Versions from which it knows connections; and sockets without a path, and signals. Each are two rights.
CONNECTIONS, SCOPES, BOTH = 4, 6, 3


@dataclass(frozen=True)
class Limits:
    """Limits of one child, which ends when it exceeds one.

    Args:
        memory_bytes: address space beyond that of an idle child. macOS enforces no such limit.
        cpu_seconds: of a processor.
        wall_seconds: that pass, for each part.
        file_bytes: of a file that it writes.
        threads: whether it may start threads, and with them processes.
        niceness: from 0 to 19, the lowest priority.
    """

    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float
    file_bytes: int = 0
    threads: bool = False
    niceness: int = 0

    def apply(self) -> None:
        """Apply all limits to this process for the rest of its life, and leave it the files that are open.

        Raises:
            OSError: one cannot be applied.
        """
        os.nice(self.niceness)
        _become_nobody()
        # The signal ends the process, whatever Python is doing; the limit, later, ends one that sets the timer anew.
        signal.setitimer(signal.ITIMER_PROF, self.cpu_seconds)
        bounds = {
            "CPU": math.ceil(self.cpu_seconds) + 1,
            "FSIZE": self.file_bytes,
            "CORE": 0,
            "NOFILE": MAX_DESCRIPTORS,
        }
        if IS_LINUX:
            pages = [int(count) for count in Path("/proc/self/statm").read_text().split()]
            addresses, private = (pages[place] * resource.getpagesize() for place in (0, 5))
            bounds["AS"] = addresses + self.memory_bytes
            # A user's processes count together, those of the app too.
            if not self.threads or os.geteuid() == NOBODY:
                bounds["NPROC"] = MAX_THREADS * self.threads
            bounds["DATA"] = private + self.memory_bytes
            hide_memory()
            _prctl(PR_SET_NO_NEW_PRIVS, 1)
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            _forbid_files()
        for name, bound in bounds.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            ceiling = resource.getrlimit(kind)[1]
            most = bound if ceiling == resource.RLIM_INFINITY else min(bound, ceiling)
            resource.setrlimit(kind, (most, most))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def hide_memory() -> None:
    """Keep other processes of this user from this one's memory, files and environment in ``/proc``, on Linux."""
    if IS_LINUX:
        _prctl(PR_SET_DUMPABLE, 0)


def _become_nobody() -> None:
    """Have no rights of root. A container may have no other user."""
    if not os.geteuid():
        with suppress(OSError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)


def landlock_version() -> int:
    """The version of Landlock, with which a process gives up rights for good; not above 0 where the kernel has none."""
    return int(ctypes.CDLL(None).syscall(LANDLOCK_CREATE, None, 0, 1)) if IS_LINUX else 0


def _forbid_files() -> None:
    """Open, change and delete no file by its name from now on, connect to nothing, trace and signal nobody."""
    if (version := landlock_version()) > 0:
        rights = 2 ** FILE_RIGHTS[min(version, len(FILE_RIGHTS)) - 1] - 1
        rules = struct.pack("QQQ", rights, BOTH * (version >= CONNECTIONS), BOTH * (version >= SCOPES))
        c = ctypes.CDLL(None, use_errno=True)
        if c.syscall(LANDLOCK_RESTRICT, c.syscall(LANDLOCK_CREATE, rules, len(rules), 0), 0):
            raise OSError(ctypes.get_errno(), "Landlock")


def main(control: int, preload: Sequence[str]) -> None:
    """Serve until the app closes the control socket.

    Args:
        control: descriptor of the socket through which the sockets of children come.
        preload: modules to import first, and functions to call, as ``"module:function"``.
    """
    # It hears no keys of the app's terminal. In a session of its own, Linux would give it and its children a share of
    # the processor that no priority of theirs makes smaller (sched(7), "The autogroup feature").
    os.setpgid(0, 0)
    # Where memory ends, the kernel ends a child rather than the app with what it keeps for everybody.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    hide_memory()
    for name in preload:
        if callable(found := resolve_name(name)):
            found()
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=control))


def serve(control: socket.socket) -> None:
    """Fork a child for each pair of sockets, end those whose app is gone, and report how each ended."""
    children: dict[int, socket.socket] = {}
    received: list[int] | None = []
    while received is not None:
        readable = select.select([control, *children.values()], [], [], REAP_SECONDS if children else None)[0]
        for pid, life in children.items():
            if life in readable:
                os.kill(pid, signal.SIGKILL)
        while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with children.pop(ended[0]) as life, suppress(OSError):
                life.sendall(STATUS.pack(os.waitstatus_to_exitcode(ended[1])))
        if control in readable:
            received = socket.recv_fds(control, 1, 2 + MAX_FILES)[1] or None
        if control in readable and received:
            life = socket.socket(fileno=received.pop(0))
            # If there is no process free, the app notices that both sockets are closed.
            with suppress(OSError):
                if not (pid := os.fork()):
                    _run(received)
                children[pid] = life
            for descriptor in received:
                os.close(descriptor)
            del life
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _run(descriptors: list[int]) -> None:
    """Read one file in this process, and exit.

    Args:
        descriptors: of the socket for the answers, and of the files.
    """
    try:
        # The fork server's own input and output are nowhere; now its errors are, too.
        os.dup2(1, 2)
        for last, following in pairwise(sorted([2, *descriptors, 2**16])):
            os.closerange(last + 1, following)
        stream, *files = descriptors
        _answer(Connection(stream), files)
    finally:
        os._exit(0)


def _answer(app: Connection, files: list[int]) -> None:
    """Run a reader and send its parts. The child trusts the app, never the other way round."""

    def send(head: dict[str, Any], data: Any = b"") -> None:
        # It is whole before anything is sent.
        content = bytes(data)
        app.send_bytes(json.dumps(head).encode())
        app.send_bytes(content)

    reader, modes, arguments, limits = app.recv()
    opened = [os.fdopen(file, mode) for file, mode in zip(files, modes, strict=True)]
    read = resolve_name(reader)
    try:
        limits.apply()
        for facts, data in read(app.recv, *opened, *arguments):
            send({"facts": facts}, data)
    except VitvizError as error:
        send({"message": str(error)[:4000]})
    except Exception as error:
        # The error's text may have something of the file, which the app's log must not.
        failed = {"failed": f"{type(error).__name__} in {extract_tb(error.__traceback__)[-1].name}"}
        send({"memory": True} if isinstance(error, MemoryError) or "memory" in str(error).lower() else failed)


def probe(ask: Any, user: int) -> Any:
    """A reader that tells whether files of the app, which has this user, are out of reach."""
    yield {"is_walled": os.geteuid() != user or landlock_version() > 0}, b""
