"""The user's module as a network: its own forward pass, watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias

import torch
from torch import nn

from vitviz.attention.layout import TokenLayout, prefix_names
from vitviz.attention.precision import Precision, type_of
from vitviz.attention.trace import AttentionTrace
from vitviz.caching import cached_property
from vitviz.errors.kinds import ConfigError, ImageError, MethodError, VitvizError
from vitviz.models.network import Encoding
from vitviz.models.pooling import Output
from vitviz.models.watched.cls_reading import verify_reading
from vitviz.models.watched.copying import watched_copy
from vitviz.models.watched.module_config import ModuleConfig, Size
from vitviz.models.watched.module_state import check_device, check_state, device_of, dtype_of
from vitviz.models.watched.outputs import Forward, first_output, is_vector, observation_errors, primary_output
from vitviz.models.watched.program_gradients import (
    watched_attention_gradients,
    watched_features,
    watched_gradients,
    watched_layer_gradients,
)
from vitviz.models.watched.program_outputs import replayed, replayed_from, require_stream, vector
from vitviz.models.watched.recorder import ORDER, ChangedPass, follow
from vitviz.models.watched.recording import watch
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.several import verify_several
from vitviz.models.watched.switching import watched_head_scores, watched_without
from vitviz.models.watched.values import watched_values
from vitviz.models.watched.verification import VerifiedModule, verify_module
from vitviz.progress import Progress

ATTENTION_POOLING, UNKNOWN_POOLING = "attention", "the module's own"
_Key: TypeAlias = tuple[Size, torch.dtype, torch.device]
# The fewest images that are run together.
MIN_SEVERAL = 4
# Name of the one token that stands for all padding of windows that reach beyond the picture.
PADDING = "padding"


class WatchedNetwork:
    """A module of any package whose attention is watched during its own forward pass.

    The module is never changed: not its mode, device, gradients, hooks or settings. At its first use, each input shape
    is recorded as a program and verified (:func:`vitviz.models.watched.verification.verify_module`); each picture is
    the module's own pass, held to that program.

    Args:
        module: in evaluation mode.
        name: of the module in messages.
        forward: calls the module with pixels ``"batch channel height width"`` and returns its result.
        config: its properties, as far as they are known before it is verified.
        replay: of :meth:`noise`.

    Raises:
        ConfigError: its attention cannot be observed completely, or a number differs.
    """

    with_gradients = watched_gradients
    layer_gradients = watched_layer_gradients
    layer_features = watched_features
    attention_gradients = watched_attention_gradients
    without = watched_without
    head_scores = watched_head_scores
    copy_in_parts = watched_copy
    values = watched_values

    def __init__(self, module: nn.Module, name: str, forward: Forward, config: ModuleConfig, replay: Replay) -> None:
        self.module, self.name, self.forward, self.config = module, name, forward, config
        self._verified: dict[_Key, VerifiedModule] = {}
        self._several: dict[_Key, VerifiedModule | None] = {}
        self._last: tuple[Any, VerifiedModule] | None = None
        """Of modules that may take several ways through their code, the last picture and the module verified for it."""
        noise = self.noise()
        with self.running(noise) as inputs:
            verified = self._verified[self._key(noise)] = self._verify(inputs, replay)
        self.config = replace(
            config,
            prefix=(PADDING,) if verified.is_padded else config.prefix,
            depth=len(verified.calls),
            heads=verified.heads,
            head_width=verified.head_width,
            width=verified.width,
            pooling=UNKNOWN_POOLING if verified.pooling_call is None else ATTENTION_POOLING,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            bias_matrices=len(verified.calls) * verified.heads if verified.has_bias else 0,
            is_written_out=verified.replay.is_written_out,
            has_stream=verified.stream is not None,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Operators of torch cannot be pickled: the module is verified again where it is used.
        return {**self.__dict__, "_verified": {}, "_several": {}, "_last": None}

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

    def to(self, device: torch.device) -> WatchedNetwork:
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
        """Logits, and the queries and keys of the same forward pass.

        Arguments as in :meth:`vitviz.VisionTransformer.encode`. Logits have no columns if the module does not classify.
        A module that takes one image, or in which images change each other, runs for one after the other.

        Raises:
            ImageError: the module cannot take an input of this size.
            ConfigError: the storage is no precision, the module's state has changed, or a number differs.
        """
        options = (None if storage is None else type_of(storage, "storage"), keep_bytes, report)
        found: list[tuple[torch.Tensor, AttentionTrace]] = []
        if (several := self._of_several(pixels)) is not None:
            with suppress(ChangedPass):
                found = self._watch(several, pixels, *options)
        for image in () if found else pixels.split(1):
            try:
                found += self._watch(self.verified(image), image, *options)
            except ChangedPass as change:
                with observation_errors(self.name):
                    found += self._watch(self._verify_otherwise(image, str(change)), image, *options)
        outputs, traces = zip(*found, strict=True)
        logits = torch.cat(outputs).float()
        return Encoding(logits if self.config.classes else logits.new_zeros(len(pixels), 0), traces)

    def _watch(self, verified: VerifiedModule, images: torch.Tensor, *options: Any) -> list[Any]:
        """As :func:`watch`."""
        with self.running(images) as inputs:
            return watch(verified, self.run, inputs, self.config.layout(*images.shape[-2:]), *options)

    def _of_several(self, images: torch.Tensor) -> VerifiedModule | None:
        """The module for any number of images of this size; None if it takes one, or they change each other."""
        # A proof takes as long as some images. Images and tokens of one number could not be told apart.
        if len(images) < MIN_SEVERAL or len(images) == len((alone := self.verified(images[:1])).places[0].index):
            return None
        if (key := self._key(images)) not in self._several:
            noise, layout = self.noise(key[0]), self.config.layout(*key[0])
            # Of other statistics.
            both = torch.cat([noise, 1 - 2 * noise.flip(-1, -2)])
            with self.running(both) as inputs, suppress(VitvizError), observation_errors(self.name):
                self._several[key] = None
                # The module may raise anything.
                self._several[key] = verify_several(alone, self.run, inputs, layout)
        return self._several[key]

    def _verify_otherwise(self, image: torch.Tensor, change: str) -> VerifiedModule:
        """The module, verified on an image for which it runs other operations than for noise.

        Raises:
            ConfigError: it takes the image's tokens in another order, or attends otherwise.
        """
        if ORDER in change:
            raise ConfigError(
                f"{self.name}: this picture's tokens are taken in another order than those of noise, on which it was "
                "verified, or by other choices, such as of experts: no map could say where they are"
            )
        with self.running(image) as inputs:
            verified = self._verify(inputs)
        if (len(verified.calls), verified.heads) != (self.config.depth, self.config.heads):
            raise ConfigError(
                f"{self.name}: {len(verified.calls)} layers of {verified.heads} heads; when it was verified, this "
                f"module had {self.config.depth} of {self.config.heads}"
            )
        self._last = self._picture(image), verified
        return verified

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """The module's output for images.

        Args:
            pixels: ``"batch channel height width"``, normalised as the module was trained.
            output: ``"logits"`` for its output ``"batch class"``, or features if it does not classify; ``"features"``
                for the input of its classifier, ``"batch feature"``.

        Raises:
            MethodError: the module does not expose this output.
        """
        with self.running(pixels, torch.is_grad_enabled()) as inputs:
            images = inputs.split(1)
            if output == "logits" or not self.config.classes:
                parts = images if self._of_several(pixels) is None else [inputs]
                return torch.cat([vector(self.name, self.run(part), output) for part in parts])
            return torch.cat([replayed(self, self.verified(image), image, output) for image in images])

    def stream(self, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
        """The tokens of one image before the first layer and after each one, each ``"1 token width"``, from one pass.

        As in :meth:`vitviz.VisionTransformer.stream`, tokens that are not patches come first.

        Raises:
            MethodError: the module has no residual stream, or none that can be observed.
        """
        verified = self.verified(pixels)
        with self.running(pixels) as inputs:
            found = require_stream(self.name, verified).tokens_of(verified.replay, inputs)
            return iter([verified.sort(tokens, 1) for tokens in found])

    def read(self, tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """The module's output ``"batch class"`` for tokens that replace those after its last layer.

        Args:
            tokens: ``"batch token width"``, as :meth:`stream` returns them.
            layout: their order.

        Raises:
            MethodError: as :meth:`stream`.
        """
        config = self.config
        # Of no consequence, since all that the output reads is replaced.
        pixels = self.noise((layout.grid_height * config.patch_height, layout.grid_width * config.patch_width))
        verified = self.verified(pixels)
        rows = verified.unsort(tokens, 1).to(self.device, self.precision).split(1)
        with self.running(pixels):
            return torch.cat([replayed_from(self, verified, row, "logits") for row in rows])

    def use(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Use other tensors in place of the module's own, by their ``id``: those of a copy of the module."""
        self._verified = {
            key: replace(each, replay=replace(each.replay, program=each.replay.program.with_constants(tensors)))
            for key, each in self._verified.items()
        }
        self._several, self._last = {}, None

    def noise(self, size: Size | None = None) -> torch.Tensor:
        """An image of noise of this height and width, by default its own; the same at every call."""
        height, width = size or (self.config.image_height, self.config.image_width)
        return torch.randn(1, self.config.channels, height, width, generator=torch.Generator().manual_seed(0))

    @cached_property
    def why_no_hiding(self) -> str | None:
        """Why :meth:`without` cannot leave patches out, tried on noise of its own size; None if it can."""
        try:
            self.without(self.noise(), patches=[{0}])
        except MethodError as error:
            return str(error)
        return None

    def classify_each(self, tokens: torch.Tensor) -> NoReturn:
        """Refused: the module classifies all tokens together."""
        raise MethodError(f"{self.name}: a watched module does not classify single tokens")

    def _key(self, image: torch.Tensor) -> _Key:
        return (image.shape[-2], image.shape[-1]), self.precision, self.device

    def _picture(self, image: torch.Tensor) -> tuple[_Key, int]:
        return self._key(image), hash(image.detach().cpu().float().numpy().tobytes())

    def verified(self, image: torch.Tensor) -> VerifiedModule:
        """The verified module for an image: for noise of its shape, or itself if it takes another way through the code.

        Raises:
            ImageError: the module cannot take an input of this size.
            ConfigError: a number differs.
        """
        key = self._key(image)
        if key not in self._verified:
            with self.running(self.noise(key[0])) as inputs:
                # Alone, to tell the module's own errors from those of watching it.
                first_output(self.name, self.module, self.forward, inputs.clone())
                self._verified[key] = self._verify(inputs)
        verified, last = self._verified[key], self._last
        if last is None and not verified.replay.program.has_conditions:
            return verified
        if last is not None and last[0] == self._picture(image):
            return last[1]
        try:
            with self.running(image) as inputs:
                follow(self.run, inputs, verified.replay.program, {})
        except ChangedPass as change:
            return self._verify_otherwise(image, str(change))
        self._last = self._picture(image), verified
        return verified

    @contextmanager
    def running(self, pixels: torch.Tensor, has_gradients: bool = False) -> Iterator[torch.Tensor]:
        """Pixels on the module's device and in its type, outside inference mode: tensors that it caches stay usable.

        Raises:
            ConfigError: the module's state has changed, such as to training mode.
        """
        check_state(self.module)
        with torch.inference_mode(False), torch.set_grad_enabled(has_gradients):
            copy = pixels.clone() if pixels.is_inference() else pixels
            yield copy.to(self.device, self.precision)

    def run(self, pixels: torch.Tensor) -> torch.Tensor:
        """The module's result for pixels from :meth:`running`."""
        # A copy, since the module may change it in place.
        return primary_output(self.forward(self.module, pixels.clone()))

    def _verify(self, pixels: torch.Tensor, replay: Replay | None = None) -> VerifiedModule:
        name, classes, prefix = self.name, self.config.classes, self.config.prefix
        layout, is_padded = self.config.layout(*pixels.shape[-2:]), prefix == (PADDING,)
        with observation_errors(name):
            replay = replay or Replay.of(self.run, pixels).checked(pixels)
            output = replay.output
            if classes and (not is_vector(output) or output.shape[1] != classes):
                raise ConfigError(
                    f"an output of shape {tuple(output.shape)} for {classes} labels; expected 'batch class', one class "
                    "for each label, which forward=lambda module, pixels: … may make of it"
                )
            grid, extra = (layout.grid_height, layout.grid_width), 0 if is_padded else len(prefix)
            verified = verify_module(self.run, replay, pixels, grid, extra)
            if verified.extra == len(prefix):
                reads_cls, remarks = verify_reading(pixels, verified, prefix)
                verified = replace(verified, reads_cls=reads_cls, remarks=(*verified.remarks, *remarks))
        if is_padded:
            verified = verified.padded()
        elif verified.is_padded and self._verified:
            raise ImageError(
                f"{name}: windows reach beyond an image of {pixels.shape[-1]}×{pixels.shape[-2]} pixels, and not at "
                "its own size"
            )
        elif not verified.is_padded and verified.extra != len(prefix):
            raise ConfigError(
                f"{name}: {verified.extra} tokens that are no patches "
                f"({int(verified.places[0].index[-1]) + 1 - layout.patch_count} before them), and "
                f"prefix={list(prefix)} names {len(prefix)}; expected a name for each, such as "
                f"prefix={list(prefix_names(verified.extra))}"
            )
        return verified
