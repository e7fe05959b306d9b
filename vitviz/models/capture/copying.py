"""A copy of a captured module whose weights may be changed, layer by layer."""

from __future__ import annotations

from copy import copy, deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from vitviz.errors.kinds import MethodError
from vitviz.models.autograd import arriving_gradients
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.residual import StreamTap, call_output

if TYPE_CHECKING:
    from vitviz.models.capture.network import CapturedNetwork


def captured_copy(network: CapturedNetwork) -> tuple[CapturedNetwork, list[list[nn.Parameter]]]:
    """A frozen copy of the module, and its parameters from the top down: above the layers, of each layer, below them.

    A layer has the parameters on which the tokens after it depend, and those before it do not. All are one part if
    these tokens cannot be read, or layers share their weights.

    Raises:
        MethodError: the module cannot be copied, its ``forward`` runs another one, or it computes without gradients.
    """
    copied = copy(network)
    with torch.inference_mode(False):
        try:
            module = copied.module = deepcopy(network.module).requires_grad_()
        # Parts of a module may refuse it in any way.
        except Exception as error:
            raise MethodError(f"{network.name}: the module cannot be copied ({error})") from None
    pixels = network.noise(*network.facts.image_size)
    stream, depends = network.verified(pixels).stream, [set[nn.Parameter]()]

    def record(step: int, tokens: torch.Tensor) -> torch.Tensor:
        depends.append(_parameters(tokens))
        return tokens

    tap = None if stream is None else StreamTap(stream, record)
    running = copied.running(pixels, has_gradients=True)
    with running as inputs, arriving_gradients(copied), Interception(call_output, tap):
        output = copied.run(inputs)
    parameters = list(module.parameters())
    if _parameters(output).isdisjoint(parameters):
        reason = "its output depends on no weight of the module that its forward is given, or has no gradient"
        raise MethodError(f"{network.name}: {reason}")
    module.requires_grad_(False)
    depends.append(set(parameters))
    parts = [[each for each in parameters if each in after - before] for before, after in pairwise(depends)]
    return copied, parts[::-1] if stream is not None and all(parts) else [parameters]


def _parameters(tensor: torch.Tensor) -> set[nn.Parameter]:
    """The parameters on which a tensor depends, by its graph."""
    nodes, found = [tensor.grad_fn], set[nn.Parameter]()
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        # Of the nodes that a graph begins with.
        if isinstance(variable := getattr(node, "variable", None), nn.Parameter):
            found.add(variable)
        new = {following for following, _ in node.next_functions} - seen
        seen |= new
        nodes += new
    return found
