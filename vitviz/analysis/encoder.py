"""How images become analyses: one at a time, or as the batches of :func:`vitviz.analyze_batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.costs import Cost, cost_of
from vitviz.attention.memory import enough_memory, to_device
from vitviz.attention.precision import Precision, plain_torch, type_of
from vitviz.attention.trace import AttentionTrace
from vitviz.caching import cached_property
from vitviz.errors.arguments import instance, integer, named_arguments, word
from vitviz.errors.kinds import ConfigError, LimitError
from vitviz.errors.messages import describe
from vitviz.images.colours import COLOR_PROFILES, ColorProfile
from vitviz.images.geometry import Sized
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import FITS, Fit, PreparedImage, Preprocessing
from vitviz.images.sources import COLUMN, ImageSource, Row, ValueRange, checked_range, image_of, origin
from vitviz.models.network import Encoding
from vitviz.progress import Progress
from vitviz.weights import Model

KEEP_BYTES = 16 * 2**20
MAX_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Encoder:
    """Opens, checks and encodes images for :func:`analyze` and :func:`vitviz.analyze_batch`.

    Args:
        model, fit, resolution, storage, keep_bytes, max_bytes, forward, value_range, column, color_profile: as
            :func:`analyze` takes them.

    Raises:
        ConfigError: as :func:`analyze`.
    """

    model: Model
    fit: Fit | None = None
    resolution: int | None = None
    storage: Precision | None = None
    keep_bytes: int = KEEP_BYTES
    max_bytes: int = MAX_BYTES
    forward: Callable[..., Encoding] | None = None
    value_range: ValueRange | None = None
    column: str = COLUMN
    color_profile: ColorProfile | None = None

    def __post_init__(self) -> None:
        code = f"vitviz.load({self.model!r})" if isinstance(self.model, str) else "vitviz.load()"
        instance("model", self.model, Model, code)
        for name in ("keep_bytes", "max_bytes"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 0))
        if self.fit is not None:
            word("fit", self.fit, FITS, ConfigError)
        if self.storage is not None:
            type_of(self.storage, "storage")
        object.__setattr__(self, "value_range", checked_range(self.value_range))
        if self.color_profile is not None:
            word("color_profile", self.color_profile, COLOR_PROFILES, ConfigError)
        # Raise now rather than at the first image.
        _ = self.preprocessing

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """The model's preprocessing, at the chosen resolution."""
        default = self.model.preprocessing
        return default if self.resolution is None else default.at(self.resolution, *self._patch)

    @property
    def _patch(self) -> tuple[int, int]:
        config = self.model.network.config
        return config.patch_height, config.patch_width

    def cost(self, image: Sized, preprocessing: Preprocessing | None = None) -> Cost:
        """The cost of an image's analysis, with another preprocessing if one is given."""
        size = (preprocessing or self.preprocessing).input_size(image, *self._patch, self.fit)
        return self.cost_at(*size)

    def cost_at(self, height: int, width: int, batch: int = 1) -> Cost:
        """The cost of a batch of inputs of this size in pixels."""
        config = self.model.network.config
        return cost_of(config, config.layout(height, width), batch, self.storage)

    def prepare(self, source: ImageSource | Row, position: int | None = None) -> PreparedImage:
        """An image, opened and brought to the model's input.

        Args:
            source: the image, as :func:`analyze` takes it.
            position: in a batch, counted from 0; the source of the prepared image if its file is not known.

        Raises:
            ImageError: it cannot be opened.
            LimitError: its analysis would need more than ``max_bytes``; the message names the resolution that fits.
        """
        image = self.open(source)
        cost = self.cost(image)
        if cost.nbytes > self.max_bytes:
            fits = self.largest_resolution(image)
            height, width = self.preprocessing.input_size(image, *self._patch, self.fit)
            advice = "no resolution fits" if fits is None else f"resolution = {fits} is the largest that fits"
            raise LimitError(
                f"image of {image.width}×{image.height} pixels as an input of {width}×{height}: {cost.tokens:,} tokens "
                f"need about {cost.nbytes:,} bytes, max_bytes = {self.max_bytes:,}; {advice}, "
                "or allow more by max_bytes"
            )
        prepared = self.preprocessing.prepare(image, *self._patch, self.fit)
        return replace(prepared, source=origin(source, self.column, position))

    def largest_resolution(self, image: Sized) -> int | None:
        """The largest resolution below the present one that needs no more than ``max_bytes``, or None."""
        sizes = ((at, self.model.preprocessing.at(at, *self._patch)) for at in self.preprocessing.smaller(*self._patch))
        # Memory does not always grow with the resolution, so a binary search could miss the largest.
        return next((at for at, smaller in sizes if self.cost(image, smaller).nbytes <= self.max_bytes), None)

    def open(self, source: ImageSource | Row) -> Image.Image:
        """An image, or the image of a row, as :func:`vitviz.open_image` opens it."""
        options: dict[str, Any] = {"value_range": self.value_range}
        options["color_profile"] = self.color_profile or self.preprocessing.color_profile
        return open_image(image_of(source, self.column), **options)

    @plain_torch()
    def encode(
        self, prepared: Sequence[PreparedImage], report: Callable[[Progress], None] | None = None
    ) -> list[Analysis]:
        """One forward pass over images whose inputs are of one size; ``report`` as :func:`analyze` takes it.

        Raises:
            LimitError: the machine has not enough memory for it.
        """
        network = self.model.network
        geometry = prepared[0].geometry
        cost = self.cost_at(geometry.input_height, geometry.input_width, len(prepared))
        size = f"input of {geometry.input_width}×{geometry.input_height}: {cost.tokens:,} tokens"
        with torch.inference_mode(), enough_memory(f"{size}, about {cost.nbytes:,} bytes"):
            pixels = to_device([one.pixels for one in prepared], network.device)
            arguments = (pixels, self.storage, self.keep_bytes, report)
            encoding = network.encode(*arguments) if self.forward is None else self.forward(network, *arguments)
            logits = encoding.logits if network.config.classes else encoding.logits[:, :0]
        return [Analysis(self.model, *fields) for fields in zip(prepared, logits, encoding.traces, strict=True)]


