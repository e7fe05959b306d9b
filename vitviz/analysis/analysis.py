"""One image encoded by one model: most questions about it need no second forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch

from vitviz.analysis.cell import cell_html
from vitviz.analysis.flips import Flip, flip
from vitviz.analysis.given import model_and_picture
from vitviz.analysis.methods import MethodMaps
from vitviz.analysis.predictions import Prediction, Predictions
from vitviz.attention.layout import Query, indices_from_end
from vitviz.attention.memory import enough_memory, to_device
from vitviz.attention.precision import without_autocast
from vitviz.attention.softmax import HeadFusion
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import METHODS, AttributionInput, Method, attention_sheet
from vitviz.attribution.attention import Direction, attention_subject
from vitviz.attribution.exclusion import Exclude
from vitviz.attribution.far_look import FarLook, far_look
from vitviz.attribution.methods import MethodName, record_and_arguments
from vitviz.attribution.propagation import Reference
from vitviz.errors.arguments import integer, named_arguments, named_fields, no_parameter, word
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe
from vitviz.images.preprocessing import PreparedImage
from vitviz.images.sources import ImageSource
from vitviz.metrics.ablation import HeadEffects, head_effects, switched_off
from vitviz.metrics.faithfulness import METRIC_NAMES, Curve, MetricName, faithfulness
from vitviz.models.network import Network
from vitviz.models.probability import class_probabilities, why_no_probability
from vitviz.models.targets import Target, TargetChoice, as_target, effect_score, resolve_target
from vitviz.models.weight_samples import AFTER_TRAINING, CHANGED_WEIGHTS, network_samples, weight_samples
from vitviz.progress import Progress
from vitviz.visualization.arithmetic import is_same_picture
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
class Analysis(MethodMaps, AttributeAdvice):
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
        trace, layout = self.trace, self.trace.layout
        image = "an image" if self.source is None else f"image {self.source}"
        best = self.predictions(1) if self.model.gives_probabilities else ()
        classes = f"{len(self.model.labels):,} class{'es' * (len(self.model.labels) != 1)}"
        predictions = "".join(f"; of {classes}: {each.label}, {each.probability:.0%}" for each in best)
        size = f"{trace.layers} layers × {trace.heads} heads, {layout.grid_height}×{layout.grid_width} patches"
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
        width, height = self.prepared.image.size
        pixels = self.prepared.pixels.nbytes + 3 * width * height
        return self.trace.nbytes + pixels + (self._gradient_bytes if self._keeps_gradients else 0)

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
        with without_autocast(), enough_memory(f"{method} at {self.trace.layout.token_count:,} tokens"):
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

    @named_arguments(MethodError)
    def faithfulness(
        self,
        maps: Mapping[str, Heatmap],
        target: TargetChoice = None,
        *,
        metrics: Iterable[MetricName] = METRIC_NAMES,
        seed: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> dict[str, dict[str, Curve]]:
        """How well maps rank the patches that a score depends on, compared with random orders of the patches.

        Args:
            maps: of this analysis, by any name.
            target: a class by label or number (default: the most probable one), whose probability is measured; or
                another target of :meth:`map`, whose score is measured.
            metrics, seed, report: as :func:`vitviz.metrics.faithfulness.faithfulness` takes them.

        Returns:
            The curves by metric and map.

        Raises:
            MethodError: these are no maps by name, one is of another picture of this size or of another part of it, the
                model has no such class, there is no such metric, or the target's score is not higher for the whole
                image than for one without any patch.
        """
        if not isinstance(maps, Mapping) or not all(isinstance(each, Heatmap) for each in maps.values()):
            expected = "expected maps by name, such as {'rollout': analysis.rollout()}"
            raise MethodError(f"maps: {describe(maps)} found; {expected}")
        for name, heatmap in maps.items():
            self.check_place(name, heatmap)
        values = {name: heatmap.values for name, heatmap in maps.items()}
        class_or_target = resolve_target(target, self.logits, self.model.labels)
        return faithfulness(self.network, self.prepared.pixels, values, class_or_target, metrics, seed, report)

    @named_arguments(MethodError)
    def head_effects(
        self,
        target: TargetChoice = None,
        *,
        report: Callable[[Progress], None] | None = None,
    ) -> HeadEffects:
        """How a score changes without each head, as :func:`vitviz.metrics.ablation.head_effects`.

        Args:
            target: as :meth:`faithfulness` takes it.
            report: as :func:`vitviz.metrics.ablation.head_effects` takes it.

        Raises:
            MethodError: the model has no such class.
        """
        class_or_target = resolve_target(target, self.logits, self.model.labels)
        return head_effects(self.network, self.prepared.pixels, class_or_target, report)

    @named_arguments(MethodError)
    def switched_off(
        self,
        heads: Iterable[tuple[int, int]] = (),
        patches: Iterable[tuple[int, int]] = (),
        *,
        target: TargetChoice = None,
    ) -> torch.Tensor:
        """The model's output without some heads and patches, as :func:`vitviz.metrics.ablation.switched_off`.

        Args:
            heads, patches: as that function takes them.
            target: as :meth:`faithfulness` takes it; with None the whole output is returned.

        Returns:
            Without a target, the logits ``"class"`` (the pooled features if there is no classifier). With one, a single
            number: the probability of a class, or the score of another target.

        Raises:
            MethodError: the model has no such class.
            QueryError: it has no such head or patch, or no patch is left.
        """
        network, pixels, config = self.network, self.prepared.pixels, self.model.network.config
        if target is None:
            return switched_off(network, pixels, heads, patches)
        class_or_target = resolve_target(target, self.logits, self.model.labels)
        watched = effect_score(class_or_target, config.classes, config.probability)
        return watched.scores(switched_off(network, pixels, heads, patches, watched.reads)[None])[0]

    def far_look(self) -> FarLook | None:
        """The square that gives most of its attention to one place far from it, as :func:`vitviz.attribution.far_look`.

        Of all layers and heads; None if no place of the grid is far enough.
        """
        return far_look(self.trace, self.prepared.pixels)

    @named_arguments(MethodError)
    def flip(
        self,
        to: int | str | None = None,
        margin: float = 0.1,
        *,
        order: Heatmap | None = None,
        random_orders: int = 5,
        report: Callable[[Progress], None] | None = None,
    ) -> Flip:
        """A few squares without which the answer is another one, found by covering them as :meth:`switched_off` does.

        The set is small, not the smallest: each of its squares is needed by itself. The sources are those of
        :mod:`vitviz.metrics.flip`.

        Args:
            to: the class that shall be the answer, by label or number; None for any other.
            margin: by how much the probability of the new answer must be above that of the old one, or that of ``to``
                above all others; in [0, 1).
            order: a map of this analysis, whose highest values are covered first; by default relevance for the answer,
                or against ``to``.
            random_orders: how many random orders are searched in the same way, for comparison.
            report: receives the number of passes, of about as many as there are patches; an exception from it ends the
                search.

        Raises:
            MethodError: the model gives no probabilities of at least two classes, ``to`` is its answer already, the
                margin is out of range, or the order is of another picture.
        """
        return flip(self, to, margin, order, random_orders, report)

    @named_arguments(MethodError)
    def check_place(self, name: str, heatmap: Heatmap) -> None:
        """Check that a map is of this picture; one on a picture of another size may be on a copy of it.

        Raises:
            MethodError: it is on another picture of this size, or on another part of it than the model's input.
        """
        image, has_this_size = self.prepared.image, heatmap.image.size == self.prepared.image.size
        box = self.prepared.geometry.resized(*image.size).box
        if has_this_size and heatmap.geometry.box != box:
            found = f"on the part {heatmap.geometry.box} of the picture"
            raise MethodError(f"maps: {name!r} is {found}; expected it on the model's input, {box}")
        if has_this_size and not is_same_picture(heatmap.image, image):
            raise MethodError(f"maps: {name!r} is on another picture; expected maps of this analysis")

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
