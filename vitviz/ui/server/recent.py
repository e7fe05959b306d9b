"""The latest results of each cached analysis."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis

Result = TypeVar("Result")


class RecentResults(Generic[Result]):
    """The latest results of each analysis by key; they live as long as the analysis. Safe between threads.

    Args:
        max_count: results kept of each analysis.
    """

    def __init__(self, max_count: int) -> None:
        self.max_count = max_count
        self._results: WeakKeyDictionary[Analysis, OrderedDict[Hashable, Result]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self, analysis: Analysis, key: Hashable) -> Result | None:
        """The result of a key, or None."""
        with self._lock:
            return self._results.get(analysis, OrderedDict[Hashable, Result]()).get(key)

    def put(self, analysis: Analysis, key: Hashable, result: Result) -> None:
        """Keep a result in the place of the analysis's oldest."""
        with self._lock:
            results = self._results.setdefault(analysis, OrderedDict())
            results[key] = result
            while len(results) > self.max_count:
                results.popitem(last=False)
