"""Verifies that a capture is what the module computed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import several
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.codes import decode_places
from vitviz.models.capture.eager_attention import Origin, SoftmaxDisturbance
from vitviz.models.capture.grids import is_one_grid
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.places import TokenOrder, TokenPlaces
from vitviz.models.capture.residual import ResidualStream, call_output, find_stream
from vitviz.models.capture.sequence import verify_sequence
from vitviz.models.capture.structure import CallShape

Run = Callable[[torch.Tensor], torch.Tensor]
"""A forward pass: pixels of one image, ``"1 channel height width"``, to the module's output."""

TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""The most by which attention may differ in each type, relative to the larger of 1 and its largest number."""
# torch has a separate kernel for torch.nn.MultiheadAttention, which differs in the last bits.
KERNEL_TOLERANCE = 1e-5
# Passes of a module that draws random numbers: a chance of 0.1 is missed once in 800 times.
RANDOM_PASSES = 64


@dataclass
class _Check:
    """Compares each call with its output, and records its shape and parts."""

    shapes: list[CallShape] = field(default_factory=list)
    parts: list[tuple[int, ...]] = field(default_factory=list)
    has_bias: bool = False

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number = call.number
        self.has_bias |= call.bias is not None
        expected = precise(call.output)
        difference = float((precise(call.to_output(call.context().to(call.values))) - expected).abs().max())
        bound = TOLERANCES.get(call.output.dtype, 1e-5) * max(1.0, float(expected.abs().max()))
        # The negated comparison refuses NaN, too.
        if not difference <= bound:
            raise ConfigError(
                f"attention of layer {number}: softmax(queries · keys · {call.scale:.4g} + bias) · values differs from "
                f"what the module computed by {difference:.2g}; expected at most {bound:.1g}"
            )
        self.shapes.append(CallShape.of(call))
        self.parts.append(call.parts)
        return call.output

    def all_parts(self, number: int) -> tuple[int, ...]:
        """Numbers of the calls whose heads a call joins."""
        own = self.parts[number]
        return own + tuple(part for each in own for part in self.all_parts(each))

    @property
    def numbers(self) -> list[int]:
        """Numbers of the calls that are no part of another one."""
        joined = {part for parts in self.parts for part in parts}
        return [number for number in range(len(self.shapes)) if number not in joined]


@dataclass(frozen=True)
class VerifiedCapture:
    """The verified properties of a module for one input shape.

    Args:
        heads, head_width: sizes of every layer.
        order: order of its patches among its tokens.
        has_bias: whether a layer adds a bias to its scores, or attends inside windows.
        is_written_out: whether the module computes whole matrices of attention weights.
        shapes: shapes of all calls.
        calls: number of each layer's call among all calls.
        pooling_call: number of the call after the layers in which one query reads the tokens; None for no pooling.
        others: numbers of the calls that are neither layers, nor parts of them, nor the pooling.
        places: places of the tokens in every layer.
        stream: the residual stream; None if unknown.
        mixed_from: number of the first call whose tokens other operations have mixed, too; None for no such call.
        unfollowed: products of as many queries as keys that did not become a call, in words.
        reads_cls: whether the output reads the token with the name ``"cls"``, and no other.
        remarks: what a user must know about its layers and its output, in words.
        indices: hashes of the numbers by which tokens were taken in an order.
    """

    heads: int
    head_width: int
    order: TokenOrder
    has_bias: bool
    is_written_out: bool
    shapes: tuple[CallShape, ...]
    calls: tuple[int, ...]
    pooling_call: int | None
    others: tuple[int, ...]
    places: tuple[TokenPlaces, ...]
    stream: ResidualStream | None = None
    mixed_from: int | None = None
    unfollowed: tuple[str, ...] = ()
    reads_cls: bool = False
    remarks: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of the module's tokens in every layer."""
        return self.order.extra + self.order.patches

    @property
    def windows(self) -> tuple[int, ...]:
        """The number of windows in every layer."""
        return tuple(places.windows for places in self.places)

    @property
    def is_padded(self) -> bool:
        """Whether windows reach beyond the picture, so that the layout begins with a token that stands for padding."""
        return any(places.is_padded for places in self.places)

    @property
    def extra(self) -> int:
        """Number of tokens of the layout that are not patches."""
        return self.order.extra + self.is_padded

    def padded(self) -> VerifiedCapture:
        """The same with a token that stands for padding, which may occur only at another size."""
        return replace(self, places=tuple(replace(places, is_padded=True) for places in self.places), has_bias=True)

    @property
    def is_global(self) -> bool:
        """Whether every call is a layer or the pooling, and attends globally to tokens in reading order."""
        return not self.others and all(places.is_in(self.order) for places in self.places)

    def layer_of(self, call: int) -> int | None:
        """The layer of a call, by its number in the forward pass; None if it is not a layer."""
        return self.calls.index(call) if call in self.calls else None

    def is_pooling(self, call: int) -> bool:
        """Whether a call is the pooling after the layers."""
        return call == self.pooling_call

    def describe_others(self, listed: Collection[int]) -> str:
        """The calls of attention that are neither layers nor pooling, in words; empty for none.

        Args:
            listed: numbers of tokens whose layers need no word.
        """
        own = {*self.calls, *self.others, *(() if self.pooling_call is None else (self.pooling_call,))}
        all_calls, kinds = sorted(own), dict[str, list[str]]()
        for call in self.others:
            shape, place = self.shapes[call], str(all_calls.index(call))
            is_self_attention = shape.queries == shape.keys
            if is_self_attention and self.tokens in shape.token_counts:
                kinds.setdefault("of this grid, whose tokens could not be distinguished", []).append(place)
            elif not is_self_attention or shape.token_counts.isdisjoint(listed):
                kinds.setdefault(f"among {shape.tokens}", []).append(place)
        parts = [f"{several(places, 6)} {kind}" for kind, places in kinds.items()]
        count = sum(map(len, kinds.values()))
        names = f"not shown: {count} of {len(all_calls)} calls of attention, counted from 0: {'; '.join(parts)}"
        return names if parts else ""

    def describe_pooling(self, prefix: Collection[str]) -> str:
        """Which call is the pooling though the layers have a CLS token, in words; empty for none."""
        if self.pooling_call is None or "cls" not in prefix:
            return ""
        number = len(self.calls) + sum(call < self.pooling_call for call in self.others)
        one = f"call {number} of attention, counted from 0, has one query: it is shown as pooling attention"
        return f"{one}, and rollout and relevance of the CLS token end below it"

    def describe_unseen(self) -> str:
        """What mixes tokens beside the calls of attention, in words; empty for nothing."""
        parts = [*self.unfollowed]
        if self.mixed_from is not None:
            before = "an attention that cannot be observed"
            parts.append(f"before call {self.mixed_from}, other operations mix tokens, such as {before}")
        return f"not shown: {'; '.join(parts)}" if parts else ""


