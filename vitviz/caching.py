"""Properties that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class cached_property(Generic[Value]):
    """As :class:`functools.cached_property`, which before Python 3.12 computes for one instance of a class at a time.

    In the app, one visitor's gradients or far look would wait for those of all others. Of the same instance, two
    threads at once may both compute.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: object = None) -> Value:
        # From now on, the instance has it itself.
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value