# Functions whose first argument is a single image, which several tensors are not.
ONE_IMAGE = ("analyze", "cost", "explore")


def check_order(function: str, first: object, second: object) -> None:
    """Check that image and model are not swapped, and that the image is not its attention.

    Raises:
        ConfigError: they are, or it is.
    """
    if isinstance(first, Model):
        name = {"analyze_batch": "images", "analyze_loader": "loader", "film": "source"}.get(function, "image")
        order = f"a Model found first, then {describe(second)}"
        raise ConfigError(f"{function}: {order}; expected the {name} first: {function}({name}, model)")
    if isinstance(first, AttentionTrace) or (
        function in ONE_IMAGE and not isinstance(second, Model) and _is_attention(first)
    ):
        trace = "trace" if isinstance(first, AttentionTrace) else "vitviz.AttentionTrace.from_weights(attentions)"
        own = f"vitviz.Analysis.of({trace}, image)"
        expected = f"expected vitviz.explore({own})" if function == "explore" else f"expected {own}"
        raise ConfigError(f"{function}: attention found in place of an image; {expected}")


def _is_attention(value: Any) -> bool:
    """Whether these look like attention weights: ``"layer batch head query key"``, or layers ``"(batch) head …"``."""
    is_list = isinstance(value, tuple | list) and len(value) > 0
    sizes = tuple(getattr(value[0] if is_list else value, "shape", None) or ())
    return len(sizes) in ((3, 4) if is_list else (5,)) and sizes[-1] == sizes[-2]


@named_arguments(ConfigError)
def analyze(
    image: ImageSource | Row,
    model: Model,
    fit: Fit | None = None,
    *,
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile | None = None,
    column: str = COLUMN,
    storage: Precision | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    report: Callable[[Progress], None] | None = None,
    forward: Callable[..., Encoding] | None = None,
) -> Analysis:
    """Run a model on an image, once.

    Args:
        image: a path, the bytes of a file, a PIL image, an array or a tensor, as :func:`vitviz.open_image` takes them,
            or a row of a table that has one of these.
        model: as :func:`vitviz.load` gives it.
        fit: ``"crop"``, ``"squash"`` or ``"native"``; the checkpoint's own by default.
        resolution: of the model's input, as :meth:`vitviz.Preprocessing.at` takes it; the trained one by default.
        value_range: the values of black and white in an array, a tensor or a picture of 16 bits, such as ``(0, 1)``;
            required for a tensor of floats.
        color_profile: ``"apply"`` or ``"ignore"``, as :func:`vitviz.open_image` takes it; None for how the model's
            training pictures were opened.
        column: the column with the image, if ``image`` is a row.
        storage: precision in which queries and keys are stored: ``"float32"``, ``"bfloat16"`` or ``"float16"``; the
            precision of the model by default.
        keep_bytes: keep the fused attention matrices of all layers if they fit into this many bytes, which makes their
            next use nearly free.
        max_bytes: most that the analysis may need by :func:`cost`.
        report: receives how many of the model's layers are done; an exception that it raises ends the analysis.
        forward: a function called in place of :meth:`vitviz.VisionTransformer.encode`, with the network and the
            arguments of that method, for example to run the network on another machine.

    Raises:
        ImageError: the image cannot be opened, or the model has no positions for an input of this size.
        ConfigError: the fit, resolution, storage, range or a number of bytes is invalid, or ``model`` is not a
            :class:`vitviz.Model`.
        LimitError: the analysis would need more than ``max_bytes``, and nothing has been computed; or the machine
            runs out of memory.

    >>> vitviz.analyze("cat.jpg", model, "squash")
    Analysis(image cat.jpg by 'vitviz-photos': 8 layers × 6 heads, 14×14 patches; of 108 classes: cat, 73%)
    """
    check_order("analyze", image, model)
    encoder = Encoder(
        model, fit, resolution, storage, keep_bytes, max_bytes, forward, value_range, column, color_profile
    )
    return encoder.encode([encoder.prepare(image)], report)[0]


@named_arguments(ConfigError)
def cost(
    image: ImageSource | Row,
    model: Model,
    fit: Fit | None = None,
    *,
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile | None = None,
    column: str = COLUMN,
    storage: Precision | None = None,
) -> Cost:
    """The memory and computation that :func:`analyze` needs, estimated by formula; the model does not run.

    Args:
        image, model, fit, resolution, value_range, color_profile, column, storage: as :func:`analyze` takes them.

    Raises:
        ImageError: the image cannot be opened.
        ConfigError: the fit, resolution, storage or range is invalid, or ``model`` is not a :class:`vitviz.Model`.

    >>> vitviz.cost("cat.jpg", model, resolution=224).tokens
    789
    """
    check_order("cost", image, model)
    opening: dict[str, Any] = {"value_range": value_range, "column": column, "color_profile": color_profile}
    encoder = Encoder(model, fit, resolution, storage, **opening)
    return encoder.cost(encoder.open(image))