def verify_capture(
    run: Run, pixels: torch.Tensor, grid: tuple[int, int], extra: int, stated_depth: int | None = None
) -> VerifiedCapture:
    """Verify a capture by running the module plainly, captured, and captured with some patches changed.

    Args:
        run: the module's forward pass.
        pixels: ``"1 channel height width"``.
        grid: expected rows and columns of patches.
        extra: number of the module's tokens that are not patches.
        stated_depth: number of layers that the module states; None if it states none.

    Raises:
        ConfigError: no attention is observed, it is not that of a grid of patches, or a number differs.
    """
    before = _random_states(pixels.device)
    plain, check = run(pixels), _Check()
    if _random_states(pixels.device) != before:
        # What it draws may seldom matter, such as a picture that is flipped by chance.
        for _ in range(RANDOM_PASSES):
            _check_output(plain, run(pixels))
    with Interception(check) as interception:
        captured = run(pixels)
    tracer = interception.eager_attention
    # Weights that are computed for a look at them only are no attention of the module.
    unused = tracer.unused if _have_effect(run, pixels, captured, tracer.unused) else []
    lost_origins = [each for each in tracer.lost if each in unused or not each.softmaxes]
    unfollowed = tuple(f"layer {each.layer}: {each.operation} of its scores or weights" for each in lost_origins[:3])
    lost = "".join(f"; {each}" for each in unfollowed)
    if unused:
        reason = f"{len(unused)} softmaxes whose scores or weights it modifies with operations that vitviz does"
        raise ConfigError(f"attention of {interception.layers} layers was seen, and {reason} not support{lost}")
    if tracer.reused:
        raise ConfigError(
            f"layer {tracer.reused[0]}: its attention weights make another product beside the one with its values, "
            "such as with positions or keys; expected one, which gradients and switched-off heads are about"
        )
    if not check.shapes:
        raise ConfigError(f"no attention was seen: the module has none, or a kernel or a sink that is not read{lost}")
    _check_output(plain, captured)
    try:
        verified = _verify_calls(run, pixels, grid, extra, stated_depth, check, tracer.calls > 0)
    except ConfigError as error:
        raise ConfigError(f"{error}{lost}") from None
    verified = replace(verified, unfollowed=unfollowed, indices=tuple(interception.indices))
    if not verified.is_global:
        return verified
    is_stated = stated_depth is not None
    stream, remarks = find_stream(run, pixels, verified.tokens, verified.calls, is_stated)
    return replace(verified, stream=stream, remarks=remarks)


def _have_effect(run: Run, pixels: torch.Tensor, output: torch.Tensor, origins: list[Origin]) -> bool:
    """Whether the module's output changes with the results of these softmaxes."""
    targets = {number for origin in origins for number in origin.softmaxes}
    if not targets:
        return False
    with Interception(call_output, SoftmaxDisturbance(targets)):
        try:
            return not torch.equal(run(pixels), output)
        # A module may look for NaN.
        except Exception:
            return True


