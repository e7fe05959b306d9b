"""The protocol between a process and the child that runs a job: one answer to each request, prefixed with its length.

Requests are pickled, since the child trusts its parent. Answers are JSON and are checked, since a hostile file may have
taken over the child. Larger data goes through a file that both have open.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from typing import Any

LENGTH = struct.Struct("Q")
# Stands for the length of an answer when the child has exited; the rest of STATUS follows.
EXITED = 2**64 - 1
# EXITED, TIMED_OUT or not, and the exit code.
STATUS = struct.Struct("Qii")
NOT_TIMED_OUT, TIMED_OUT = 0, 1
# Long lists, such as class names, are stored in the checkpoint's bytes, not in the answer.
MAX_ANSWER_BYTES = 2**21


class ChildExited(Exception):
    """The child has exited.

    Args:
        timed_out: whether it was killed because its time was up.
        code: of its exit; the negative number of a signal that killed it.
    """

    def __init__(self, timed_out: bool, code: int) -> None:
        super().__init__(timed_out, code)
        self.timed_out, self.code = timed_out, code


def send_request(connection: socket.socket, request: object) -> None:
    """Send a request; the child may have exited already."""
    content = pickle.dumps(request)
    connection.sendall(LENGTH.pack(len(content)) + content)


def read_request(connection: socket.socket) -> Any:
    """The next request, in the child.

    Raises:
        EOFError: the connection is closed.
    """
    (length,) = LENGTH.unpack(receive_exactly(connection, LENGTH.size))
    return pickle.loads(receive_exactly(connection, length))


def send_answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    """Send an answer, in the child.

    Raises:
        ValueError: the answer is too long.
    """
    content = json.dumps(answer).encode()
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {len(content):,} bytes")
    connection.sendall(LENGTH.pack(len(content)) + content)


def read_answer(connection: socket.socket) -> dict[str, Any]:
    """The answer to the last request.

    Raises:
        ChildExited: the child has exited, or breaks the protocol.
    """
    try:
        (length,) = LENGTH.unpack(receive_exactly(connection, LENGTH.size))
        if length == EXITED:
            _, timed_out, code = STATUS.unpack(
                LENGTH.pack(EXITED) + receive_exactly(connection, STATUS.size - LENGTH.size)
            )
            raise ChildExited(bool(timed_out), code)
        if length > MAX_ANSWER_BYTES:
            raise ChildExited(False, 0)
        answer = json.loads(receive_exactly(connection, length))
    except TimeoutError:
        raise ChildExited(True, 0) from None
    # RecursionError: JSON that is nested too deeply.
    except (EOFError, OSError, ValueError, RecursionError):
        raise ChildExited(False, 0) from None
    if not isinstance(answer, dict):
        raise ChildExited(False, 0)
    return answer


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes of a connection.

    Raises:
        EOFError: the connection ends earlier.
    """
    content = bytearray()
    while len(content) < count:
        received = connection.recv(count - len(content))
        if not received:
            raise EOFError
        content += received
    return bytes(content)
