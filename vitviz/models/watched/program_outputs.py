"""What a watched module answers by its program: an output with other results in places, or from other tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from vitviz.errors.kinds import MethodError
from vitviz.models.pooling import Output
from vitviz.models.watched.module_config import NO_STREAM
from vitviz.models.watched.outputs import is_vector
from vitviz.models.watched.program import Hook, Result
from vitviz.models.watched.replay import OnCall, call_output
from vitviz.models.watched.stream import ResidualStream
from vitviz.models.watched.verification import VerifiedModule

if TYPE_CHECKING:
    from vitviz.models.watched.watched_network import WatchedNetwork


def replayed(
    network: WatchedNetwork,
    verified: VerifiedModule,
    pixels: torch.Tensor,
    output: Output,
    on_call: OnCall = call_output,
    hooks: Mapping[int, Hook] | None = None,
) -> torch.Tensor:
    """An output of the program, with functions that may replace results.

    Args:
        network: the watched module.
        verified: it, for images of this size.
        pixels: ``"1 channel height width"``, from :meth:`WatchedNetwork.running`.
        output: as in :meth:`WatchedNetwork.output`.
        on_call: receives each call of attention and returns its output.
        hooks: receive other results, by number of the step, and return those in their place.

    Raises:
        MethodError: the module does not expose this output.
    """
    result = _result_of(network, verified, output)
    return vector(network.name, verified.replay(pixels, on_call, hooks, output=result), output)


def replayed_from(
    network: WatchedNetwork, verified: VerifiedModule, tokens: torch.Tensor, output: Output
) -> torch.Tensor:
    """An output for tokens ``"1 token width"`` in place of those after the last layer, in the module's order.

    Raises:
        MethodError: as :func:`replayed`, or its tokens cannot be read between its layers.
    """
    stream, program = require_stream(network.name, verified), verified.replay.program
    [result] = program.run(stream.given(program, -1, tokens), [_result_of(network, verified, output)])
    return vector(network.name, result, output)


def require_stream(name: str, verified: VerifiedModule) -> ResidualStream:
    """The residual stream of the module with this name.

    Raises:
        MethodError: its tokens cannot be read between its layers.
    """
    if verified.stream is None:
        raise MethodError(f"{name}: {NO_STREAM}")
    return verified.stream


def require_hiding(name: str, verified: VerifiedModule) -> None:
    """Refuse a module whose patches cannot be hidden.

    Raises:
        MethodError: not every layer attends globally, to patches in reading order.
    """
    if not verified.is_global:
        raise MethodError(
            f"{name}: patches can be hidden only if every layer attends globally, to one grid of patches in reading "
            "order"
        )


def vector(name: str, result: torch.Tensor, output: Output) -> torch.Tensor:
    """The result of the module with this name as ``"batch class"`` or ``"batch feature"``.

    Raises:
        MethodError: it is no row of numbers for each image.
    """
    if output == "patches":
        raise MethodError(f"{name}: a watched module does not expose its final patch tokens")
    if not is_vector(result):
        raise MethodError(
            f"{name}: an output of shape {tuple(result.shape)}, no row of numbers for each image, can be no target"
        )
    return result


def _result_of(network: WatchedNetwork, verified: VerifiedModule, output: Output) -> Result:
    if output != "features" or not network.config.classes:
        return verified.replay.program.output
    if verified.replay.features is None:
        raise MethodError(
            f"{network.name}: its output is not that of a linear classifier, whose input would be its features"
        )
    return verified.replay.features
