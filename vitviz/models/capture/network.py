"""A module that the user has, as a network: its own forward pass, captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from vitviz.attention.precision import type_of
from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.facts import ModuleConfig, ModuleFacts, Size
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.outputs import first_output, is_vector, primary_output
from vitviz.models.capture.recording import Recording
from vitviz.models.capture.residual import NO_STREAM, ResidualStream, StreamTap, output_of_tokens
from vitviz.models.capture.state import check_asked_device, check_state, device_of, dtype_of
from vitviz.models.capture.verification import VerifiedCapture, verify_capture
from vitviz.models.network import Encoding
from vitviz.models.pooling import Output
from vitviz.progress import Progress

POOLED_BY_ATTENTION, POOLED_BY_ITSELF = "attention", "the module's own"
# The one token for what fills up windows that reach beyond the picture.
PADDING = "padding"


def _own_output(call: AttentionCall) -> torch.Tensor:
    return call.output


class CapturedNetwork:
    """A module of any package whose attention is seen while its own forward pass runs.

    The module stays as it is: its mode, device, gradients, hooks and settings are never touched. Every shape of input
    is verified when it is first met (:func:`vitviz.models.capture.verification.verify_capture`).

    Args:
        module: in evaluation mode.
        facts: about it.

    Raises:
        ConfigError: its attention cannot be seen whole, or a number differs.
    """

    def __init__(self, module: nn.Module, facts: ModuleFacts) -> None:
        self.module = module
        self._facts = facts
        self._verified: dict[tuple[Size, torch.dtype, torch.device], VerifiedCapture] = {}
        check_state(module)
        noise = torch.randn(1, facts.channels, *facts.image_size, generator=torch.Generator().manual_seed(0))
        verified = self.verified(noise)
        if verified.is_padded:
            self._facts = facts = replace(facts, prefix=(PADDING,))
        structure = verified.structure
        pooling = POOLED_BY_ITSELF if structure.pooling is None else POOLED_BY_ATTENTION
        self._config = ModuleConfig(
            facts,
            structure.depth,
            structure.heads,
            structure.head_width,
            structure.heads * structure.head_width,
            pooling,
            sum(parameter.numel() for parameter in module.parameters()),
            structure.heads * structure.depth if verified.has_bias else 0,
            verified.is_written_out,
            verified.stream is not None,
        )

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """The module's output, as :meth:`output` gives it."""
        return self.output(pixels)

    @property
    def name(self) -> str:
        """What messages call the module."""
        return self._facts.name

    @property
    def config(self) -> ModuleConfig:
        """The facts about it."""
        return self._config

    @property
    def device(self) -> torch.device:
        """Where the module's weights are."""
        return device_of(self.module)

    @property
    def precision(self) -> torch.dtype:
        """The type of the module's weights."""
        return dtype_of(self.module)

    def to(self, device: torch.device) -> CapturedNetwork:
        """Itself, if this is the module's own device.

        Raises:
            ConfigError: it is another.
        """
        check_asked_device(self.module, device)
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
        storage: str | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """Logits, and the queries and keys of the same forward pass, one image after the other.

        Arguments as those of :meth:`vitviz.VisionTransformer.encode`. Logits have no columns where the module does not
        classify.

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
            with self.running(image) as own:
                with Interception(recording, recording.tap):
                    output = self._run(own)
                traces.append(recording.trace(keep_bytes))
            logits.append(output if self.config.classes else output.new_zeros(1, 0))
        return Encoding(torch.cat(logits).float(), tuple(traces))

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """What the module gives of images.

        Args:
            pixels: ``"batch channel height width"``, normalised as the module was trained.
            output: ``"logits"`` for its output ``"batch class"``, which are features where it does not classify;
                ``"features"`` for what its classifier reads, ``"batch feature"``.

        Raises:
            MethodError: the module does not say this of itself.
        """
        check_state(self.module)
        with self.running(pixels, torch.is_grad_enabled()) as own:
            return self.output_of(own, output, None)

    def returned(self, pixels: torch.Tensor) -> torch.Tensor:
        """What the module returns of images: logits, features, or the tokens where it gives nothing else."""
        check_state(self.module)
        with self.running(pixels) as own:
            return self._run(own)

    def stream(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        """The tokens of one image before the first layer and after each one, each ``"1 token width"``, those that are
        no patches first, as :meth:`vitviz.VisionTransformer.stream`.

        Raises:
            MethodError: the module's layers do not add to their tokens, or in a way that is not seen.
        """
        check_state(self.module)
        verified = self.verified(pixels)
        found: list[torch.Tensor] = []

        def keep(step: int, tokens: torch.Tensor) -> torch.Tensor:
            # A copy: the module may go on in place.
            found.append(verified.order.sort(tokens.detach().clone(), 1))
            return tokens

        with self.running(pixels) as own, Interception(_own_output, StreamTap(self.known_stream(verified), keep)):
            self._run(own)
        return found

    def read(self, tokens: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        """What the module gives of tokens as if they were those after its last layer, ``"batch class"``.

        Args:
            tokens: ``"batch token width"``, as :meth:`stream` gives them.
            pixels: of any image of their size.

        Raises:
            MethodError: as :meth:`stream`.
        """
        check_state(self.module)
        verified = self.verified(pixels)
        stream, own_order = self.known_stream(verified), verified.order.unsort(tokens, 1)
        with self.running(pixels) as own:
            return output_of_tokens(self._run, own, stream, own_order)

    def known_stream(self, verified: VerifiedCapture) -> ResidualStream:
        """Where the tokens between its layers are.

        Raises:
            MethodError: they cannot be read.
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
        """:meth:`output` of pixels as :meth:`running` gives them, with what a function makes of the attention.

        Args:
            pixels: ``"batch channel height width"``.
            output: as :meth:`output` takes it.
            on_call: receives each call of attention and returns what the module gets; None where it gets its own.
            tap: receives the tokens between the layers, and says what the module goes on with; None for nothing.

        Raises:
            MethodError: the module does not say this of itself.
        """
        if output == "patches":
            raise MethodError(f"{self.name}: a captured module does not say which tokens are its final ones")
        is_plain = on_call is None and tap is None and (output == "logits" or not self.config.classes)
        if is_plain:
            found = self._run(pixels)
        else:
            with Interception(on_call or _own_output, tap) as seen:
                found = self._run(pixels)
            if output == "features" and self.config.classes:
                if seen.projection is None or seen.projection[1] is not found:
                    linear = "its output is not that of a linear classifier, whose input would be its features"
                    raise MethodError(f"{self.name}: {linear}")
                found = seen.projection[0]
        if not is_vector(found):
            shape = f"an output of shape {tuple(found.shape)}"
            raise MethodError(f"{self.name}: {shape}, no row of numbers for each image, can be no target")
        return found

    def verified(self, image: torch.Tensor) -> VerifiedCapture:
        """What a capture of an image of this shape is, verified when it is first met.

        Raises:
            ImageError: the module cannot take an input of this size.
            ConfigError: a number differs.
        """
        size = (image.shape[-2], image.shape[-1])
        key = (size, self.precision, self.device)
        if key not in self._verified:
            grid = self._facts.grid(*size)
            with self.running(image) as own:
                self._try(own)
                verified = self._verify(own, grid)
            self._verified[key] = verified
        return self._verified[key]

    @contextmanager
    def running(self, pixels: torch.Tensor, has_gradients: bool = False) -> Iterator[torch.Tensor]:
        """Pixels as the module takes them, outside inference mode: what it keeps of a forward pass stays usable."""
        with torch.inference_mode(False), torch.set_grad_enabled(has_gradients):
            own = pixels.clone() if pixels.is_inference() else pixels
            yield own.to(self.device, self.precision)

    def _run(self, pixels: torch.Tensor) -> torch.Tensor:
        return primary_output(self._facts.forward(self.module, pixels))

    def _try(self, pixels: torch.Tensor) -> None:
        """Run the module once without capture, so that an error of its own is known as such."""
        output = primary_output(first_output(self.name, self.module, self._facts.forward, pixels))
        classes = self._facts.classes
        if classes and (not is_vector(output) or output.shape[1] != classes):
            shape = f"an output of shape {tuple(output.shape)} for {classes} labels"
            raise ConfigError(f"{self.name}: {shape}; expected 'batch class', one class for each label")

    def _verify(self, pixels: torch.Tensor, grid: Size) -> VerifiedCapture:
        name, prefix = self._facts.name, self._facts.prefix
        is_padded = prefix == (PADDING,)
        try:
            verified = verify_capture(self._run, pixels, grid, 0 if is_padded else len(prefix), self._facts.depth)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        if is_padded:
            verified = verified.padded()
        elif verified.is_padded and self._verified:
            size = f"{pixels.shape[-1]}×{pixels.shape[-2]} pixels"
            raise ImageError(f"{name}: windows reach beyond an image of {size}, and not at its own size")
        elif not verified.is_padded and verified.order.extra != len(prefix):
            found = f"{verified.order.extra} tokens that are no patches ({verified.order.before} before them)"
            names = f"prefix={list(prefix)} names {len(prefix)}"
            raise ConfigError(f"{name}: {found}, and {names}; expected a name for each, such as prefix=['cls']")
        return verified
