"""One image, one model: encoded once, then asked anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from PIL import Image

from vitviz.ablation import HeadEffects, head_effects, switched_off
from vitviz.attribution import METHODS, Method, Subject, attention_sheet
from vitviz.costs import Cost, cost_of
from vitviz.errors import ConfigError, LimitError, MethodError, choices
from vitviz.faithfulness import Curve, faithfulness
from vitviz.heatmaps import Heatmap
from vitviz.images import ImageSource, open_image
from vitviz.layout import Query
from vitviz.memory import enough_memory
from vitviz.precision import type_of
from vitviz.preprocessing import FITS, PreparedImage, Preprocessing
from vitviz.progress import Progress
from vitviz.targets import Target, as_target, chosen_target
from vitviz.token_map import TokenMap
from vitviz.trace import AttentionTrace
from vitviz.vit import Encoding, VisionTransformer
from vitviz.weights import Model

KEEP_BYTES = 16 * 2**20
MAX_BYTES = 4 * 2**30


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
    _subjects: dict[int | Target, Subject] = field(default_factory=dict, init=False, repr=False)

    @property
    def nbytes(self) -> int:
        """The most bytes that the analysis comes to hold, the model aside."""
        width, height = self.prepared.image.size
        pixels = self.prepared.pixels.nbytes + 3 * width * height
        return self.trace.nbytes + pixels + (self._gradient_bytes if self._keeps_gradients else 0)

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

    @property
    def evidence(self) -> float:
        """How much speaks for any class at all: the logarithm of the sum of the exponentials of all logits.

        Liu et al. 2020, "Energy-based Out-of-distribution Detection", equation 4, the negative of the energy.

        Raises:
            MethodError: the model has no classifier.
        """
        if not self.model.labels:
            raise MethodError(f"{self.model.name} has no classifier: nothing speaks for a class")
        return float(self.logits.logsumexp(-1))

    @property
    def is_unlike(self) -> bool | None:
        """Whether the picture is unlike what the model was trained on, as far as its evidence tells; None where the
        model does not say how much is usual."""
        least = self.model.least_evidence
        return None if least is None else self.evidence < least

    def map(self, method: str, *, report: Callable[[Progress], None] | None = None, **parameters: Any) -> Heatmap:
        """The map of any method in :data:`vitviz.METHODS`, by name, with its parameters.

        A class-specific method takes as ``target`` a class by label or number, the most probable one where it is not
        given, or any :class:`vitviz.targets.Target`, such as a text's; it runs the model again, forwards and back.

        Args:
            method: its name.
            report: is told how far a method is that takes long, and nothing by the others; an exception that it raises
                ends the computation.
            parameters: of the method, as :data:`vitviz.METHODS` names them.

        Raises:
            MethodError: there is no such method, it has no such parameter, or the model cannot serve it.
            QueryError: the model has no such layer, head or token.
            LimitError: the machine has not the memory for it.
        """
        if method not in METHODS:
            raise MethodError(f"method {method!r}: expected {choices(METHODS)}")
        legal = [parameter.name for parameter in METHODS[method].parameters]
        for name in parameters:
            if name not in legal:
                raise MethodError(f"{method} has no parameter {name!r}: expected {choices(legal)}")
        record = METHODS[method]
        target = parameters.pop("target", None) if record.class_specific else None
        refusal = record.refusal(self.model.network.config, has_target=isinstance(target, Target))
        if refusal is not None:
            raise MethodError(f"{method}: {refusal}")
        told = {"report": report} if record.reports else {}
        with enough_memory(f"{method} at {self.trace.layout.token_count:,} tokens"):
            return self._heatmap(record.compute(self._evidence(record, target), **parameters, **told))

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

    def faithfulness(
        self, maps: Mapping[str, Heatmap], target: int | str | Target | None = None, **options: Any
    ) -> dict[str, dict[str, Curve]]:
        """How well maps say what a score depends on, beside random orders of the patches.

        Args:
            maps: of this analysis, by any name.
            target: a class by label or number, the most probable one where it is not given, whose probability is
                watched; or any :class:`vitviz.targets.Target`, whose score is.
            options: ``metrics``, ``seed`` and ``report`` of :func:`vitviz.faithfulness.faithfulness`.

        Returns:
            The curves by metric and map.

        Raises:
            MethodError: the model has no such class, there is no such metric, or the target's score is not higher for
                the whole image than for one without any patch.
        """
        values = {name: heatmap.values for name, heatmap in maps.items()}
        wanted = chosen_target(target, self.logits, self.model.labels)
        return faithfulness(self.model.network, self.prepared.pixels, values, wanted, **options)

    def head_effects(self, target: int | str | Target | None = None, **options: Any) -> HeadEffects:
        """What becomes of a score without each head, as :func:`vitviz.ablation.head_effects`.

        Args:
            target: as :meth:`faithfulness` takes it.
            options: ``report`` of :func:`vitviz.ablation.head_effects`.

        Raises:
            MethodError: the model has no such class.
        """
        wanted = chosen_target(target, self.logits, self.model.labels)
        return head_effects(self.model.network, self.prepared.pixels, wanted, **options)

    def switched_off(
        self, heads: Iterable[tuple[int, int]] = (), patches: Iterable[tuple[int, int]] = ()
    ) -> torch.Tensor:
        """The logits without some heads and patches, ``"class"``, as :func:`vitviz.ablation.switched_off`."""
        return switched_off(self.model.network, self.prepared.pixels, heads, patches)

    @property
    def _keeps_gradients(self) -> bool:
        return self._gradient_bytes <= self.trace.keep_bytes

    @property
    def _gradient_bytes(self) -> int:
        """Of queries, keys, values and gradients of one class, in single precision."""
        return 4 * self.trace.queries.numel() * torch.float32.itemsize

    def _evidence(self, method: Method, wanted: int | str | Target | None) -> Any:
        """What a method computes from. Of the last target asked about, gradients are kept if they are small."""
        if not method.class_specific:
            return self.trace
        labels, network = self.model.labels, self.model.network
        key = chosen_target(wanted, self.logits, labels)
        subject = self._subjects.get(key)
        if subject is None:
            target = as_target(key, network.config.classes, labels)
            subject = Subject(network, self.prepared.pixels.to(network.device), target)
            self._subjects.clear()
            if self._keeps_gradients:
                self._subjects[key] = subject
        return subject if method.evidence == "subject" else subject.gradients

    def _heatmap(self, token_map: TokenMap) -> Heatmap:
        return Heatmap(token_map, self.prepared.image, self.prepared.geometry)


@dataclass(frozen=True)
class Encoder:
    """How images become analyses: what :func:`analyze` and :func:`vitviz.analyze_batch` share.

    Args:
        model, fit, resolution, storage, keep_bytes, max_bytes, forward: as :func:`analyze` takes them.

    Raises:
        ConfigError: as :func:`analyze`.
    """

    model: Model
    fit: str | None = None
    resolution: int | None = None
    storage: str | None = None
    keep_bytes: int = KEEP_BYTES
    max_bytes: int = MAX_BYTES
    forward: Callable[..., Encoding] | None = None

    def __post_init__(self) -> None:
        for name, count in (("keep_bytes", self.keep_bytes), ("max_bytes", self.max_bytes)):
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ConfigError(f"{name} = {count!r}: expected a whole number of bytes, 0 or more")
        if self.fit is not None and self.fit not in FITS:
            raise ConfigError(f"fit {self.fit!r}: expected {choices(FITS)}")
        if self.storage is not None:
            type_of(self.storage)
        # Said now and not at the first image.
        _ = self.preprocessing

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """That of the model, at the resolution asked for."""
        own = self.model.preprocessing
        return own if self.resolution is None else own.at(self.resolution, *self._patch)

    @property
    def _patch(self) -> tuple[int, int]:
        config = self.model.network.config
        return config.patch_height, config.patch_width

    def cost(self, image: Image.Image, preprocessing: Preprocessing | None = None) -> Cost:
        """What an image's analysis takes, at another preprocessing than this one where it is given."""
        size = (preprocessing or self.preprocessing).input_size(image, *self._patch, self.fit)
        return self.cost_at(*size)

    def cost_at(self, height: int, width: int, batch: int = 1) -> Cost:
        """What so many inputs of this size in pixels take together."""
        config = self.model.network.config
        return cost_of(config, config.layout(height, width), batch, self.storage)

    def prepare(self, source: ImageSource) -> PreparedImage:
        """An image, opened and brought to the model's input.

        Raises:
            ImageError: it cannot be opened.
            LimitError: its analysis would need more than ``max_bytes``.
        """
        image = open_image(source)
        needed = self.cost(image)
        if needed.nbytes > self.max_bytes:
            raise LimitError(self._refusal(image, needed))
        return self.preprocessing.prepare(image, *self._patch, self.fit)

    def encode(
        self, prepared: Sequence[PreparedImage], report: Callable[[Progress], None] | None = None
    ) -> list[Analysis]:
        """One forward pass over images whose inputs are of one size; ``report`` as :func:`analyze` takes it.

        Raises:
            LimitError: the machine has not the memory for it.
        """
        network = self.model.network
        geometry = prepared[0].geometry
        needed = self.cost_at(geometry.input_height, geometry.input_width, len(prepared))
        what = f"input of {geometry.input_width}×{geometry.input_height}: {needed.tokens:,} tokens"
        with torch.inference_mode(), enough_memory(f"{what}, about {needed.nbytes:,} bytes"):
            pixels = prepared[0].pixels if len(prepared) == 1 else torch.cat([one.pixels for one in prepared])
            forward = self.forward or VisionTransformer.encode
            encoding = forward(network, pixels.to(network.device), self.storage, self.keep_bytes, report)
            logits = encoding.logits if network.config.classes else encoding.logits[:, :0]
        return [Analysis(self.model, *parts) for parts in zip(prepared, logits, encoding.traces, strict=True)]

    def _refusal(self, image: Image.Image, needed: Cost) -> str:
        """Why an image is not analysed, and what would be."""
        sizes = ((at, self.model.preprocessing.at(at, *self._patch)) for at in self.preprocessing.smaller(*self._patch))
        # What is needed does not always grow with the resolution, so that halving the range would miss the largest.
        fits = next((at for at, smaller in sizes if self.cost(image, smaller).nbytes <= self.max_bytes), None)
        height, width = self.preprocessing.input_size(image, *self._patch, self.fit)
        way = "no resolution fits" if fits is None else f"resolution = {fits} is the largest that fits"
        return (
            f"image of {image.width}×{image.height} pixels as an input of {width}×{height}: {needed.tokens:,} tokens "
            f"need {needed.nbytes:,} bytes, max_bytes = {self.max_bytes:,}; {way}, or allow more by max_bytes"
        )


