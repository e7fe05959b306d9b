"""How a process and the child that does a job for it talk: length and content, one answer to each request.

Requests are pickled, since the child trusts who started it; answers are JSON and are checked, since a file may have
taken over the child. Bytes go through a file that both hold open.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from typing import Any

LENGTH = struct.Struct("Q")
# In place of the length of an answer: the child is gone, and how it ended follows.
GONE = 2**64 - 1
STATUS = struct.Struct("Qii")
# Whether it was ended since its time was up.
BY_ITSELF, TOO_LATE = 0, 1
# Long lists, such as class names, travel in the checkpoint's bytes and not in the answer.
MAX_ANSWER_BYTES = 2**21


class Ended(Exception):
    """The child is gone.

    Args:
        too_late: since its time was up.
        code: of its exit; of a signal, minus its number.
    """

    def __init__(self, too_late: bool, code: int) -> None:
        super().__init__(too_late, code)
        self.too_late, self.code = too_late, code


def send_request(connection: socket.socket, request: object) -> None:
    """Ask. The other side may be gone already."""
    content = pickle.dumps(request)
    connection.sendall(LENGTH.pack(len(content)) + content)


def read_request(connection: socket.socket) -> Any:
    """What is asked, in the child.

    Raises:
        EOFError: the connection is closed.
    """
    (length,) = LENGTH.unpack(exactly(connection, LENGTH.size))
    return pickle.loads(exactly(connection, length))


def send_answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    """Answer, in the child.

    Raises:
        ValueError: the answer is too long.
    """
    content = json.dumps(answer).encode()
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {len(content):,} bytes")
    connection.sendall(LENGTH.pack(len(content)) + content)


def read_answer(connection: socket.socket) -> dict[str, Any]:
    """An answer.

    Raises:
        Ended: the child is gone, or answers what no child does.
    """
    try:
        (length,) = LENGTH.unpack(exactly(connection, LENGTH.size))
        if length == GONE:
            _, too_late, code = STATUS.unpack(LENGTH.pack(GONE) + exactly(connection, STATUS.size - LENGTH.size))
            raise Ended(bool(too_late), code)
        if length > MAX_ANSWER_BYTES:
            raise Ended(False, 0)
        answer = json.loads(exactly(connection, length))
    except TimeoutError:
        raise Ended(True, 0) from None
    # Not JSON, or nested too deeply.
    except (EOFError, OSError, ValueError, RecursionError):
        raise Ended(False, 0) from None
    if not isinstance(answer, dict):
        raise Ended(False, 0)
    return answer


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes.

    Raises:
        EOFError: the connection ends before.
    """
    content = bytearray()
    while len(content) < count:
        part = connection.recv(count - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
