"""A module's pass on several pictures at once, which must answer for each as alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import precise
from vitviz.attention.trace import AttentionTrace
from vitviz.models.watched.recorder import Run
from vitviz.models.watched.recording import watch
from vitviz.models.watched.replay import TOLERANCES, Replay
from vitviz.models.watched.stream import find_stream
from vitviz.models.watched.verification import VerifiedModule

# All of a trace that a pass computes.
PARTS = ("queries", "keys", "bias", "pooled", "norms", "value_norms")


def verify_several(
    verified: VerifiedModule, run: Run, pixels: torch.Tensor, layout: TokenLayout
) -> VerifiedModule | None:
    """A module recorded on two pictures, for any number of them; None if pictures change each other.

    torch may run other operations for one picture than for several, but the same ones for any number above.

    Args:
        verified: the module for one picture.
        run: its forward pass.
        pixels: of two pictures.
        layout: of their tokens.
    """
    replay = Replay.of(run, pixels)
    stream = verified.stream and find_stream(replay, len(verified.places[0].index), verified.calls)[0]
    pairs = [zip(*each, strict=True) for each in zip(replay.calls, verified.replay.calls, strict=True)]
    # What the scale does not explain is the bias.
    calls = [[replace(part, scale=known.scale) for part, known in each] for each in pairs]
    several = replace(verified, replay=replace(replay, calls=calls), stream=stream)
    together = watch(several, run, pixels, layout)
    alone = (watch(verified, run, each, layout)[0] for each in pixels.split(1))
    return several if all(map(_is_same, together, alone)) else None


def _is_same(first: tuple[torch.Tensor, AttentionTrace], second: tuple[torch.Tensor, AttentionTrace]) -> bool:
    """Whether an output and a trace are the same as others to rounding."""
    pairs = [(first[0], second[0]), *((getattr(first[1], name), getattr(second[1], name)) for name in PARTS)]
    return all(
        one is other or (one is not None and other is not None and _is_close(one, other)) for one, other in pairs
    )


def _is_close(first: torch.Tensor, second: torch.Tensor) -> bool:
    bound = TOLERANCES.get(second.dtype, 1e-5) * max(1.0, float(precise(second).nan_to_num(0, 0, 0).abs().max()))
    return first.shape == second.shape and torch.allclose(precise(first), precise(second), 0, bound)
