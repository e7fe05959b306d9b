"""The user's module as a network: its own forward pass, captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import nn

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import Precision, type_of
from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.copying import captured_copy
from vitviz.models.capture.facts import NO_STREAM, ModuleConfig, ModuleFacts, Size
from vitviz.models.capture.gradients import captured_features, captured_gradients
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.legrad import captured_layer_gradients
from vitviz.models.capture.outputs import first_output, is_vector, observation_errors, primary_output
from vitviz.models.capture.reading import describe_reading, verify_cls
from vitviz.models.capture.recording import Recording
from vitviz.models.capture.residual import ResidualStream, StreamTap, call_output, output_of_tokens
from vitviz.models.capture.state import check_device, check_state, device_of, dtype_of
from vitviz.models.capture.switching import captured_head_scores, captured_without
from vitviz.models.capture.verification import VerifiedCapture, verify_capture
from vitviz.models.network import Encoding
from vitviz.models.pooling import Output
from vitviz.progress import Progress

ATTENTION_POOLING, UNKNOWN_POOLING = "attention", "the module's own"
# Name of the one token that stands for all padding of windows that reach beyond the picture.
PADDING = "padding"


class CapturedNetwork:
    """A module of any package whose attention is captured during its own forward pass.

    The module is never changed: not its mode, device, gradients, hooks or settings. Each input shape is verified at its
    first use (:func:`vitviz.models.capture.verification.verify_capture`).

    Args:
        module: in evaluation mode.
        facts: its properties.

    Raises:
        ConfigError: its attention cannot be observed completely, or a number differs.
    """

    with_gradients = captured_gradients
    layer_gradients = captured_layer_gradients
    layer_features = captured_features
    without = captured_without
    head_scores = captured_head_scores
    copy_in_parts = captured_copy

    def __init__(self, module: nn.Module, facts: ModuleFacts) -> None:
        self.module, self.name = module, facts.name
        self.facts = facts
        self._verified: dict[tuple[Size, torch.dtype, torch.device], VerifiedCapture] = {}
        check_state(module)
        verified = self.verified(self.noise(*facts.image_size))
        if verified.is_padded:
            self.facts = facts = replace(facts, prefix=(PADDING,))
        self.verified_at_own_size, depth = verified, len(verified.calls)
        pooling = UNKNOWN_POOLING if verified.pooling_call is None else ATTENTION_POOLING
        self.config = ModuleConfig(
            *(*facts.image_size, *facts.patch_size, facts.channels, facts.classes, facts.probability, facts.prefix),
            depth,
            verified.heads,
            verified.head_width,
            verified.heads * verified.head_width,
            pooling,
            sum(parameter.numel() for parameter in module.parameters()),
            verified.heads * depth if verified.has_bias else 0,
            verified.is_written_out,
            verified.stream is not None,
        )

    def __call__(self, pixels: torch.Tensor, need_weights: bool = False) -> Any:
        """The module's output, as :meth:`output` gives it.

        With ``need_weights``, also the attention weights of every layer, each ``"batch head query key"`` with the
        prefix tokens first, from another pass, :meth:`encode`, without gradients.
        """
        if not need_weights:
            return self.output(pixels)
        traces, layers = self.encode(pixels).traces, range(self.config.depth)
        return self.output(pixels), [torch.stack([trace.weights(layer) for trace in traces]) for layer in layers]

    @property
    def device(self) -> torch.device:
        """The device of the module's weights."""
        return device_of(self.module)

    @property
    def precision(self) -> torch.dtype:
        """The type of the module's weights."""
        return dtype_of(self.module)

    def to(self, device: torch.device) -> CapturedNetwork:
        """The network itself, if this is the module's device.

        Raises:
            ConfigError: this is another device.
        """
        check_device(self.module, device)
        return self

    def parameters(self) -> Iterator[nn.Parameter]:
        """The module's weights."""
        return self.module.parameters()

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """The module's weights by name."""
        return self.module.state_dict()

    def encode(
        self,
        pixels: torch.Tensor,
        storage: Precision | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """Logits, and the queries and keys of the same forward pass, one image after the other.

        Arguments as in :meth:`vitviz.VisionTransformer.encode`. Logits have no columns if the module does not classify.

        Raises:
            ImageError: the module cannot take an input of this size.
            ConfigError: the storage is no precision, the module's state has changed, or a number differs.
        """
        dtype = None if storage is None else type_of(storage, "storage")
        check_state(self.module)
        traces, logits = [], []
        for image in pixels.split(1):
            verified = self.verified(image)
            layout = self.config.layout(*image.shape[-2:])
            recording = Recording(verified, layout, dtype, report)
            with self.running(image) as inputs:
                with Interception(recording, recording.tap) as interception:
                    output = self.run(inputs)
                if tuple(interception.indices) != verified.indices:
                    reason = "this picture's tokens are taken in another order than those of noise, on which it was"
                    raise ConfigError(f"{self.name}: {reason} verified: no map could say where they are")
                traces.append(recording.trace(keep_bytes))
            logits.append(output if self.config.classes else output.new_zeros(1, 0))
        return Encoding(torch.cat(logits).float(), tuple(traces))

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """The module's output for images.

        Args:
            pixels: ``"batch channel height width"``, normalised as the module was trained.
            output: ``"logits"`` for its output ``"batch class"``, or features if it does not classify; ``"features"``
                for the input of its classifier, ``"batch feature"``.

        Raises:
            MethodError: the module does not expose this output.
        """
        check_state(self.module)
        with self.running(pixels, torch.is_grad_enabled()) as inputs:
            return self.output_of(inputs, output, None)

    def returned(self, pixels: torch.Tensor) -> torch.Tensor:
        """The module's result for images: logits, features, or tokens if it returns nothing else."""
        check_state(self.module)
        with self.running(pixels) as inputs:
            return self.run(inputs)

    def stream(self, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
        """The tokens of one image before the first layer and after each one, each ``"1 token width"``, from one pass.

        As in :meth:`vitviz.VisionTransformer.stream`, tokens that are not patches come first.

        Raises:
            MethodError: the module has no residual stream, or none that can be observed.
        """
        check_state(self.module)
        verified = self.verified(pixels)
        steps: list[torch.Tensor] = []

        def record(step: int, tokens: torch.Tensor) -> torch.Tensor:
            # A copy, since the module may change the tokens in place.
            steps.append(verified.order.sort(tokens.detach().clone(), 1))
            return tokens

        tap = StreamTap(self.require_stream(verified), record)
        with self.running(pixels) as inputs, Interception(call_output, tap):
            self.run(inputs)
        return iter(steps)

    def read(self, tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """The module's output ``"batch class"`` for tokens that replace those after its last layer.

        Args:
            tokens: ``"batch token width"``, as :meth:`stream` returns them.
            layout: their order.

        Raises:
            MethodError: as :meth:`stream`.
        """
        check_state(self.module)
        config = self.config
        # Of no consequence, since all that the output reads is replaced.
        pixels = self.noise(layout.grid_height * config.patch_height, layout.grid_width * config.patch_width)
        verified = self.verified(pixels)
        stream, module_tokens = self.require_stream(verified), verified.order.unsort(tokens, 1)
        with self.running(pixels) as inputs:
            return output_of_tokens(self.run, inputs, stream, module_tokens)

    def noise(self, height: int, width: int) -> torch.Tensor:
        """An image of noise, the same at every call, ``"1 channel height width"``."""
        return torch.randn(1, self.facts.channels, height, width, generator=torch.Generator().manual_seed(0))

    @cached_property
    def why_no_hiding(self) -> str | None:
        """Why :meth:`without` cannot leave patches out, tried on noise of its own size; None if it can."""
        try:
            self.without(self.noise(*self.facts.image_size), patches=[{0}])
        except MethodError as error:
            return str(error)
        return None

    def attention_gradients(self, *arguments: Any) -> NoReturn:
        """Refused: no bias is added to the scores of a module."""
        raise MethodError(f"{self.name}: a captured module takes no bias of its attention; expected order=…, a map")

    def classify_each(self, tokens: torch.Tensor) -> NoReturn:
        """Refused: the module classifies all tokens together."""
        raise MethodError(f"{self.name}: a captured module does not classify single tokens")

    def require_stream(self, verified: VerifiedCapture) -> ResidualStream:
        """The module's residual stream.

        Raises:
            MethodError: its tokens cannot be read between its layers.
        """
        if verified.stream is None:
            raise MethodError(f"{self.name}: {NO_STREAM}")
        return verified.stream

    def output_of(
        self,
        pixels: torch.Tensor,
        output: Output,
        on_call: Callable[[AttentionCall], torch.Tensor] | None,
        tap: StreamTap | None = None,
    ) -> torch.Tensor:
        """:meth:`output` for pixels from :meth:`running`, with functions that observe or replace attention and tokens.

        Args:
            pixels: ``"batch channel height width"``.
            output: as in :meth:`output`.
            on_call: receives each call of attention and returns its output for the module; None for the call's own.
            tap: receives the tokens between the layers and returns those with which the module continues; or None.

        Raises:
            MethodError: the module does not expose this output.
        """
        if output == "patches":
            raise MethodError(f"{self.name}: a captured module does not expose its final patch tokens")
        is_plain = on_call is None and tap is None and (output == "logits" or not self.config.classes)
        if is_plain:
            result = self.run(pixels)
        else:
            with Interception(on_call or call_output, tap) as interception:
                result = self.run(pixels)
            if output == "features" and self.config.classes:
                projection = interception.projection
                if projection is None or projection[1] is not result:
                    reason = "its output is not that of a linear classifier, whose input would be its features"
                    raise MethodError(f"{self.name}: {reason}")
                result = projection[0]
        if not is_vector(result):
            shape = f"an output of shape {tuple(result.shape)}"
            raise MethodError(f"{self.name}: {shape}, no row of numbers for each image, can be no target")
        return result

    def verified(self, image: torch.Tensor) -> VerifiedCapture:
        """The verified capture for images of this shape; the first one is verified.

        Raises:
            ImageError: the module cannot take an input of this size.
            ConfigError: a number differs.
        """
        size = (image.shape[-2], image.shape[-1])
        key = (size, self.precision, self.device)
        if key not in self._verified:
            grid = self.facts.grid(*size)
            with self.running(image) as inputs:
                self._try(inputs)
                with observation_errors(self.name):
                    verified = self._verify(inputs, grid)
            self._verified[key] = verified
        return self._verified[key]

    @contextmanager
    def running(self, pixels: torch.Tensor, has_gradients: bool = False) -> Iterator[torch.Tensor]:
        """Pixels on the module's device and in its type, outside inference mode: tensors that it caches stay usable."""
        with torch.inference_mode(False), torch.set_grad_enabled(has_gradients):
            copy = pixels.clone() if pixels.is_inference() else pixels
            yield copy.to(self.device, self.precision)

    def run(self, pixels: torch.Tensor) -> torch.Tensor:
        """The module's result for pixels from :meth:`running`."""
        # A copy, since the module may change it in place.
        return primary_output(self.facts.forward(self.module, pixels.clone()))

    def _try(self, pixels: torch.Tensor) -> None:
        """Run the module once without capture, to tell its own errors from those of the capture."""
        output = primary_output(first_output(self.name, self.module, self.facts.forward, pixels))
        classes = self.facts.classes
        if classes and (not is_vector(output) or output.shape[1] != classes):
            shape = f"an output of shape {tuple(output.shape)} for {classes} labels"
            raise ConfigError(f"{self.name}: {shape}; expected 'batch class', one class for each label")

    def _verify(self, pixels: torch.Tensor, grid: Size) -> VerifiedCapture:
        name, prefix = self.facts.name, self.facts.prefix
        is_padded = prefix == (PADDING,)
        try:
            verified = verify_capture(self.run, pixels, grid, 0 if is_padded else len(prefix), self.facts.depth)
            if verified.order.extra == len(prefix):
                reads_cls = verify_cls(self.run, pixels, verified, prefix)
                remarks = (*verified.remarks, *describe_reading(self.run, pixels, verified, reads_cls))
                verified = replace(verified, reads_cls=reads_cls, remarks=remarks)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        if is_padded:
            verified = verified.padded()
        elif verified.is_padded and self._verified:
            size = f"{pixels.shape[-1]}×{pixels.shape[-2]} pixels"
            raise ImageError(f"{name}: windows reach beyond an image of {size}, and not at its own size")
        elif not verified.is_padded and verified.order.extra != len(prefix):
            counts = f"{verified.order.extra} tokens that are no patches ({verified.order.before} before them)"
            names = f"prefix={list(prefix)} names {len(prefix)}"
            raise ConfigError(f"{name}: {counts}, and {names}; expected a name for each, such as prefix=['cls']")
        return verified
