"""A copy of a watched module whose weights may be changed, layer by layer."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from vitviz.errors.kinds import MethodError
from vitviz.models.watched.recorder import record

if TYPE_CHECKING:
    from vitviz.models.watched.watched_network import WatchedNetwork


def watched_copy(network: WatchedNetwork) -> tuple[WatchedNetwork, list[list[nn.Parameter]]]:
    """A frozen copy of the module, and its parameters from the top down: above the layers, of each layer, below them.

    A layer has the parameters on which the tokens after it depend, and those before it do not. All are one part if
    these tokens cannot be read, or layers share their weights.

    Raises:
        MethodError: the module cannot be copied, or its ``forward`` runs another one.
    """
    copied = object.__new__(type(network))
    copied.__dict__ |= network.__dict__
    with torch.inference_mode(False):
        try:
            module = copied.module = deepcopy(network.module).requires_grad_(False)
        # Parts of a module may refuse it in any way.
        except Exception as error:
            raise MethodError(f"{network.name}: the module cannot be copied ({error})") from None
    noise = network.noise()
    verified = network.verified(noise)
    steps = () if verified.stream is None else verified.stream.steps
    originals = {id(own): other for own, other in zip(network.module.parameters(), module.parameters(), strict=True)}
    buffers = {id(own): other for own, other in zip(network.module.buffers(), module.buffers(), strict=True)}
    copied.use(originals | buffers)
    with copied.running(noise) as inputs:
        used = {id(tensor) for tensor in record(copied.run, inputs)[0].constants}
    if used.isdisjoint(map(id, module.parameters())):
        raise MethodError(f"{network.name}: its output depends on no weight of the module that its forward is given")
    depends = [set[int](), *(verified.replay.program.constants_before(step) for step in steps), set(originals)]
    parts = [[each for key, each in originals.items() if key in after - before] for before, after in pairwise(depends)]
    return copied, parts[::-1] if steps and all(parts) else [list(module.parameters())]