def analyze(
    image: ImageSource,
    model: Model,
    fit: str | None = None,
    *,
    resolution: int | None = None,
    storage: str | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    report: Callable[[Progress], None] | None = None,
    forward: Callable[..., Encoding] | None = None,
) -> Analysis:
    """Run a model on an image, once.

    Args:
        image: a path, the bytes of a file, a PIL image or an array, as :func:`vitviz.images.open_image` takes them.
        model: as :func:`vitviz.load` gives it.
        fit: ``"crop"``, ``"squash"`` or ``"native"``; the checkpoint's own where it is not given.
        resolution: of the model's input, as :meth:`vitviz.Preprocessing.at` takes it; the trained one where it is not
            given.
        storage: in what precision queries and keys are kept: ``"float32"``, ``"bfloat16"`` or ``"float16"``; exactly
            as they are where it is not given.
        keep_bytes: fused attention matrices are kept, so that what needs them again is nearly free, where those of all
            layers fit into so many bytes.
        max_bytes: most that the analysis may need by :func:`cost`.
        report: is told how many of the model's layers are done; an exception that it raises ends the analysis.
        forward: what runs the network in place of :meth:`vitviz.VisionTransformer.encode`, with its arguments, such as
            one that brings it to another machine and its traces back.

    Raises:
        ImageError: the image cannot be opened, or the model has no positions for an input of this size.
        ConfigError: the fit, resolution, storage or a number of bytes is none that there is.
        LimitError: the analysis would need more than ``max_bytes``, and nothing has been computed; or the machine has
            not the memory for it.
    """
    encoder = Encoder(model, fit, resolution, storage, keep_bytes, max_bytes, forward)
    return encoder.encode([encoder.prepare(image)], report)[0]


def cost(
    image: ImageSource,
    model: Model,
    fit: str | None = None,
    *,
    resolution: int | None = None,
    storage: str | None = None,
) -> Cost:
    """What :func:`analyze` would take, by formula; the model does not run.

    Args:
        image, model, fit, resolution, storage: as :func:`analyze` takes them.

    Raises:
        ImageError: the image cannot be opened.
        ConfigError: the fit, resolution or storage is none that there is.
    """
    return Encoder(model, fit, resolution, storage).cost(open_image(image))
