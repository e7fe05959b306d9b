"""The maps that were computed last, by what was asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import Method
from vitviz.visualization.heatmaps import Heatmap

# Of one analysis, a number for each token.
MAX_MAPS = 16


class KeptMaps:
    """The last maps of every analysis by method and parameters; they are kept as long as the analysis is."""

    def __init__(self) -> None:
        self._maps: WeakKeyDictionary[Analysis, OrderedDict[str, Heatmap]] = WeakKeyDictionary()

    def get(self, analysis: Analysis, method: Method, parameters: Mapping[str, Any]) -> Heatmap | None:
        """A map that was made before, where it is kept."""
        return self._maps.get(analysis, OrderedDict[str, Heatmap]()).get(_key(method, parameters))

    def put(self, analysis: Analysis, method: Method, parameters: Mapping[str, Any], heatmap: Heatmap) -> None:
        """Keep a map, and let go of the oldest of the analysis where there are too many."""
        kept = self._maps.setdefault(analysis, OrderedDict())
        kept[_key(method, parameters)] = heatmap
        while len(kept) > MAX_MAPS:
            kept.popitem(last=False)


def _key(method: Method, parameters: Mapping[str, Any]) -> str:
    return repr((method.name, sorted(parameters.items())))
