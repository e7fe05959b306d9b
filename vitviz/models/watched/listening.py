"""Attention of whatever runs, call by call, without a program: of a network that writes, with a cache that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vitviz.models.watched.attention_operations import check_kernel
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.finder import MAX_STEPS, AttentionFinder
from vitviz.models.watched.reader import read_call
from vitviz.models.watched.recorder import recording


@contextmanager
def attention_calls(on_call: Callable[[AttentionCall], Any], rows: slice = slice(None)) -> Iterator[None]:
    """Pass each call of attention that runs inside to a function, in order.

    Queries and keys may differ in number, and from call to call. What the function does not keep is not held.

    Args:
        on_call: receives the calls, numbered from 0; heads that are calls of their own are single calls.
        rows: the queries of each call to pass on; of all, a bias may take the square of the tokens.

    Raises:
        ConfigError: an operation cannot be observed, or is a kernel of attention that is not read.
    """
    finder, count = AttentionFinder(has_picture=False), 0

    def observe(number: int, step: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal count
        check_kernel(step)
        operands = finder.operands
        finder(number, step, args, kwargs, result)
        for attention in finder.found:
            call = read_call(attention, finder.steps, args, kwargs, result, operands, rows)
            on_call(replace(call, number=count))
            count += 1
        finder.found.clear()
        # Nobody looks further back, and a network may write for long.
        finder.steps[max(0, number - 10 * MAX_STEPS)].args = ()

    with recording(None, observe):
        yield
