"""One image, one model: encoded once, then asked anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vitviz.attribution import METHODS, attention_sheet
from vitviz.errors import MethodError, choices
from vitviz.heatmaps import Heatmap
from vitviz.images import ImageSource, open_image
from vitviz.layout import Query
from vitviz.preprocessing import PreparedImage
from vitviz.token_map import TokenMap
from vitviz.trace import AttentionTrace
from vitviz.weights import Model


@dataclass(frozen=True)
class Prediction:
    """A class and its probability, in [0, 1]."""

    label: str
    probability: float


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a model did with an image: made by :func:`analyze`, asked without running the model again.

    Args:
        model: that was used.
        prepared: the image and how it was brought to the model's input.
        logits: ``"class"``; empty for a model without a classifier.
        trace: queries and keys of every layer.
    """

    model: Model
    prepared: PreparedImage
    logits: torch.Tensor
    trace: AttentionTrace

    @property
    def nbytes(self) -> int:
        """Bytes that the analysis holds, the model aside."""
        width, height = self.prepared.image.size
        return self.trace.nbytes + self.prepared.pixels.nbytes + 3 * width * height

    def predictions(self, count: int = 5) -> list[Prediction]:
        """The most probable classes, best first.

        Raises:
            MethodError: the model has no classifier, or the count is negative.
        """
        if not self.model.labels:
            raise MethodError(f"{self.model.name} has no classifier: it gives no predictions")
        if count < 0:
            raise MethodError(f"count = {count}: expected 0 or more")
        best = self.logits.softmax(-1).topk(min(count, len(self.model.labels)))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [Prediction(self.model.labels[index], probability) for probability, index in pairs]

    def map(self, method: str, **parameters: Any) -> Heatmap:
        """The map of any method in :data:`vitviz.METHODS`, by name, with its parameters.

        Raises:
            MethodError: there is no such method, or it has no such parameter.
            QueryError: the model has no such layer, head or token.
        """
        if method not in METHODS:
            raise MethodError(f"method {method!r}: expected {choices(METHODS)}")
        legal = [parameter.name for parameter in METHODS[method].parameters]
        for name in parameters:
            if name not in legal:
                raise MethodError(f"{method} has no parameter {name!r}: expected {choices(legal)}")
        return self._heatmap(METHODS[method].compute(self.trace, **parameters))

    def attention(
        self, layer: int = -1, head: int | str = "mean", query: Query | None = None, direction: str = "row"
    ) -> Heatmap:
        """One token's attention in one layer, as :func:`vitviz.attribution.attention`."""
        return self.map("attention", layer=layer, head=head, query=query, direction=direction)

    def rollout(self, **parameters: Any) -> Heatmap:
        """Attention followed through the layers, with the parameters of :func:`vitviz.attribution.rollout`."""
        return self.map("rollout", **parameters)

    def attention_sheet(self, query: Query | None = None, direction: str = "row") -> list[list[Heatmap]]:
        """One token's attention in every layer (outer list) and head (inner list)."""
        return [
            [self._heatmap(token_map) for token_map in row] for row in attention_sheet(self.trace, query, direction)
        ]

    def _heatmap(self, token_map: TokenMap) -> Heatmap:
        return Heatmap(token_map, self.prepared.image, self.prepared.geometry)


def analyze(image: ImageSource, model: Model, fit: str | None = None) -> Analysis:
    """Run a model on an image, once.

    Args:
        image: a path, the bytes of a file, a PIL image or an array, as :func:`vitviz.images.open_image` takes them.
        model: as :func:`vitviz.load` gives it.
        fit: ``"crop"``, ``"squash"`` or ``"native"``; the checkpoint's own where it is not given.

    Raises:
        ImageError: the image cannot be opened.
        ConfigError: the fit is none of these.
    """
    config = model.network.config
    prepared = model.preprocessing.prepare(open_image(image), config.patch_height, config.patch_width, fit)
    with torch.inference_mode():
        encoding = model.network.encode(prepared.pixels.to(model.network.device))
    logits = encoding.logits[0] if config.classes else encoding.logits.new_empty(0)
    return Analysis(model, prepared, logits, encoding.traces[0])
