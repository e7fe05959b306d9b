"""Verifies that what is shown of a module is what it computed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import several
from vitviz.models.watched.codes import decode_places
from vitviz.models.watched.grids import is_one_grid
from vitviz.models.watched.recorder import Run
from vitviz.models.watched.replay import Replay, check_output
from vitviz.models.watched.sequence import verify_sequence
from vitviz.models.watched.stream import ResidualStream, find_stream
from vitviz.models.watched.token_places import TokenPlaces

# Passes of a module that draws random numbers: a chance of 0.1 is missed once in 800 times.
RANDOM_PASSES = 64


@dataclass(frozen=True)
class VerifiedModule:
    """The verified properties of a module for one input shape.

    Args:
        replay: its program.
        heads, head_width: sizes of every layer.
        extra: number of its tokens that are not patches.
        has_bias: whether a layer adds a bias to its scores, or attends inside windows.
        calls: number of each layer's call among all calls.
        pooling_call: number of the call after the layers in which one query reads the tokens; None for no pooling.
        others: numbers of the calls that are neither layers, nor parts of them, nor the pooling.
        places: places of the tokens in every layer.
        stream: the residual stream; None if unknown.
        mixed_from: number of the first call whose tokens other operations have mixed, too; None for no such call.
        reads_cls: whether the output reads the token with the name ``"cls"``, and no other.
        remarks: what a user must know about its layers and its output, in words.
    """

    replay: Replay
    heads: int
    head_width: int
    extra: int
    has_bias: bool
    calls: tuple[int, ...]
    pooling_call: int | None
    others: tuple[int, ...]
    places: tuple[TokenPlaces, ...]
    stream: ResidualStream | None = None
    mixed_from: int | None = None
    reads_cls: bool = False
    remarks: tuple[str, ...] = ()

    def sort(self, tokens: torch.Tensor, dim: int) -> torch.Tensor:
        """The module's tokens in the order of a :class:`vitviz.TokenLayout`: those that are not patches first."""
        return tokens.index_select(dim, self.places[0].index.to(tokens.device))

    def unsort(self, tokens: torch.Tensor, dim: int) -> torch.Tensor:
        """Tokens of a layout in the order of the module, the inverse of :meth:`sort`."""
        return tokens.index_select(dim, self.places[0].index.argsort().to(tokens.device))

    def sort_read(self, tokens: torch.Tensor) -> torch.Tensor:
        """``"head token"`` of what a pooling reads, sorted; with zeros before the patches if it reads them alone."""
        is_of_patches = tokens.shape[-1] < len(self.places[0].index)
        return F.pad(tokens, (self.extra, 0)) if is_of_patches else self.sort(tokens, 1)

    @property
    def width(self) -> int:
        """Features of a token: those of the stream, or of all heads together if there is none."""
        shape = self.stream and self.replay.program.steps[self.stream.start].shape
        return shape[-1] if shape else self.heads * self.head_width

    @property
    def is_padded(self) -> bool:
        """Whether windows reach beyond the picture, so that the layout begins with a token that stands for padding."""
        return any(places.is_padded for places in self.places)

    def padded(self) -> VerifiedModule:
        """The same with a token that stands for padding, which may occur only at another size."""
        return replace(self, places=tuple(replace(places, is_padded=True) for places in self.places), has_bias=True)

    @property
    def is_in_order(self) -> bool:
        """Whether every layer attends globally to the same tokens in reading order."""
        first = self.places[0].index
        are_alike = all(each.windows == 1 and torch.equal(each.index, first) for each in self.places)
        return are_alike and not self.is_padded and bool((first[self.extra :].diff() == 1).all())

    @property
    def is_global(self) -> bool:
        """Whether every call is a layer or the pooling, and attends globally to tokens in reading order."""
        return not self.others and self.is_in_order

    def layer_of(self, call: int) -> int | None:
        """The layer of a call, by its number in the forward pass; None if it is not a layer."""
        return self.calls.index(call) if call in self.calls else None

    def describe(self, listed: Collection[int], prefix: Collection[str]) -> list[str]:
        """What a user must know, in words: calls that are not shown, the pooling, what mixes tokens, and the remarks.

        Args:
            listed: numbers of tokens whose layers need no word.
            prefix: names of the tokens that are not patches.
        """
        kinds, found = dict[str, list[str]](), list[str]()
        for call in self.others:
            shape = self.replay.shapes[call]
            if shape.queries != shape.keys or shape.windows * shape.queries not in listed:
                kinds.setdefault(f"among {shape.tokens}", []).append(str(call))
        if kinds:
            count = f"{sum(map(len, kinds.values()))} of {len(self.replay.shapes)} calls of attention, counted from 0"
            names = "; ".join(f"{several(places, 6)} {kind}" for kind, places in kinds.items())
            found.append(f"not shown: {count}: {names}")
        if self.pooling_call is not None and "cls" in prefix:
            found.append(
                f"call {self.pooling_call} of attention, counted from 0, has one query: it is shown as pooling "
                "attention, and rollout and relevance of the CLS token end below it"
            )
        unseen = [
            f"behind {self.replay.before(step)} calls of attention, a product of pairs of tokens that is no attention"
            for step in self.replay.unknown[:3]
        ]
        if self.mixed_from is not None:
            unseen.append(
                f"before call {self.mixed_from}, other operations mix tokens: convolutions, means, or an attention "
                "that cannot be observed"
            )
        return [*found, *([f"not shown: {'; '.join(unseen)}"] if unseen else ()), *self.remarks]


