"""Verifies that layers follow one another, token by token: what one writes reaches what the next one reads.

Two passes replace the output of every layer by noise, the second one by other noise in some tokens, which differ from
layer to layer, and begin with a picture of which some patches differ. As attention then mixes no tokens, exactly the
tokens that were marked in the picture and in the layers before must change in a layer's queries, keys and values, and
behind the last layer. Branches beside each other, several passes, tokens that change places between two layers, and
operations that mix them fail this test, whatever the weights are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F

from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.codes import repaint
from vitviz.models.watched.digests import call_digests, digest, token_changes
from vitviz.models.watched.local import local_hooks
from vitviz.models.watched.program import Hook
from vitviz.models.watched.replay import OnCall, Replay
from vitviz.models.watched.stream import ResidualStream
from vitviz.models.watched.token_places import TokenPlaces

# Of the colours of marked patches: of their middle, or of all of them.
SEED, WHOLE = 0, 1
# Marks must survive a layer scale that has hardly been trained.
MARK_SCALE = 100.0
# Operations that read all tokens change others, too. The changes must still correlate with the marks.
MIN_CORRELATION = 0.5
# By which padding tokens may differ, relative to their largest number.
SAME = 1e-6
SAME_TOKENS = "expected the same tokens in every layer"
REPLACED = (
    "tokens that are not patches are replaced, as by new prompts in every layer: they hold nothing of what the layer "
    "before wrote into them, which a rollout would follow; expected tokens that continue from layer to layer"
)


def marked_pass(
    layers: Mapping[int, int], places: Sequence[TokenPlaces], marks: torch.Tensor, digests: list[torch.Tensor]
) -> OnCall:
    """A function that replaces the output of layers by noise, and appends a digest of what each layer reads.

    Args:
        layers: the layer of each call, by number of the call.
        places: places of the tokens in every layer.
        marks: ``"layer token"``, the tokens with other noise, in the order of the layout.
        digests: receives ``"3 token number"`` of each layer, of its queries, keys and values.
    """

    def on_call(call: AttentionCall) -> torch.Tensor:
        number = call.number
        layer = layers.get(number)
        if layer is None:
            return call.output
        place = places[layer]
        own = call_digests(call)
        digests.append(place.sort_tokens(own)[:, place.is_padded :])
        pads = own[-1, place.pads]
        if len(pads) and bool((pads - pads[:1]).abs().max() > SAME * pads.abs().max()):
            raise ConfigError(
                f"call {number}: the tokens beside the patches are not all the same, so that they are no padding of "
                "windows, but tokens of each: expected tokens that all patches share"
            )
        shape = (*call.queries.shape[:-1], call.values.shape[-1])
        generator = torch.Generator().manual_seed(number)
        noise, other = (torch.randn(shape, generator=generator) for _ in range(2))
        mask = torch.zeros(shape[0] * shape[2], dtype=torch.bool)
        mask[place.index[marks[layer]]] = True
        noise = torch.where(mask.view(shape[0], 1, shape[2], 1), MARK_SCALE * other, noise)
        return noise.to(call.values)

    return on_call


def verify_sequence(
    replay: Replay,
    pixels: torch.Tensor,
    grid: tuple[int, int],
    calls: Sequence[int],
    others: Sequence[int],
    places: Sequence[TokenPlaces],
    extra: int,
    stream: ResidualStream | None,
) -> tuple[int | None, tuple[str, ...]]:
    """Verify that calls of attention are layers that follow one another, with the same tokens at the same places.

    Args:
        replay: of the module.
        pixels: ``"1 channel height width"``.
        grid: rows and columns of patches.
        calls: number of each layer's call.
        others: numbers of the calls that are no layers.
        places: places of the tokens in every layer.
        extra: number of tokens that are not patches.
        stream: the tokens between the layers; None if they are unknown, so that nothing is read behind the last one.

    Returns:
        The number of the first call whose tokens other operations have mixed, such as convolutions, or an attention
        that cannot be observed, or of the call that would follow the last one; None if there is none. And whether the
        tokens read more of the picture than their own patch, in words.

    Raises:
        ConfigError: a layer does not read what the one before wrote, or has its tokens in another order; tokens that
            are not patches are replaced between layers; or there are other calls, none of which reads what the layers
            wrote or writes what they read.
    """
    _check_order(replay, calls, others)
    depth, tokens, local = len(calls), len(places[0].index), local_hooks(replay.program)
    layers = {number: layer for layer, number in enumerate(calls)}
    unmarked, all_marks = torch.zeros(depth + 1, tokens, dtype=torch.bool), _all_marks(depth + 1, tokens, extra)

    def reads(
        marks: torch.Tensor, hooks: Mapping[int, Hook], count: int = depth, seed: int = SEED
    ) -> list[torch.Tensor]:
        """Digests of what the first layers read; of all layers, also of the tokens behind the last one."""
        found: list[torch.Tensor] = []

        def on_tokens(tokens: torch.Tensor) -> None:
            found.append(places[-1].sort_tokens(digest(tokens[:, None]))[None])

        ends = {} if stream is None or count < depth else stream.hooks(stream.ends[-1:], on_tokens)
        picture = repaint(pixels, marks[0, extra:].view(grid), seed)
        until = [*replay.steps_of(*calls[:count]), *ends]
        replay(picture, marked_pass(layers, places, marks[1:], found), {**hooks, **ends}, until)
        return found

    def is_of_patches(hooks: Mapping[int, Hook], seed: int) -> bool:
        """Whether the tokens that the first layer reads change with their own patches alone."""
        change = token_changes(reads(unmarked, hooks, 1)[0], reads(all_marks[0], hooks, 1, seed)[0])
        return torch.equal(change > 0, all_marks[0][:1].expand(3, -1))

    remarks = (
        "its tokens read more of the picture than their own patch, as features of convolutions or other layers do",
    ) * (not is_of_patches({}, WHOLE))
    # A layer that changes nothing at all, such as one whose scale is zero, may be where it is.
    silent, mixtures = set[int](), set[int]()
    reference, is_local = reads(unmarked, local), is_of_patches(local, SEED)
    for marks in all_marks:
        # Features that all read all of the picture tell nothing of the layers.
        marks[0] &= is_local
        found = [token_changes(*pair) for pair in zip(reference, reads(marks, local), strict=True)]
        for layer in range(len(found) - 1):
            later = torch.cat(found[layer + 1 :])[:, marks[layer + 1]]
            if bool(marks[layer + 1].any()) and not bool((later > 0).any()) and layer not in silent:
                alone = unmarked.clone()
                alone[layer + 1] = True
                outputs = (replay(pixels, marked_pass(layers, places, each[1:], [])) for each in (alone, unmarked))
                if torch.equal(*outputs):
                    silent.add(layer)
        marks[[layer + 1 for layer in silent]] = False
        mixtures |= {read for read, change in enumerate(found) if _is_mixed(read, calls, change, marks, extra)}
    # What convolutions and means mix between the layers shows where they run as they are.
    end = replay.last_step(calls[-1]) if stream is None else stream.ends[-1]
    if any(replay.steps_of(calls[0])[0] < number < end for number in local):
        marks = F.pad(all_marks[0][1:], (0, 0, 1, 0))
        found = [token_changes(*pair) for pair in zip(reads(unmarked, {}), reads(marks, {}), strict=True)]
        mixtures |= {read for read, change in enumerate(found) if bool(change[:, ~marks[: read + 1].any(0)].any())}
    return min(((*calls, calls[-1] + 1)[read] for read in mixtures), default=None), remarks


def _check_order(replay: Replay, calls: Sequence[int], others: Sequence[int]) -> None:
    """Check that each layer reads what the one before wrote, and other calls what a layer wrote, or the reverse."""
    program = replay.program
    for first, second in pairwise(calls):
        if replay.steps_of(second)[0] not in program.dependent(replay.last_step(first)):
            raise ConfigError(_beside(first, second))
    joined = program.dependent(replay.last_step(calls[0])) | program.needed(replay.steps_of(*calls))
    if others and joined.isdisjoint(replay.steps_of(*others)):
        raise ConfigError(_beside(*sorted((calls[0], others[0]))))


def _all_marks(rows: int, tokens: int, extra: int) -> list[torch.Tensor]:
    """The marked tokens of several passes, ``"row token"``: those of the picture, and then of the output of each layer.

    None is marked twice. Half of them are marked in the first or last row, a quarter in the others, the rest nowhere.
    Those that are not patches are marked in all layers at once, too, so that one that is put back in any of them shows.
    """
    passes, half, quarter = [], max(1, tokens // 2), tokens // 4
    count = min(rows, quarter + 1)
    for start in range(0, rows, count):
        some = torch.arange(start, min(rows, start + count))
        for seed, order in enumerate((some, some.flip(0))):
            marks = torch.zeros(rows, tokens, dtype=torch.bool)
            shuffled = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed + 1))
            marks[order[0], shuffled[:half]] = True
            for row, own in zip(order[1:], shuffled[half : half + quarter].chunk(max(1, len(order) - 1)), strict=False):
                marks[row, own] = True
            passes.append(marks)
    passes += [(torch.arange(tokens) < extra).repeat(rows, 1)] * (extra > 0)
    for marks in passes:
        marks[0, :extra] = False
    return passes


def _is_mixed(read: int, calls: Sequence[int], change: torch.Tensor, marks: torch.Tensor, extra: int) -> bool:
    """Whether other tokens change with those that are marked in the picture and the layers before.

    Raises:
        ConfigError: a marked token does not change, or others change as much.
    """
    is_mixed = False
    for tokens in change:
        changed = tokens > 0
        # Without a residual connection, only the marks of the last layer remain.
        rows = [each for each in range(read + 1) if each == read or changed[marks[each]].any()]
        expected = marks[rows].any(0)
        if torch.equal(changed, expected):
            continue
        # Operations that read all tokens, such as a mean, change others, too, but less.
        is_mixed = bool(changed[expected].all()) and _correlation(tokens.clamp(max=1e30), expected) >= MIN_CORRELATION
        if not is_mixed:
            counts = f"{int(changed.sum())} change with {int(expected.sum())}"
            found = f"tokens change places or mix ({counts}); {SAME_TOKENS}"
            if (expected & ~changed)[:extra].any():
                found = REPLACED
            place = f"behind the call of attention {calls[-1]}"
            if read < len(calls):
                place = f"between the calls of attention {calls[read - 1]} and {calls[read]}"
            raise ConfigError(f"{place}, {found}")
    return is_mixed


def _beside(first: int, second: int) -> str:
    return (
        f"the calls of attention {first} and {second} do not follow one another: what the one writes does not reach "
        "what the other reads, as in branches side by side, an ensemble or several passes; expected layers in a row, "
        "or branches that are added up before the residual connection, x + (a(x) + b(x))"
    )


def _correlation(change: torch.Tensor, pattern: torch.Tensor) -> float:
    """Pearson's correlation of how much tokens changed with the pattern of those that should have; 0 for none."""
    pair = torch.stack([change.double(), pattern.double()])
    correlation = torch.corrcoef(pair)[0, 1] if len(pattern) > 2 else torch.tensor(0.0)
    return float(correlation.nan_to_num(0.0))