def _verify_calls(
    run: Run,
    pixels: torch.Tensor,
    grid: tuple[int, int],
    extra: int,
    stated_depth: int | None,
    check: _Check,
    is_written_out: bool,
) -> VerifiedCapture:
    """The capture of layers that follow one another, with the tokens of the first one or else those of each."""
    shapes, count = {number: check.shapes[number] for number in check.numbers}, grid[0] * grid[1]
    layers = [number for number, shape in shapes.items() if shape.queries > 1]
    is_single = is_one_grid(list(shapes.values()))
    if is_single and stated_depth not in (None, len(layers)):
        more = "some layers attend more than once, or others follow them, such as a decoder's"
        fewer = "some use another kernel, or num_hidden_layers counts parts without attention"
        reason = fewer if len(layers) < (stated_depth or 0) else more
        raise ConfigError(f"{len(layers)} calls of attention were seen for {stated_depth} layers: {reason}")
    kinds = several(list(dict.fromkeys(shape.tokens for shape in shapes.values())), 6)
    reason = f"attention among {kinds}: in no layer do they match the {grid[0]}×{grid[1]} patches one to one"
    if is_single and layers:
        first = shapes[layers[0]]
        if first.keys > first.queries >= count:
            reason += f"; there are {first.keys - first.queries} more keys than tokens, which no map could show"
        if first.queries < count:
            few = f"fewer than the {count} patches of the picture; expected a token for each"
            raise ConfigError(f"attention among {kinds}: {few}")
        shared = decode_places(run, pixels, grid, {layers[0]: first}, first.queries - count)
        try:
            # Other tokens between the patches may pad a window.
            if shared and shared[layers[0]].is_in(TokenOrder.of(shared[layers[0]], count)):
                places = dict.fromkeys(layers, shared[layers[0]])
                return _verify_places(run, pixels, grid, places, check, is_written_out)
        except ConfigError as error:
            reason = str(error)
    places = {}
    for prefix_count in dict.fromkeys((extra, 0)):
        places = places or decode_places(run, pixels, grid, shapes, prefix_count)
    if not places or (is_single and not places.keys() >= set(layers)):
        raise ConfigError(reason)
    return _verify_places(run, pixels, grid, places, check, is_written_out)


def _verify_places(
    run: Run,
    pixels: torch.Tensor,
    grid: tuple[int, int],
    places: Mapping[int, TokenPlaces],
    check: _Check,
    is_written_out: bool,
) -> VerifiedCapture:
    """The capture of layers whose tokens have these places, after a check that they follow one another."""
    numbers, count = check.numbers, grid[0] * grid[1]
    first, last = min(places), max(places)
    calls = tuple(number for number in numbers if first <= number <= last)
    between = [check.shapes[call].tokens for call in calls if call not in places]
    patches = f"{len(places)} layers attend among the {grid[0]}×{grid[1]} patches"
    if between:
        number = f"{len(between)} call{'s' if len(between) > 1 else ''} between them do{'es' * (len(between) == 1)} not"
        reasons = "padded windows, coarser keys or attention between channels"
        raise ConfigError(f"{patches}, but {number}, such as {between[0]}: {reasons}")
    sizes = list(dict.fromkeys(check.shapes[call].sizes(places[call].has_heads_first) for call in calls))
    if len(sizes) > 1:
        kinds = " and ".join(f"{heads} heads of {dim} features" for heads, dim in sizes)
        raise ConfigError(
            f"{patches}, with {kinds}; expected the same in every layer, such as with zeros in place of pruned heads"
        )
    order = TokenOrder.of(places[first], count)
    rest = [number for number in numbers if number > last]
    pooling_call = rest[0] if len(rest) == 1 and check.shapes[rest[0]].pools(order.extra + count, count) else None
    layer_places = tuple(places[call] for call in calls)
    if pooling_call is not None and not all(place.is_in(order) for place in layer_places):
        raise ConfigError(
            f"{patches}, but in windows or reordered: a pooling over these is not supported; forward=… may end below it"
        )
    has_bias = check.has_bias or any(place.windows > 1 for place in layer_places)
    others = tuple(number for number in numbers if number not in (*calls, pooling_call))
    shapes, parts = tuple(check.shapes), [check.all_parts(call) for call in calls]
    mixed_from = verify_sequence(run, pixels, calls, parts, others, layer_places, order.extra)
    verified = VerifiedCapture(
        *(*sizes[0], order, has_bias, is_written_out, shapes, calls, pooling_call, others, layer_places),
        mixed_from=mixed_from,
    )
    return verified.padded() if any(len(place.pads) for place in layer_places) else verified


def _random_states(device: torch.device) -> tuple[Any, ...]:
    """The states of the random numbers that a module may draw."""
    on_device = torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else b""
    numpy_state = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), on_device, random.getstate(), repr(numpy_state)


def _check_output(plain: torch.Tensor, captured: torch.Tensor) -> None:
    if plain.shape == captured.shape and torch.equal(plain, captured):
        return
    difference = float((precise(plain) - precise(captured)).abs().max()) if plain.shape == captured.shape else torch.inf
    bound = TOLERANCES.get(plain.dtype, KERNEL_TOLERANCE) * max(1.0, float(precise(plain).abs().max()))
    if not difference <= bound:
        raise ConfigError(
            f"two forward passes on one image differ by {difference:.2g}: expected a module without randomness"
        )
