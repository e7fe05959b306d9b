"""The depth of brackets is counted while a body comes, in time that grows with the body alone."""

from __future__ import annotations

import time

import pytest

from vitviz.ui.server.bodies import MAX_DEPTH, DepthScanner, RequestError

pytestmark = [pytest.mark.hostile, pytest.mark.process]


# The depth of brackets.


def depth_of(value: bytes, step: int) -> bool:
    """Whether a body is taken that comes in parts of so many bytes."""
    scanner = DepthScanner()
    try:
        for start in range(0, len(value), step):
            scanner.feed(value[start : start + step])
    except RequestError:
        return False
    return True


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10**6])
def test_the_depth_is_counted_however_the_body_is_cut(step: int) -> None:
    brackets = MAX_DEPTH
    taken = [
        b"[" * brackets + b"]" * brackets,
        b'{"a":' * brackets + b"1" + b"}" * brackets,
        b'["' + b"[" * 500 + b'", "\\"[[[[' + b"[" * 500 + b'"]',
        b'["\\\\", ' + b"[]," * 500 + b"1]",
        b'"' + b"\\" * 999 + b"[" * 100,
        b"[" + b"[[]]," * 300 + b"{}]",
    ]
    refused = [
        b"[" * (brackets + 1) + b"]" * (brackets + 1),
        b'["\\\\", ' + b"[" * 100,
        b'{"\\"": ' + b"[" * 100,
        b'["a", ' + b'{"b":' * 60,
        b"]" * 100,
    ]
    assert [depth_of(value, step) for value in taken] == [True] * len(taken)
    assert [depth_of(value, step) for value in refused] == [False] * len(refused)


@pytest.mark.parametrize("part", [b"[]", b'\\"', b'{"a":1},'])
def test_the_depth_takes_time_in_proportion_to_the_body(part: bytes) -> None:
    def seconds(size: int) -> float:
        content = part * (size // len(part))
        start = time.process_time()
        depth_of(content, 2**16)
        return time.process_time() - start

    seconds(2**18)
    # Four times the body, with room for a busy machine; a quadratic one would take sixteen times as long.
    assert min(seconds(2**22) for _ in range(3)) < 9 * min(seconds(2**20) for _ in range(3)) + 0.02


def test_a_tool_call_may_have_a_large_string_and_little_else() -> None:
    DepthScanner(100).feed(b'{"image": "' + b"x" * 10**6 + b'"}')
    with pytest.raises(RequestError, match="more than 100 bytes outside its strings"):
        DepthScanner(100).feed(b"1," * 51)
    with pytest.raises(RequestError, match="outside"):
        DepthScanner(100).feed(b'""' * 51)
