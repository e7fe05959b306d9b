"""The features of an analysed picture, as methods of :class:`vitviz.Analysis`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Any

from vitviz.attention.layout import Query, numbered
from vitviz.attention.precision import plain_torch, precise
from vitviz.attention.sinks import outlier_patches
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.arguments import named_arguments, word
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe
from vitviz.features.layer_choice import layer_scores
from vitviz.features.vectors import KINDS, Features, Kind, layer_vectors
from vitviz.images.preprocessing import PreparedImage
from vitviz.models.network import Network
from vitviz.models.weight_samples import weight_samples
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import Model


class Analysed(ABC):
    """What features need of :class:`vitviz.Analysis`, and its methods that give them."""

    model: Model
    prepared: PreparedImage
    trace: AttentionTrace

    @property
    @abstractmethod
    def network(self) -> Network:
        """The network, as :attr:`vitviz.Analysis.network`."""

    @abstractmethod
    def heatmap_of(self, token_map: TokenMap) -> Heatmap:
        """A map on the user's picture."""

    @named_arguments(MethodError)
    @plain_torch()
    def features(self, layer: int | None = None, of: Kind = "tokens") -> Features:
        """The vectors of one layer's tokens; the model runs again for tokens and values.

        Args:
            layer: counted from 0, or from the end as ``-1``; None for the layer that finds places of pictures again
                best, by :func:`vitviz.features.layer_scores`, which is seldom the last.
            of: ``"tokens"`` for the output of the layer, before any final norm; ``"keys"``, ``"queries"`` or
                ``"values"`` of its attention for those of all heads side by side, as they enter its products. Amir et
                al. 2021, "Deep ViT Features as Dense Visual Descriptors", compare these four, and choose keys.

        Raises:
            QueryError: the model has no such layer.
            MethodError: there are no such vectors, they cannot be read between the layers of a watched module, or not
                all of them are finite.
            LimitError: the machine does not have enough free memory.
        """
        trace, layout = self.trace, self.trace.layout
        word("of", of, KINDS)
        network = self.model.network if of in ("keys", "queries") else self.network
        chosen = layer_scores(self.model, of).best if layer is None else trace.layer_index(layer)
        vectors = next(islice(layer_vectors(network, self.prepared.pixels, of, trace), chosen, None))
        description = (
            f"{of} {'after' if of == 'tokens' else 'of'} {numbered('layer', chosen, trace.layers)}"
            f"{', which finds places again best' * (layer is None)}"
        )
        if not vectors.isfinite().all():
            raise MethodError(
                f"{description}: not all numbers are finite; expected a network that computes finite ones"
            )
        outliers = [] if trace.norms is None else outlier_patches(trace)
        inliers = [token for token in range(layout.prefix_count, layout.token_count) if token not in outliers]
        return Features(precise(vectors).detach().cpu().clone(), layout, inliers, chosen, description)

    @named_arguments(MethodError)
    @plain_torch()
    def similarity(self, query: Query, other: Any = None, layer: int | None = None, of: Kind = "tokens") -> Heatmap:
        """How alike each patch, of this picture or of another one, is to a token of this one: their cosine.

        Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers"; between pictures, Amir et al.
        2021, "Deep ViT Features as Dense Visual Descriptors".

        Args:
            query: the token: a patch ``(row, column)``, ``"cls"``, ``"register 1"``, ``"patches"`` for the mean of all,
                each of length 1, or a token index.
            other: the analysis on whose picture the map lies, by the same model; None for this one.
            layer, of: as :meth:`features` takes them.

        Returns:
            Values in [-1, 1]; 1 for the patch itself.

        Raises:
            QueryError: the model has no such layer or token.
            ConfigError: the other is no analysis.
            MethodError: as :meth:`features`, or the other is by another model.
        """
        selection = self.trace.layout.select(query)
        others = [] if other is None or other is self else [other]
        pairs = featured([self, *others], layer, of)
        mine, (place, theirs) = pairs[0][1], pairs[-1]
        token = f"{self.trace.layout.query_name(query)}{' of another picture' * len(others)}"
        description = f"Likeness to {token}, by the {mine.description}"
        cosines = mine.likeness(selection, theirs)
        return place.heatmap_of(TokenMap.of_tokens(cosines, theirs.layout, "cosine", description, (-1.0, 1.0)))


def featured(analyses: object, layer: int | None, of: Kind) -> list[tuple[Analysed, Features]]:
    """Analyses by one model, at least one, with their features of one layer; one alone may stand for a list.

    Raises:
        ConfigError: these are no analyses.
        MethodError: their models differ, or as :meth:`Analysed.features`.
    """
    listed: list[Any] = list(analyses) if isinstance(analyses, Iterable) else [analyses]
    if not listed or not all(isinstance(each, Analysed) for each in listed):
        raise ConfigError(f"{describe(analyses)} found; expected analyses, such as [vitviz.analyze(image, model)]")
    models = {
        (repr(each.network.config), weight_samples(each.network.state_dict().values())): (
            f"{each.name!r} (width {each.network.config.width})"
        )
        for each in (analysis.model for analysis in listed)
    }
    if len(models) > 1:
        raise MethodError(f"analyses by {' and '.join(models.values())}: vectors of one model alone can be compared")
    return [(each, each.features(layer, of)) for each in listed]
