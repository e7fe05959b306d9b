"""One image encoded by one model: most questions about it need no second forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from vitviz.analysis.cell import cell_html
from vitviz.analysis.experiments import Experiments
from vitviz.analysis.given_attention import model_and_picture
from vitviz.analysis.method_calls import MethodMaps
from vitviz.analysis.predictions import Prediction, Predictions
from vitviz.attention.layout import Query, indices_from_end
from vitviz.attention.memory import enough_memory, to_device
from vitviz.attention.precision import plain_torch
from vitviz.attention.softmax import HeadFusion
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import METHODS, AttributionInput, Method, attention_sheet
from vitviz.attribution.attention import Direction, attention_subject
from vitviz.attribution.exclusion import Exclude
from vitviz.attribution.methods import MethodName, record_and_arguments
from vitviz.attribution.propagation import Reference
from vitviz.caching import cached_property
from vitviz.errors.arguments import integer, named_arguments, named_fields, no_parameter, word
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.images.preprocessing import PreparedImage
from vitviz.images.sources import ImageSource
from vitviz.models.network import Network
from vitviz.models.probability import class_probabilities, why_no_probability
from vitviz.models.targets import Target, TargetChoice, as_target, resolve_target
from vitviz.models.weight_samples import AFTER_TRAINING, CHANGED_WEIGHTS, network_samples, weight_samples
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Heatmap
from vitviz.visualization.sheets import Sheet
from vitviz.weights import Model

NO_DETECTOR = (
    "the detector of out-of-distribution images was taken out, because it took known things for unknown ones, and "
    "unknown ones for known"
)
"""Goes with the next release, as what answers with it."""


def _unknown_parameter_message(analysis: Analysis, method: str = "", *_: Any, unknown: str, **__: Any) -> str:
    """The error message for a parameter that no method has."""
    word("method", method, METHODS)
    return no_parameter(method, unknown, [parameter.name for parameter in METHODS[method].parameters])


@named_fields(ConfigError, "vitviz.analyze(image, model)")
@dataclass(frozen=True, eq=False)
class Analysis(MethodMaps, Experiments, AttributeAdvice):
    """One image encoded by one model, made by :func:`vitviz.analyze`, or by :meth:`of`.

    It can be pickled and copied; its cached gradients are left out.

    Args:
        model: the model that encoded the image.
        prepared: the image and how it was brought to the model's input.
        logits: ``"class"``; empty for a model without a classifier.
        trace: queries and keys of every layer.

    >>> analysis = vitviz.analyze("cat.jpg", model)
    >>> analysis.relevance("cat").overlay("viridis").save("relevance.png")
    """

    model: Model
    prepared: PreparedImage
    logits: torch.Tensor
    trace: AttentionTrace
    _inputs: dict[int | Target, AttributionInput] = field(default_factory=dict, init=False, repr=False)
    _weights: bytes = field(default=b"", init=False, repr=False)

    @classmethod
    @named_arguments(MethodError)
    def of(cls, trace: AttentionTrace, image: ImageSource) -> Analysis:
        """The analysis of attention that exists already, such as :meth:`vitviz.AttentionTrace.from_weights` of yours.

        All that needs attention alone works: maps, sheets, probes and :func:`vitviz.explore`. The maps cover the whole
        picture; if the network saw only a part of it, as after a centre crop, give it that part.

        Args:
            trace: of the picture; one that requires grad is warned about, since the maps have no gradient.
            image: as :func:`vitviz.open_image` takes it.

        Raises:
            ConfigError: this is no trace.
            ImageError: the image cannot be opened.
        """
        model, prepared = model_and_picture(trace, image)
        # An analysis needs no gradients, whose graph would be kept.
        weights = tuple(layer.detach() for layer in trace.stored_weights)
        return cls(model, prepared, torch.empty(0), replace(trace, stored_weights=weights))

    def __repr__(self) -> str:
        layout, image = self.trace.layout, "an image" if self.source is None else f"image {self.source}"
        best = self.predictions(1) if self.model.gives_probabilities else ()
        classes = f"{len(self.model.labels):,} class{'es' * (len(self.model.labels) != 1)}"
        predictions = "".join(f"; of {classes}: {each.label}, {each.probability:.0%}" for each in best)
        size = (
            f"{self.trace.layers} layers × {self.trace.heads} heads, {layout.grid_height}×{layout.grid_width} patches"
        )
        return f"Analysis({image} by {self.model.name!r}: {size}{predictions})"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return cell_html(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_weights", network_samples(self.model.network))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inputs": {}}

    @property
    def network(self) -> Network:
        """The model's network, for another pass over the image.

        Raises:
            MethodError: its weights have changed since the analysis.
        """
        if network_samples(self.model.network) != self._weights:
            raise MethodError(f"{self.model.name}: {CHANGED_WEIGHTS}; {AFTER_TRAINING}")
        return self.model.network

    @property
    def source(self) -> Path | int | None:
        """The image's file, or else its position in a batch, counted from 0; None if neither is known."""
        return self.prepared.source

    @property
    def nbytes(self) -> int:
        """The most bytes that the analysis can come to hold, without the model."""
        return self.trace.nbytes + self.prepared.nbytes + (self._gradient_bytes if self._keeps_gradients else 0)

    @named_arguments(MethodError)
    def predictions(self, count: int = 5) -> Predictions:
        """The most probable classes, best first.

        Raises:
            MethodError: the model has no classifier or is a regression, or the count is negative.
        """
        if reason := why_no_probability(self.model.network.config):
            raise MethodError(f"{self.model.name} {reason}: it gives no predictions")
        count = integer("count", count, 0, MethodError)
        probabilities = class_probabilities(self.logits, self.model.network.config.probability)
        best = probabilities.topk(min(count, len(self.model.labels)))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return Predictions(Prediction(self.model.labels[index], probability, index) for probability, index in pairs)

    @property
    def energy_score(self) -> float:
        """The logarithm of the sum of the exponentials of all logits, low for an image that fits no class of the model.

        Liu et al. 2020, "Energy-based Out-of-distribution Detection", equation 4, the negative of the energy.

        Raises:
            MethodError: the model has no classifier, or its probabilities are not the softmax of logits.
        """
        if not self.model.labels or self.model.network.config.probability != "softmax":
            kind = "softmax over classes" if self.model.labels else "classifier"
            raise MethodError(f"{self.model.name} has no {kind}: it has no energy score")
        return float(self.logits.logsumexp(-1))

    @property
    def is_out_of_distribution(self) -> NoReturn:
        """Raises an error that says what to use instead, like ``ood_score``."""
        raise MethodError(
            f"is_out_of_distribution and ood_score: {NO_DETECTOR}; look at analysis.predictions(), and at "
            "analysis.energy_score, which is low for an image that fits no class"
        )

    ood_score = is_out_of_distribution

    @named_arguments(MethodError, _unknown_parameter_message)
    def map(
        self,
        method: MethodName,
        *,
        target: TargetChoice = None,
        query: Query | None = None,
        layer: int | None = None,
        head: int | HeadFusion | None = None,
        direction: Direction | None = None,
        mass: float | None = None,
        head_fusion: HeadFusion | None = None,
        discard_ratio: float | None = None,
        residual_weight: float | None = None,
        start_layer: int | None = None,
        end_layer: int | None = None,
        reference: Reference | None = None,
        exclude: Exclude = None,
        most_patches: int | None = None,
        steps: int | None = None,
        signed: bool | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> Heatmap:
        """The map of any method in :data:`vitviz.METHODS`, by name, with its parameters.

        Each method takes some of these parameters; :data:`vitviz.METHODS` lists which. None stands for the method's
        default. A class-specific method runs the model again, forward and backward.

        Args:
            method: its name.
            target: the score that the map explains: a class by label or number (default: the most probable one),
                :func:`vitviz.contrast` or :func:`vitviz.margin` of classes, or any :class:`vitviz.Target`, such as
                :func:`vitviz.likeness` to another picture.
            query: the token whose map it is: ``"cls"``, ``"register 1"``, a patch's ``(row, column)``, ``"patches"``
                for the mean of all patches, or a token index.
            layer, start_layer, end_layer: the layer shown, and the lowest and highest layer of a rollout; counted from
                0, or from the end as ``-1``.
            head: counted from 0, or ``"mean"``, ``"max"`` or ``"min"`` over the heads.
            direction: ``"row"`` for what the token attends to, ``"column"`` for what attends to it.
            mass: the share of the attention that the patches shown hold together.
            head_fusion: ``"mean"``, ``"max"`` or ``"min"``.
            discard_ratio, residual_weight, reference: as :func:`vitviz.attribution.rollout` takes them.
            exclude: tokens that nobody attends to: ``"outliers"``, ``"sinks"``, or a list of tokens.
            most_patches: as :func:`vitviz.attribution.attention_flow` takes it.
            steps, signed: as :func:`vitviz.attribution.integrated_gradients` takes them.
            report: receives the progress of a method that takes long; quick methods do not call it. An exception that
                it raises ends the computation.

        Raises:
            MethodError: there is no such method, it has no such parameter, or the model does not support it.
            QueryError: the model has no such layer, head or token.
            LimitError: the machine has not enough memory for it.
        """
        options: dict[str, Any] = {
            "target": target,
            "query": query,
            "layer": layer,
            "head": head,
            "direction": direction,
            "mass": mass,
            "head_fusion": head_fusion,
            "discard_ratio": discard_ratio,
            "residual_weight": residual_weight,
            "start_layer": start_layer,
            "end_layer": end_layer,
            "reference": reference,
            "exclude": exclude,
            "most_patches": most_patches,
            "steps": steps,
            "signed": signed,
        }
        record, parameters = record_and_arguments(method, options)
        choice = parameters.pop("target", None)
        refusal = record.refusal(self.model.network.config, has_target=isinstance(choice, Target))
        if refusal is not None:
            raise MethodError(f"{method}: {refusal}")
        reporting = {"report": report} if record.reports else {}
        with plain_torch(), enough_memory(f"{method} at {self.trace.layout.token_count:,} tokens"):
            return self.heatmap_of(
                record.compute(self._required(record, choice, parameters), **parameters, **reporting)
            )

    @named_arguments(MethodError)
    def attention_sheet(
        self,
        query: Query | None = None,
        direction: Direction = "row",
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
    ) -> Sheet:
        """One token's attention in every layer (outer list) and head (inner list), or in those of these numbers.

        Parameters and errors are those of :func:`vitviz.attribution.attention_sheet`.

        >>> analysis.attention_sheet(layers=[0, 4, -1], heads=range(4)).save("sheet.pdf")
        """
        trace = self.trace
        numbers = indices_from_end("layer", layers, trace.layers), indices_from_end("head", heads, trace.heads)
        return Sheet(
            ([self.heatmap_of(cell) for cell in row] for row in attention_sheet(trace, query, direction, *numbers)),
            *numbers,
            attention_subject(trace.layout, query, direction),
        )

    @property
    def _keeps_gradients(self) -> bool:
        return self._gradient_bytes <= self.trace.keep_bytes

    @property
    def _gradient_bytes(self) -> int:
        """Bytes of queries, keys, values, gradients and biases for one class, in single precision."""
        bias, layers = self.trace.bias, self.trace.layers
        biases = 0 if bias is None else layers * bias[0].numel()
        return (4 * self.trace.queries.numel() + biases) * torch.float32.itemsize

    def _required(self, method: Method, choice: TargetChoice, parameters: Mapping[str, Any]) -> Any:
        """The input of a method's function. Keeps the gradients of the last target if they are small."""
        if not method.class_specific:
            return self.trace
        labels, network = self.model.labels, self.network
        key = resolve_target(choice, self.logits, labels)
        inputs = self._inputs.get(key)
        if inputs is None:
            target = as_target(key, network.config.classes, labels)
            inputs = AttributionInput(network, to_device([self.prepared.pixels], network.device), target)
            self._inputs.clear()
            if self._keeps_gradients:
                self._inputs[key] = inputs
        return inputs if method.requires == "inputs" else inputs.gradients_from(parameters.get("start_layer", 0))

    @named_arguments(MethodError)
    def heatmap_of(self, token_map: TokenMap) -> Heatmap:
        """A map on the user's picture."""
        return Heatmap(token_map, self.prepared.image, self.prepared.geometry, self.model.name, self._samples)

    @cached_property
    def _samples(self) -> bytes:
        return self._weights or weight_samples(self.model.network.state_dict().values())