def verify_module(run: Run, replay: Replay, pixels: torch.Tensor, grid: tuple[int, int], extra: int) -> VerifiedModule:
    """Verify a module's attention by running its program with some patches, and some results, changed.

    Args:
        run: the module's forward pass.
        replay: recorded on these pixels.
        pixels: ``"1 channel height width"``.
        grid: expected rows and columns of patches.
        extra: number of the module's tokens that are not patches.

    Raises:
        ConfigError: no attention is observed, it is not that of a grid of patches, or a number differs.
    """
    before = _random_states(pixels.device)
    plain = run(pixels)
    if _random_states(pixels.device) != before:
        # What it draws may seldom matter, such as a picture that is flipped by chance.
        for _ in range(RANDOM_PASSES):
            check_output(plain, run(pixels))
    check_output(plain, replay.output)
    return _verify_calls(replay, pixels, grid, extra)


def _verify_calls(replay: Replay, pixels: torch.Tensor, grid: tuple[int, int], extra: int) -> VerifiedModule:
    """The module of layers that follow one another, with the tokens of the first one or else those of each."""
    shapes, count, places = dict(enumerate(replay.shapes)), grid[0] * grid[1], dict[int, TokenPlaces]()
    extras = [extra, 0]
    layers = [number for number, shape in shapes.items() if shape.queries > 1]
    kinds = several(list(dict.fromkeys(shape.tokens for shape in shapes.values())), 6)
    reason = (
        f"attention among {kinds}: in no layer do they match the {grid[0]}×{grid[1]} patches one to one"
        + "; some scores are no product of queries and keys of their own heads, but such as distances"
        * any(part.scores is None and not part.is_fused for number in layers for part in replay.calls[number])
    )
    if is_one_grid(replay.shapes) and layers:
        first = shapes[layers[0]]
        if first.keys > first.queries >= count:
            reason += f"; there are {first.keys - first.queries} more keys than tokens, which no map could show"
        if first.queries < count:
            raise ConfigError(
                f"attention among {kinds}: fewer than the {count} patches of the picture; expected a token for each"
            )
        # All layers have the tokens of the first one, or are refused below.
        shapes, extras = {layers[0]: first}, [*extras, first.queries - count]
    for other_tokens in dict.fromkeys(extras):
        places = places or decode_places(replay, pixels, grid, shapes, other_tokens)
    if not places:
        raise ConfigError(reason)
    if len(shapes) < len(layers):
        places = dict.fromkeys(layers, places[layers[0]])
    return _verify_places(replay, pixels, grid, places)


def _verify_places(
    replay: Replay, pixels: torch.Tensor, grid: tuple[int, int], places: Mapping[int, TokenPlaces]
) -> VerifiedModule:
    """The module of layers whose tokens have these places, after a check that they follow one another."""
    numbers, count, first, last = range(len(replay.shapes)), grid[0] * grid[1], min(places), max(places)
    calls = tuple(number for number in numbers if first <= number <= last)
    between = [replay.shapes[call].tokens for call in calls if call not in places]
    patches = f"{len(places)} layers attend among the {grid[0]}×{grid[1]} patches"
    if between:
        raise ConfigError(
            f"{patches}, but {len(between)} call{'s' if len(between) > 1 else ''} between them "
            f"do{'es' * (len(between) == 1)} not, such as {between[0]}: padded windows, coarser keys or attention "
            "between channels"
        )
    sizes = list(dict.fromkeys((shape.heads, shape.dim) for shape in map(replay.shapes.__getitem__, calls)))
    if len(sizes) > 1:
        kinds = " and ".join(f"{heads} heads of {dim} features" for heads, dim in sizes)
        raise ConfigError(
            f"{patches}, with {kinds}; expected the same in every layer, such as with zeros in place of pruned heads"
        )
    extra, rest = len(places[first].index) - count, [number for number in numbers if number > last]
    pooling_call = rest[0] if len(rest) == 1 and replay.shapes[rest[0]].pools(extra + count, count) else None
    if pooling_call is not None and replay.last_step(pooling_call) not in replay.program.live:
        # Such as that of SigLIP's classifier, which reads the mean of the patches beside it.
        numbers, pooling_call = range(pooling_call), None
    layer_places = tuple(places[call] for call in calls)
    has_bias = any(place.windows > 1 for place in layer_places) or any(shape.has_bias for shape in replay.shapes)
    others = tuple(number for number in numbers if number not in (*calls, pooling_call))
    verified = VerifiedModule(replay, *sizes[0], extra, has_bias, calls, pooling_call, others, layer_places)
    stream, remarks = find_stream(replay, extra + count, calls) if verified.is_global else (None, ())
    mixed_from, more = verify_sequence(replay, pixels, grid, calls, others, layer_places, extra, stream)
    verified = replace(verified, stream=stream, mixed_from=mixed_from, remarks=(*remarks, *more))
    if pooling_call is not None and not verified.is_in_order:
        raise ConfigError(
            f"{patches}, but in windows or reordered: a pooling over these is not supported; forward=… may end below it"
        )
    return verified.padded() if any(len(place.pads) for place in layer_places) else verified


def _random_states(device: torch.device) -> tuple[Any, ...]:
    """The states of the random numbers that a module may draw."""
    on_device = torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else b""
    numpy_state = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().numpy().tobytes(), on_device, random.getstate(), repr(numpy_state)
