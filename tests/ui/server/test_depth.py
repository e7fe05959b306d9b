"""A body is read in time and memory that grow with it alone, and nests so far."""

from __future__ import annotations

import time

import pytest

from vitviz.ui.server.bodies import MAX_DEPTH, MAX_VALUES, RequestError, parse_json

pytestmark = [pytest.mark.hostile, pytest.mark.process]


def is_taken(content: bytes) -> bool:
    try:
        parse_json(content)
    except RequestError:
        return False
    return True


def test_the_depth_of_a_body_is_limited() -> None:
    taken = [
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH,
        b'["' + b"[" * 500 + b'", "\\"[[[[' + b"[" * 500 + b'"]',
        b"[" + b"[[]]," * 300 + b"{}]",
    ]
    refused = [
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":[' * 17 + b"]}" * 17,
        b"[" * 60_000,
        b"[" * 60_000 + b"]" * 60_000,
        b'["a", ' + b'{"b":' * 60,
        b"]" * 100,
    ]
    assert [*map(is_taken, taken)] == [True] * len(taken)
    assert [*map(is_taken, refused)] == [False] * len(refused)


@pytest.mark.parametrize("part", [b"[],", b'"\\"",', b'{"a":1},'])
def test_a_body_takes_time_in_proportion_to_its_size(part: bytes) -> None:
    def seconds(size: int) -> float:
        content = b"[" + part * (size // len(part)) + b"1]"
        start = time.process_time()
        is_taken(content)
        return time.process_time() - start

    seconds(2**14)
    # Sixteen times the body, with room for a busy machine; a quadratic one would take 256 times as long.
    assert min(seconds(2**20) for _ in range(3)) < 100 * min(seconds(2**16) for _ in range(3))


def test_a_body_may_have_a_large_string_and_few_values() -> None:
    assert is_taken(b'{"image": "' + b"x" * 10**7 + b'"}')
    for part in (b"1,", b"[],", b'{"a":1},'):
        with pytest.raises(RequestError, match="more than 65,536 commas and brackets"):
            parse_json(b"[" + part * MAX_VALUES + b"1]")
